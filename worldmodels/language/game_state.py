"""States of a text game, in the record format of ByteSized32-State-Prediction: read, checked, compared, written.

Special: two states are equal if they say the same: the order of objects, of properties and inside ``contains``
does not count, tuples are lists and 1 is 1.0, but ``True`` is not 1. Equal states give the same canonical text.

Absent on purpose: torch, and the descriptive texts of a record (``look``, ``inventory``), which follow from the
objects.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

GameObject: TypeAlias = Mapping[str, Any]
"""``name`` (text), ``uuid`` (int), ``type`` (text), ``properties`` (dict of JSON values), ``contains`` (names)."""

OBJECT_KEYS = ("name", "uuid", "type", "properties", "contains")
SCORE_KEYS = ("score", "gameOver", "gameWon")
_PLAIN = frozenset((str, bool, int, float, type(None)))
_MAX_DEPTH = 32  # of nested property values; the published games need 3


@dataclass(frozen=True, kw_only=True, eq=False)
class GameState:
    """One moment of a game.

    Attributes:
        objects: By uuid, in the order in which the game lists them.
        score: Points so far.
        game_over: The episode has ended.
        game_won: It has ended well.
    """

    objects: Mapping[int, GameObject]
    score: float = 0
    game_over: bool = False
    game_won: bool = False

    def __eq__(self, other: object) -> bool:
        """Equal if both say the same; orders do not count."""
        if not isinstance(other, GameState):
            return NotImplemented
        return (
            self.objects.keys() == other.objects.keys()
            and same_value(self.scores(), other.scores())
            and all(same_object(one, other.objects[uuid]) for uuid, one in self.objects.items())
        )

    __hash__ = None  # type: ignore[assignment]

    def scores(self) -> dict[str, Any]:
        """``score``, ``gameOver`` and ``gameWon`` under the names of the record format."""
        return {"score": self.score, "gameOver": self.game_over, "gameWon": self.game_won}

    def to_text(self) -> str:
        """Canonical JSON: equal states give equal texts."""
        listed = [_canonical_object(self.objects[uuid]) for uuid in sorted(self.objects)]
        scores = {key: _canonical(value) for key, value in self.scores().items()}
        return json.dumps({"objects": listed, **scores}, ensure_ascii=False)


def parse_state(source: str | Mapping[str, Any]) -> GameState:
    """Read a state from JSON text or from its parsed form.

    Args:
        source: ``{"objects": [...], "score": s, "gameOver": b, "gameWon": b}``, or the published
            ``{"game_state": [objects..., {"score": s, "gameOver": b, "gameWon": b}]}``.

    Raises:
        ValueError: It is not a state; the message names the object and the field.
    """
    value: Any = source
    if isinstance(source, str):
        try:
            value = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the state is not JSON ({error}): {source[:80]!r}") from error
    if not isinstance(value, Mapping):
        raise ValueError(f"a state is a JSON object, not {_kind(value)}: {_shown(value)}")
    if "game_state" in value:
        listed = value["game_state"]
        if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
            raise ValueError("'game_state' is not a list of objects with the score as its last element")
        return build_state(listed[:-1], listed[-1])
    return build_state(value.get("objects"), {key: value[key] for key in SCORE_KEYS if key in value})


def build_state(objects: Any, scores: Any) -> GameState:
    """A state from a list of objects and a score state, both checked.

    Raises:
        ValueError: A field is missing or of the wrong type, or a uuid occurs twice.
    """
    if not isinstance(objects, Sequence) or isinstance(objects, str):
        raise ValueError(f"a state needs a list 'objects'; found {_kind(objects)}")
    by_uuid: dict[int, GameObject] = {}
    for place, item in enumerate(objects):
        checked = check_object(item, where=f"object {place}")
        if checked["uuid"] in by_uuid:
            raise ValueError(
                f"object {place}: uuid {checked['uuid']} occurs twice; uuids are unique in a state"
            )
        by_uuid[checked["uuid"]] = checked
    scores = check_scores(scores)
    if missing := [key for key in SCORE_KEYS if key not in scores]:
        raise ValueError(f"the score state lacks {missing}; it needs {list(SCORE_KEYS)}")
    return GameState(
        objects=by_uuid, score=scores["score"], game_over=scores["gameOver"], game_won=scores["gameWon"]
    )


def check_object(item: Any, *, where: str) -> GameObject:
    """The object itself if it is well formed (with ``uuid`` as an int).

    Raises:
        ValueError: Names ``where``, the field, and what it should be.
    """
    if not isinstance(item, Mapping):
        raise ValueError(f"{where} is {_kind(item)}; an object is a dict with {list(OBJECT_KEYS)}")
    if missing := [key for key in OBJECT_KEYS if key not in item]:
        raise ValueError(f"{where} ({_label(item)}) lacks {missing}")
    if extra := [key for key in item if key not in OBJECT_KEYS]:
        raise ValueError(
            f"{where} ({_label(item)}) has unknown fields {extra[:5]}; known: {list(OBJECT_KEYS)}"
        )
    checks: tuple[tuple[str, bool, str], ...] = (
        ("uuid", _is_whole(item["uuid"]), "a whole number"),
        ("name", _is_text(item["name"]), "a text"),
        ("type", _is_text(item["type"]), "a text"),
        ("properties", isinstance(item["properties"], Mapping), "a dict"),
        ("contains", _is_names(item["contains"]), "a list of names"),
    )
    for key, good, wanted in checks:
        if not good:
            raise ValueError(f"{where} ({_label(item)}): {key!r} is {_shown(item[key])}, not {wanted}")
    for key, value in item["properties"].items():
        if not _is_text(key) or not _is_json(value):
            shown = _shown(value)
            raise ValueError(
                f"{where} ({_label(item)}): property {key!r} is {shown}, which no state can hold"
            )
    return item if type(item["uuid"]) is int else {**item, "uuid": int(item["uuid"])}


def check_scores(scores: Any) -> Mapping[str, Any]:
    """The score state itself if what it holds is well formed; it may be partial.

    Raises:
        ValueError: Names the field and what it should be.
    """
    if not isinstance(scores, Mapping):
        raise ValueError(f"the score state is {_kind(scores)}; it is a dict with {list(SCORE_KEYS)}")
    if extra := [key for key in scores if key not in SCORE_KEYS]:
        raise ValueError(f"the score state has unknown fields {extra[:5]}; known: {list(SCORE_KEYS)}")
    if "score" in scores and not _is_number(scores["score"]):
        raise ValueError(f"'score' is {_shown(scores['score'])}, not a finite number")
    for key in ("gameOver", "gameWon"):
        if key in scores and not isinstance(scores[key], bool):
            raise ValueError(f"{key!r} is {_shown(scores[key])}, not true or false")
    return scores


def same_object(one: GameObject, other: GameObject) -> bool:
    """Whether two objects say the same, ``contains`` in any order."""
    if one is other:
        return True
    mine, yours = one["properties"], other["properties"]
    return (
        one["uuid"] == other["uuid"]
        and one["name"] == other["name"]
        and one["type"] == other["type"]
        and mine.keys() == yours.keys()
        and same_names(one["contains"], other["contains"])
        and all(same_value(value, yours[key]) for key, value in mine.items())
    )


def same_value(one: Any, other: Any) -> bool:
    """Whether two JSON values say the same: tuple = list, 1 = 1.0, ``True`` is not 1, NaN is nothing."""
    if (kind := type(one)) is type(other) and kind in _PLAIN:  # nearly all are, and this is quick
        return bool(one == other)
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and one.keys() == other.keys()
            and all(same_value(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same_value, one, other))
    return bool(one == other)


def record_states(record: Mapping[str, Any]) -> tuple[GameState, GameState]:
    """The full transition of one data record: the current state, and the state after action and tick.

    Raises:
        ValueError: A part is missing or not well formed.
    """
    try:
        before = record["current_state"]["objects"], record["current_score_state"]
        after = record["tick_state"]["objects"], record["next_score_state"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the record is not a transition: {type(error).__name__} {error}") from error
    return build_state(*before), build_state(*after)


def same_names(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two ``contains`` hold the same names, each equally often."""
    return one == other or (len(one) == len(other) and sorted(one) == sorted(other))


def _canonical_object(item: GameObject) -> dict[str, Any]:
    fields = {key: _canonical(item[key]) for key in OBJECT_KEYS}
    return {**fields, "contains": sorted(item["contains"])}


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _canonical(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == int(value)


def _is_text(value: Any) -> bool:
    """A text that can be written as UTF-8: JSON escapes can smuggle in lone surrogates."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


def _is_json(value: Any, depth: int = 0) -> bool:
    if value is None or isinstance(value, bool) or _is_number(value) or _is_text(value):
        return True
    if depth == _MAX_DEPTH:
        return False
    if isinstance(value, Mapping):
        return all(_is_text(key) and _is_json(item, depth + 1) for key, item in value.items())
    return isinstance(value, list | tuple) and all(_is_json(item, depth + 1) for item in value)


def _label(item: Mapping[str, Any]) -> str:
    return f"uuid {_shown(item.get('uuid', '?'))[:20]}, {_shown(item.get('name', 'no name'))[:60]}"


def _shown(value: Any) -> str:
    return reprlib.repr(value)[:80]  # short and shallow, whatever a model wrote


def _kind(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
