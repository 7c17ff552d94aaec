"""Answers that need no model: nothing changes, looked up in training, taken from the most similar training state,
and the perfect difference. What a trained model is worth shows beside them only.

Special: what a neighbour changed is applied fact by fact, as far as it fits; the perfect row goes through the
published answer format, so it shows what the published scorer can reach at most.

Absent: anything that learns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worldmodels.language.game_state import GameState, same_names, same_value
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
        found: list[GameState | None] = []
        for row in rows:
            candidates = self._by_action.get(_key(row), ())
            nearest = max(candidates, key=lambda other: _likeness(other.before, row.before), default=None)
            found.append(row.before if nearest is None else _applied(nearest, row.before))
        return found


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
    change = difference(neighbour.before, neighbour.after)
    known = state.objects.keys()
    fitting = StateDifference(
        added=tuple(item for item in change.added if item["uuid"] not in known),
        removed=tuple(uuid for uuid in change.removed if uuid in known),
        changed={fact: value for fact, value in change.changed.items() if len(fact) == 1 or fact[0] in known},
        dropped=tuple(fact for fact in change.dropped if fact[0] in known),
    )
    return apply(fitting, state)
