"""Answers that need no model: nothing changes, looked up in training, taken from the most similar training state,
and the perfect difference. What a trained model is worth shows beside them only.

Special: what a neighbour changed is applied fact by fact, as far as it fits, and what moved there moves here; the
perfect row goes through the published answer format, so it shows what the published scorer can reach at most.

Absent: anything that learns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from worldmodels.language.compact_answers import parents
from worldmodels.language.game_state import GameObject, GameState, same_names, same_value
from worldmodels.language.state_diff import StateDifference, apply, difference
from worldmodels.language.transitions import GameTransition

TextPredictor = Callable[[Sequence[GameTransition], Sequence[int]], list[GameState | None]]
"""Transitions, and their row numbers, to next states; None where there is no readable answer."""


def nothing_changes(rows: Sequence[GameTransition], numbers: Sequence[int]) -> list[GameState | None]:
    """The state stays."""
    return [row.before for row in rows]


def perfect(rows: Sequence[GameTransition], numbers: Sequence[int]) -> list[GameState | None]:
    """The recorded next state."""
    return [row.after for row in rows]


class TrainingTable:
    """Training transitions by game and action.

    Args:
        rows: All of them.
    """

    def __init__(self, rows: Sequence[GameTransition]) -> None:
        self._by_action: dict[tuple[str, str], list[GameTransition]] = {}
        for row in rows:
            self._by_action.setdefault(_key(row), []).append(row)
        self._twins: dict[tuple[str, str, str], GameState] = {}
        for row in rows:
            self._twins.setdefault((*_key(row), row.before.to_text()), row.after)

    def twin(self, row: GameTransition) -> GameState | None:
        """What followed in training on the same state and action, if both occurred."""
        return self._twins.get((*_key(row), row.before.to_text()))

    def knows_action(self, row: GameTransition) -> bool:
        """Whether the action's text occurred in training, in this game."""
        return _key(row) in self._by_action

    def lookup(self, rows: Sequence[GameTransition], numbers: Sequence[int]) -> list[GameState | None]:
        """The twin's next state; without a twin nothing changes."""
        return [self.twin(row) or row.before for row in rows]

    def neighbour(self, rows: Sequence[GameTransition], numbers: Sequence[int]) -> list[GameState | None]:
        """What the same action changed in the most similar state; an unseen action changes nothing."""
        return [self.twin(row) or self._as_nearest(row) for row in rows]

    def _as_nearest(self, row: GameTransition) -> GameState:
        candidates = self._by_action.get(_key(row), ())
        nearest = max(candidates, key=lambda other: _likeness(other.before, row.before), default=None)
        return row.before if nearest is None else _applied(nearest, row.before)


def _key(row: GameTransition) -> tuple[str, str]:
    return row.game, row.action.lower()


def _likeness(one: GameState, other: GameState) -> int:
    """How many facts two states share, by uuid."""
    shared = 0
    for uuid, item in one.objects.items():
        twin = other.objects.get(uuid)
        if twin is None:
            continue
        if twin is item:
            shared += len(item["properties"]) + 2
            continue
        shared += same_names(item["contains"], twin["contains"]) + (item["name"] == twin["name"])
        theirs = twin["properties"]
        shared += sum(
            key in theirs and same_value(value, theirs[key]) for key, value in item["properties"].items()
        )
    return shared


def _applied(neighbour: GameTransition, state: GameState) -> GameState:
    """What happened to a neighbour, done to a state as far as it fits.

    What a thing holds is not copied, as there it held others. What moved, came or went there does so here.
    """
    change = difference(neighbour.before, neighbour.after)
    known = state.objects.keys()
    fitting = StateDifference(
        added=tuple({**item, "contains": []} for item in change.added if item["uuid"] not in known),
        removed=tuple(uuid for uuid in change.removed if uuid in known),
        changed={
            fact: value
            for fact, value in change.changed.items()
            if len(fact) == 1 or (fact[0] in known and fact[1:] != ("contains",))
        },
        dropped=tuple(fact for fact in change.dropped if fact[0] in known),
    )
    changed = apply(fitting, state)
    was, now = parents(neighbour.before.objects), parents(neighbour.after.objects)
    moves = {
        uuid: holder
        for uuid in neighbour.after.objects.keys() & changed.objects.keys()
        if (holder := now.get(uuid)) != was.get(uuid) and (holder is None or holder in changed.objects)
    }
    return _rehoused(changed, state, moves)


def _rehoused(state: GameState, before: GameState, moves: Mapping[int, int | None]) -> GameState:
    """A state whose objects hold what they held in ``before``, less what has gone, and what has moved where it is now.

    Args:
        state: Objects as they are now, holding names of before.
        before: The state that those names are of.
        moves: New holders by uuid; None: nobody.
    """
    held = parents(before.objects)
    uuids = {before.objects[uuid]["name"]: uuid for uuid in held}
    objects: dict[int, GameObject] = {}
    for holder, item in state.objects.items():
        contains: list[str] = []
        for name in item["contains"]:
            uuid = uuids.get(name)
            if uuid is None:  # the name of no object, or of several
                contains.append(name)
            elif uuid in state.objects and uuid not in moves:
                contains.append(state.objects[uuid]["name"])
        contains += [state.objects[uuid]["name"] for uuid in sorted(moves) if moves[uuid] == holder]
        objects[holder] = item if contains == list(item["contains"]) else {**item, "contains": contains}
    return replace(state, objects=objects)
