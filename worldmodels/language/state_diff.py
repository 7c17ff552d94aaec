"""What changes from one state of a text game to the next: take the difference, apply it, classify it.

Special: a difference is exact. It adds and removes objects, sets and drops single properties and changes the
score, so that ``apply(difference(a, b), a) == b`` for any two valid states; the published code cannot recover
added objects.

Absent on purpose: torch, and every text form of a difference (see ``answers`` and ``prompts``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from worldmodels.language.game_state import (
    SCORE_KEYS,
    GameObject,
    GameState,
    build_state,
    record_states,
    same_names,
    same_object,
    same_value,
)

Fact: TypeAlias = tuple[int | str, ...]
"""What can change: ``(uuid, "name")``, ``(uuid, "type")``, ``(uuid, "contains")``, ``(uuid, "properties", key)``,
``(uuid,)`` for a whole object that goes, ``("score",)``, ``("gameOver",)``, ``("gameWon",)``."""


@dataclass(frozen=True, kw_only=True)
class StateDifference:
    """How one state becomes the next.

    Attributes:
        added: New objects, whole, in the order in which they are listed.
        removed: Uuids of the objects that go.
        changed: Facts of objects that stay, and of the score, with their new values.
        dropped: Properties of objects that stay which they no longer have, as ``(uuid, "properties", key)``.
    """

    added: tuple[GameObject, ...] = ()
    removed: tuple[int, ...] = ()
    changed: Mapping[Fact, Any] = field(default_factory=dict)
    dropped: tuple[Fact, ...] = ()

    def __bool__(self) -> bool:
        """False if nothing changes."""
        return bool(self.added or self.removed or self.changed or self.dropped)

    def facts(self) -> dict[Fact, Any]:
        """Everything that changes, one entry each; ``GONE`` for objects and properties that go.

        An added object counts once for each thing it says, so that a half-right one is half right.
        """
        facts = dict(self.changed)
        facts.update(((uuid,), GONE) for uuid in self.removed)
        facts.update((fact, GONE) for fact in self.dropped)
        for item in self.added:
            facts.update(((item["uuid"], key), item[key]) for key in ("name", "type", "contains"))
            facts.update(
                ((item["uuid"], "properties", key), value) for key, value in item["properties"].items()
            )
        return facts


class _Gone:
    """The value of something that is no longer there."""

    def __repr__(self) -> str:
        return "GONE"


GONE = _Gone()


def difference(before: GameState, after: GameState) -> StateDifference:
    """What changes from ``before`` to ``after``: everything, and nothing else."""
    changed: dict[Fact, Any] = {}
    dropped: list[Fact] = []
    for uuid, old in before.objects.items():
        new = after.objects.get(uuid)
        if new is None or new is old:
            continue
        for key in ("name", "type"):
            if old[key] != new[key]:
                changed[uuid, key] = new[key]
        if not same_names(old["contains"], new["contains"]):
            changed[uuid, "contains"] = new["contains"]
        had, has = old["properties"], new["properties"]
        for key, value in has.items():
            if key not in had or not same_value(had[key], value):
                changed[uuid, "properties", key] = value
        dropped.extend((uuid, "properties", key) for key in had if key not in has)
    changed.update(score_changes(before, after))
    if before.objects.keys() == after.objects.keys():
        return StateDifference(changed=changed, dropped=tuple(dropped))
    return StateDifference(
        added=tuple(item for uuid, item in after.objects.items() if uuid not in before.objects),
        removed=tuple(uuid for uuid in before.objects if uuid not in after.objects),
        changed=changed,
        dropped=tuple(dropped),
    )


def apply(change: StateDifference, state: GameState) -> GameState:
    """The state after the change; ``state`` itself stays as it is.

    Raises:
        ValueError: The difference speaks of an object that the state lacks, or adds one that it has.
    """
    objects = dict(state.objects)
    for uuid in change.removed:
        if uuid not in objects:
            raise ValueError(f"cannot remove object {uuid}: the state holds {sorted(objects)}")
        del objects[uuid]
    scores = state.scores()
    edited: set[int] = set()
    for fact, value in [*change.changed.items(), *((fact, GONE) for fact in change.dropped)]:
        if fact[0] in SCORE_KEYS:
            scores[str(fact[0])] = value
            continue
        uuid, key = int(fact[0]), str(fact[1])
        if uuid not in objects:
            raise ValueError(f"cannot change object {uuid}: the state holds {sorted(objects)}")
        if uuid not in edited:  # copy once: states share what does not change
            objects[uuid] = {**objects[uuid], "properties": dict(objects[uuid]["properties"])}
            edited.add(uuid)
        part: Any = objects[uuid]
        if key == "properties":
            part, key = part["properties"], str(fact[2])
        if value is GONE:
            part.pop(key, None)
        else:
            part[key] = value
    for item in change.added:
        if item["uuid"] in objects:
            raise ValueError(f"cannot add object {item['uuid']}: the state has it; change it instead")
        objects[item["uuid"]] = item
    return GameState(
        objects=objects, score=scores["score"], game_over=scores["gameOver"], game_won=scores["gameWon"]
    )


def score_changes(before: GameState, after: GameState) -> dict[Fact, Any]:
    """The score facts that differ, with their new values."""
    old, new = before.scores(), after.scores()
    return {(key,): new[key] for key in SCORE_KEYS if not same_value(old[key], new[key])}


@dataclass(frozen=True, kw_only=True)
class ChangeLabels:
    """What a recorded transition changes, in the terms of the published evaluation.

    Attributes:
        action: Objects differ after the action.
        tick: Objects differ again after the time tick.
        score: Score, gameOver or gameWon differ.
        gold: A property or ``contains`` differs on an object that is there before and after.
        added: Number of new objects.
        removed: Number of objects that go.
    """

    action: bool
    tick: bool
    score: bool
    gold: bool
    added: int
    removed: int

    @property
    def changed(self) -> bool:
        """The published split into changed and unchanged: action, tick or score."""
        return self.action or self.tick or self.score


def label_record(record: Mapping[str, Any]) -> ChangeLabels:
    """Classify one data record (``current_state``, ``action_state``, ``tick_state`` and both score states).

    Raises:
        ValueError: A state is not well formed.
    """
    before, after = record_states(record)
    middle = build_state(record["action_state"]["objects"], record["current_score_state"])
    total = difference(before, after)
    return ChangeLabels(
        action=bool(difference(before, middle)),
        tick=_objects_differ(middle, after),
        score=bool(score_changes(before, after)),
        gold=bool(total.dropped) or any(fact[-1] == "contains" or len(fact) == 3 for fact in total.changed),
        added=len(total.added),
        removed=len(total.removed),
    )


def _objects_differ(one: GameState, other: GameState) -> bool:
    return one.objects.keys() != other.objects.keys() or not all(
        same_object(item, other.objects[uuid]) for uuid, item in one.objects.items()
    )
