"""The published text-game rewards of RLVR-World, with all their quirks, as fast functions.

Special: equal to the published scorer on every golden row, and quick because only what an answer touches is
compared anew: the rest is counted once per question. Use these to reproduce and to compare; to train, prefer
``training.rewards.states``, which has none of the holes. The quirks that matter most:

- ``official_task_specific`` is not bounded by 1: 1.30 for a perfect answer to a row with changed properties, but
  0.30 for one without; doing nothing earns about 0.10 on the former.
- Added objects can never be right; not removing, inventing objects and wrong names or types cost nothing.
- One property too many: 1 in the binary form, 0 in the task-specific one.
- The words True, False and None are rewritten even inside names, and the answer is whatever json-repair (0.64.6)
  makes of the text.

Absent on purpose: dirtyjson. The published scorer runs it on text that json-repair has already made valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import json_repair

from worldmodels.language.answers import ANSWER_MARKERS, MAX_ANSWER_CHARS
from worldmodels.language.state_texts import read_listed

_JSON_FENCE = re.compile(r"```json\s*([\s\S]*?)\s*```")
_SHORTEST_FENCE = 10  # characters; shorter fences are not taken for an answer
_NUMBER, _FILLED = (int, float), (dict, list, str)  # made once: isinstance with | makes its union every time
_PYTHON_WORDS = (("True", "true"), ("False", "false"), ("None", "null"))


class _Counts(NamedTuple):
    """Counts of one object or of all: properties right and wrong, changed properties right and in all."""

    right: int = 0
    wrong: int = 0
    gold_right: int = 0
    gold: int = 0
    gold_fails: bool = False  # the comparison of changed properties breaks down: no bonus at all
    invented: bool = False  # a property that neither state has: the whole task-specific reward is 0


class _Prepared(NamedTuple):
    """What is known of one target object.

    Attributes:
        gold: Property (or ``"contains"``) to whether it counts as a changed one; ``None`` where an object was added
            and the property is therefore left out.
        kept: Its counts if the answer does not touch it.
        perfect: Its counts if the answer has it right.
    """

    gold: Mapping[str, bool | None]
    kept: _Counts
    perfect: _Counts


@dataclass(frozen=True, kw_only=True)
class OfficialQuestion:
    """One transition, prepared: what is true, and what an answer that touches nothing would earn.

    Attributes:
        current: Uuid to object, before.
        earlier: The same and, if it carries a uuid, the score state.
        current_score: The score state before.
        target: Uuid to object, after.
        target_score: The score state after.
        totals: The counts of all target objects if the answer touches none.
        prepared: Uuid of target objects to what is known of them, filled as answers touch them.
    """

    current: Mapping[Any, Mapping[str, Any]]
    earlier: Mapping[Any, Mapping[str, Any]]
    current_score: Any
    target: Mapping[Any, Mapping[str, Any]]
    target_score: Mapping[str, Any]
    totals: _Counts
    prepared: dict[Any, _Prepared]

    def known(self, uuid: Any) -> _Prepared:
        """What is true of one target object."""
        if uuid not in self.prepared:
            self.prepared[uuid] = _prepare(self.earlier.get(uuid), self.target[uuid])
        return self.prepared[uuid]


class OfficialScores(NamedTuple):
    """Both published rewards of one answer."""

    binary: float = 0.0
    task_specific: float = 0.0


def official_binary(solution: str, *, data_state: str, ground_truth: str) -> float:
    """1.0 if all properties, contents and the score of the target are right by the published rule, else 0.0.

    Args:
        solution: All that the model wrote.
        data_state: JSON ``{"game_state": [objects..., score state]}`` before the action.
        ground_truth: The same after action and tick.
    """
    return official_scores(solution, official_question(data_state, ground_truth)).binary


def official_task_specific(solution: str, *, data_state: str, ground_truth: str) -> float:
    """The published shaped reward, 0 to 1.30. Arguments as for :func:`official_binary`.

    0.09 x share of right properties + 0.01 x share of right score fields + 0.2 if all is right + share of right
    changed properties (if there are any).
    """
    return official_scores(solution, official_question(data_state, ground_truth)).task_specific


@lru_cache(maxsize=512)  # the samples of a group ask the same question
def official_question(data_state: str, ground_truth: str) -> OfficialQuestion:
    """Prepare one transition.

    Raises:
        ValueError: A state is not JSON of the published form.
    """
    try:
        before, after = read_listed(data_state), read_listed(ground_truth)
        current = {item["uuid"]: item for item in before[:-1]}
        last = before[-1]
        earlier = {**current, last["uuid"]: last} if "uuid" in last else current
        target, target_score = _split(after)
        prepared: dict[Any, _Prepared] = {}
        right = wrong = gold = 0
        for uuid, item in target.items():
            if item is earlier.get(uuid):  # written alike in both states: most objects are
                right += len(item["properties"]) + 1
                continue
            prepared[uuid] = _prepare(earlier.get(uuid), item)
            kept = prepared[uuid].kept
            right, wrong, gold = right + kept.right, wrong + kept.wrong, gold + kept.gold
        return OfficialQuestion(
            current=current,
            earlier=earlier,
            current_score=last,
            target=target,
            target_score=target_score,
            totals=_Counts(right=right, wrong=wrong, gold=gold),
            prepared=prepared,
        )
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            'data_state and ground_truth must be JSON {"game_state": [objects..., score state]}: '
            f"{type(error).__name__} {error} in {data_state[:80]!r} or {ground_truth[:80]!r}"
        ) from error


def official_scores(solution: str, question: OfficialQuestion) -> OfficialScores:
    """Both rewards of one answer. Whatever a model wrote, nothing is raised: what breaks earns 0."""
    try:
        answer = _parse(_answer_text(solution))
    except Exception:  # the published rule, and a repair library may fail in any way
        return OfficialScores()
    return official_answer_scores(answer, question)


def official_answer_scores(answer: Any, question: OfficialQuestion) -> OfficialScores:
    """Both rewards of an answer that is already parsed; nothing is raised, what breaks earns 0."""
    try:
        if "modified" not in answer or "removed" not in answer:
            return OfficialScores()
        return _scores(answer, question)
    except Exception:  # the published rule: malformed parts break its comparisons
        return OfficialScores()


def _scores(answer: Any, question: OfficialQuestion) -> OfficialScores:
    touched, score = _recover(answer, question)
    right, wrong, gold_right, gold, gold_fails, invented = question.totals
    for uuid, item in touched.items():
        if uuid in question.target:
            gold_keys, old, perfect = question.known(uuid)
            target = question.target[uuid]
            new = perfect if item == target else _count(target, item, gold_keys)
            right, wrong = right + new.right - old.right, wrong + new.wrong - old.wrong
            gold_right, gold = gold_right + new.gold_right - old.gold_right, gold + new.gold - old.gold
            gold_fails, invented = gold_fails or new.gold_fails, invented or new.invented
    score_fields = question.target_score
    if score == score_fields:
        score_right = len(score_fields)
    else:
        score_right = sum(key in score and bool(value == score[key]) for key, value in score_fields.items())
    item_share = right / (right + wrong)
    score_share = score_right / len(score_fields)
    exact = int(item_share == 1 and score_share == 1)
    shaped = item_share * 0.09 + score_share * 0.01 + 0.2 * exact
    if gold and not gold_fails:
        shaped += gold_right / gold
    # An invented property breaks the published scorer, unless it has already given up on the changed ones.
    return OfficialScores(
        binary=float(exact),
        task_specific=0.0 if invented and not gold_fails else shaped,
    )


def _answer_text(solution: str) -> str:
    for marker in ANSWER_MARKERS:
        if marker in solution:
            return solution.rpartition(marker)[2].strip()
    fences = _JSON_FENCE.findall(solution)
    return fences[-1] if fences and len(fences[-1]) >= _SHORTEST_FENCE else solution


def _parse(text: str) -> Any:
    if len(text) > MAX_ANSWER_CHARS:
        raise ValueError("longer than any answer of the published protocol")
    for python, javascript in _PYTHON_WORDS:
        text = text.replace(python, javascript)
    try:
        return json.loads(text)
    except ValueError:
        return json_repair.loads(text, skip_json_loads=True)


def _recover(answer: Any, question: OfficialQuestion) -> tuple[dict[Any, Any], Any]:
    """What the answer touches (None for a removed object) and its score state, empty if it has none."""
    touched: dict[Any, Any] = {}
    if not isinstance(answer, dict):
        return touched, {}
    modified, removed = answer["modified"], answer["removed"]
    for item in modified if isinstance(modified, list) else ():
        if isinstance(item, dict) and "uuid" in item and isinstance(item["uuid"], _NUMBER):
            touched[item["uuid"]] = item
    touched = {uuid: item for uuid, item in touched.items() if uuid in question.current}
    for uuid in removed if isinstance(removed, list) else ():
        if isinstance(uuid, _NUMBER) and uuid in question.current:
            touched[uuid] = None
    if "score" not in answer:
        return touched, {}
    score = answer["score"]
    if not isinstance(score, _FILLED) or not score:
        score = question.current_score
    if "uuid" in score:  # taken for one more object
        touched[score["uuid"]] = score
        return touched, {}
    return touched, score if "score" in score else {}


def _prepare(before: Mapping[str, Any] | None, target: Mapping[str, Any]) -> _Prepared:
    """What is true of one target object, given the object before (None: there was none)."""
    fields = len(target["properties"]) + 1
    keys: dict[str, bool | None]
    if before is None:  # it is new: no answer can bring it
        keys = {**dict.fromkeys(target["properties"], None), "contains": True}
        kept = _Counts(wrong=1)
    elif before is target or before == target:
        keys = {**dict.fromkeys(target["properties"], False), "contains": False}
        kept = _Counts(right=fields)
    else:
        keys = {key: not same for key, same in _verdicts(before, target)}
        right = sum(same is False for same in keys.values())
        kept = _Counts(right=right, wrong=fields - right, gold=sum(map(bool, keys.values())))
    changed = sum(keys[key] is True for key in (*target["properties"], "contains"))
    return _Prepared(keys, kept, _Counts(right=fields, gold_right=changed, gold=changed))


def _count(target: Mapping[str, Any], predicted: Any, gold: Mapping[str, bool | None]) -> _Counts:
    """Compare one target object with what the answer makes of it; breaks on malformed parts, as published."""
    if predicted is None:
        return _Counts(wrong=1)
    try:
        verdicts = _verdicts(target, predicted)
    except (KeyError, TypeError):
        return _Counts(*_right_and_wrong(target, predicted), gold_fails=True)
    if "contains" in predicted:
        fields = len(target["properties"]) + 1
        right = sum(good for _, good in verdicts)  # what only the answer has is never right
        wrong = fields - right
    else:
        right, wrong = _right_and_wrong(target, predicted)
    if any(key not in gold for key, _ in verdicts):
        return _Counts(right, wrong, invented=True)
    counted = [good for key, good in verdicts if gold[key]]
    return _Counts(right, wrong, sum(counted), len(counted))


def _right_and_wrong(target: Mapping[str, Any], predicted: Any) -> tuple[int, int]:
    """Counts of properties and contents where an answer may lack either; breaks on malformed ones."""
    right = wrong = 0
    if "properties" not in predicted:
        wrong += 1
    else:
        properties = predicted["properties"]
        for key, value in target["properties"].items():
            if key in properties and bool(value == properties[key]):
                right += 1
            else:
                wrong += 1
    if "contains" in predicted and sorted(target["contains"]) == sorted(predicted["contains"]):
        right += 1
    else:
        wrong += 1
    return right, wrong


def _verdicts(target: Mapping[str, Any], predicted: Mapping[str, Any]) -> list[tuple[Any, bool]]:
    """Each property of either side and ``contains``, with whether the two agree."""
    mine, yours = target["properties"], predicted["properties"]
    verdicts = [(key, key in yours and bool(value == yours[key])) for key, value in mine.items()]
    verdicts += [(key, False) for key in yours if key not in mine]
    contains = target.get("contains", []), predicted.get("contains", [])
    return [*verdicts, ("contains", sorted(contains[0]) == sorted(contains[1]))]


def _split(listed: Iterable[Any]) -> tuple[dict[Any, Mapping[str, Any]], Mapping[str, Any]]:
    objects: dict[Any, Mapping[str, Any]] = {}
    score: Mapping[str, Any] = {}
    for item in listed:
        if "uuid" in item:
            objects[item["uuid"]] = item
        elif "score" in item:
            score = item
    return objects, score
