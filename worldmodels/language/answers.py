"""Answers of language models: text in, next state or an error in words out; and the text of a perfect answer.

Special: reading is lenient about form and strict about content. Think blocks, markers, fences, trailing commas,
single quotes, Python words and missing brackets are repaired (by the json-repair library); what the answer then
says must be a well-formed difference of the current state. Nothing a model writes raises an exception.

The published answer format: a JSON object with ``modified`` (whole objects, changed or new), ``removed`` (uuids)
and ``score`` (``{}`` where it stays).

Absent on purpose: the published scorer's own reading rules, which are part of that scorer
(``training.rewards.official_states``).
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import json_repair

from worldmodels.language.game_state import GameObject, GameState, check_object, check_scores
from worldmodels.language.state_diff import difference

MAX_ANSWER_CHARS = 65_536
"""Longer answers are rejected unread: four times what the published limit of 4,096 response tokens can hold."""

ANSWER_MARKERS = (
    "The final answer is:",
    "the final answer is:",
    "The final state is:",
    "the final state is:",
    "The final game state is:",
    "the final game state is:",
)
"""In the order in which the published scorer looks for them."""

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_FENCE = re.compile(r"```[a-zA-Z0-9_-]*[ \t]*\r?\n?(.*?)(?:```|\Z)", re.DOTALL)
_ANSWER_KEYS = ("modified", "removed", "score")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model's text says.

    Attributes:
        state: The next state, or None.
        error: Why there is none, in words; None when all is well.
        probability: How likely the model found this answer, in [0, 1]; 1 where nobody says.
    """

    state: GameState | None = None
    error: str | None = None
    probability: float = 1.0


def read_answer(text: str, before: GameState) -> Answer:
    """The next state according to a model's answer. Never raises.

    Args:
        text: All that the model wrote.
        before: The state that it was asked about.
    """
    value, error = parse_json_answer(text)
    if error is not None:
        return Answer(error=error)
    return apply_answer(value, before)


def parse_json_answer(text: str) -> tuple[Any, str | None]:
    """The JSON value in a model's text, repaired where needed, and an error in words (or None). Never raises."""
    if len(text) > MAX_ANSWER_CHARS:
        return None, f"the answer has {len(text)} characters; at most {MAX_ANSWER_CHARS} are read"
    body, error = extract_answer(text)
    if error is not None:
        return None, error
    try:
        return json.loads(body), None
    except (ValueError, RecursionError):
        pass
    try:
        value: Any = json_repair.loads(body, skip_json_loads=True)
    except Exception as failure:  # a repair library may fail in any way; a model's text must not stop a run
        return None, f"the answer is beyond repair ({type(failure).__name__}): {body[:80]!r}"
    if value == "":
        return None, f"the answer holds no JSON: {body[:80]!r}"
    return value, None


def extract_answer(text: str) -> tuple[str, str | None]:
    """The part of a model's text that should be JSON, and an error in words (or None).

    After the last think block; there after the last marker, else in the last fence, else from the first brace.
    """
    body = text.rpartition(_THINK_CLOSE)[2]
    marked = max((body.rfind(marker) + len(marker) for marker in ANSWER_MARKERS if marker in body), default=0)
    if not marked and _THINK_OPEN in body:
        return "", "the thinking never ended: no answer"
    body = body[marked:]
    if fences := [found for found in _FENCE.findall(body) if "{" in found]:
        body = fences[-1]
    body = body.strip()
    if not body:
        return "", "the answer is empty"
    if not marked and "{" in body and not body.startswith("["):
        body = body[body.index("{") :]  # prose before an answer is no part of it
    return body, None


def apply_answer(value: Any, before: GameState) -> Answer:
    """The next state according to a parsed answer. Never raises.

    Strict where the published scorer is not: every entry is a whole object, no uuid occurs twice, only objects
    that exist are removed, and all three keys are there.
    """
    if isinstance(value, list):  # drafts one after the other: the last one counts
        value = next((item for item in reversed(value) if _is_answer(item)), value)
    if not isinstance(value, Mapping):
        return Answer(
            error=f"the answer is a {type(value).__name__}, not a JSON object: {reprlib.repr(value)[:80]}"
        )
    if missing := [key for key in _ANSWER_KEYS if key not in value]:
        return Answer(error=f"the answer lacks {missing}; it has {[str(key)[:20] for key in value][:5]}")
    try:
        return Answer(state=_next_state(value["modified"], value["removed"], value["score"], before))
    except (ValueError, RecursionError) as error:
        return Answer(error=str(error))


def answer_value(before: GameState, after: GameState) -> dict[str, Any]:
    """The perfect answer in the published format, as a value."""
    change = difference(before, after)
    touched = {fact[0] for fact in (*change.changed, *change.dropped)}
    modified = [dict(after.objects[uuid]) for uuid in before.objects if uuid in touched]
    rescored = any(key in touched for key in after.scores())
    return {
        "modified": modified + [dict(item) for item in change.added],
        "removed": list(change.removed),
        "score": after.scores() if rescored else {},
    }


def write_answer(before: GameState, after: GameState) -> str:
    """The perfect answer in the published format, as JSON text without a marker."""
    return json.dumps(answer_value(before, after), ensure_ascii=False)


def _next_state(modified: Any, removed: Any, score: Any, before: GameState) -> GameState:
    if not isinstance(modified, list):
        raise ValueError(f"'modified' is a {type(modified).__name__}, not a list of objects")
    if not isinstance(removed, list):
        raise ValueError(f"'removed' is a {type(removed).__name__}, not a list of uuids")
    objects: dict[int, GameObject] = dict(before.objects)
    for uuid in removed:
        if isinstance(uuid, bool) or not isinstance(uuid, int | float) or uuid not in objects:
            known = sorted(before.objects)
            raise ValueError(f"'removed' names {reprlib.repr(uuid)[:40]}; uuids that can be removed: {known}")
        del objects[int(uuid)]
    seen: set[int] = set()
    for place, item in enumerate(modified):
        checked = check_object(item, where=f"'modified' entry {place}")
        uuid = checked["uuid"]
        if uuid in seen:
            raise ValueError(f"'modified' holds uuid {uuid} twice")
        if uuid in before.objects and uuid not in objects:
            raise ValueError(f"uuid {uuid} is both modified and removed")
        seen.add(uuid)
        objects[uuid] = checked
    scores = {**before.scores(), **check_scores(score)}
    return GameState(
        objects=objects, score=scores["score"], game_over=scores["gameOver"], game_won=scores["gameWon"]
    )


def _is_answer(item: Any) -> bool:
    return isinstance(item, Mapping) and "modified" in item
