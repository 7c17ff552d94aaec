"""Speed of the rewards on game states, one thread: rows per second of each scorer on answers of three kinds.

.venv/bin/python benchmarks/text_scorer_speed.py --data FOLDER --published FILE

FOLDER holds the test rows of ByteSized32-State-Prediction as JSON lines (a file with "test" in its name); without
it, transitions of our own games are scored. FILE is the published scorer, the module of your copy of the published
code whose ``compute_score`` takes ``reward_type``; it needs dirtyjson. It is run in the same passes, must give the
same rewards, and a second table says how many times as fast ours are; without it there is no such table.

Three forms of work. From texts, a row is all that an answer costs: reading the answer, both states and comparing them,
with nothing remembered from an earlier pass. With the question read, both states are known and the answer is a text:
what the second to the last sample of a group cost. From what is parsed, comparing alone is left. Prints the tables and
writes benchmarks/results/text-scorer-speed.json.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import tyro
from rich.console import Console

from rlvr_envs.simulators.text_games.catalogue import GAMES
from training.report import RESULTS, Column, Report, Table, manifest, sha256_of
from training.rewards.official_states import (
    OfficialQuestion,
    OfficialScores,
    official_answer_scores,
    official_question,
    official_scores,
)
from training.rewards.states import StateRewardName, exact, property_f1, score_answer
from training.text_data import TEST_VARIATION, TextCollectConfig, load_rows, variation_rows
from worldmodels.language.answers import answer_value, read_answer
from worldmodels.language.game_state import GameState
from worldmodels.language.state_texts import forget
from worldmodels.language.transitions import GameTransition

SCORERS: tuple[StateRewardName, ...] = get_args(StateRewardName)
PUBLISHED_NAMES = {"official_binary": "binary", "official_task_specific": "task-specific"}
TITLES = {"perfect": "perfect answers", "nothing": "nothing changes", "wrong": "one value wrong"}
ANSWERS = tuple(TITLES)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row with one answer to it, as texts and parsed.

    Attributes:
        before: The state that is acted in.
        target: The true next state.
        data_state: The first of them as the published scorer takes it.
        ground_truth: The second.
        text: The answer.
        value: The answer as parsed JSON.
        predicted: The state that it leads to.
        question: The transition, prepared for the published scorers.
    """

    before: GameState
    target: GameState
    data_state: str
    ground_truth: str
    text: str
    value: Mapping[str, Any]
    predicted: GameState | None
    question: OfficialQuestion


def case_of(row: GameTransition, kind: str) -> Case:
    """A row with an answer of one kind."""
    value = answer_value(row.before, row.before if kind == "nothing" else row.after)
    text = json.dumps(spoilt(value, row.before) if kind == "wrong" else value, ensure_ascii=False)
    data_state, ground_truth = published(row.before), published(row.after)
    return Case(
        before=row.before,
        target=row.after,
        data_state=data_state,
        ground_truth=ground_truth,
        text=text,
        value=json.loads(text),
        predicted=read_answer(text, row.before).state,
        question=official_question(data_state, ground_truth),
    )


def spoilt(value: Mapping[str, Any], before: GameState) -> dict[str, Any]:
    """A perfect answer with one property of its last object wrong, or the score where it has none."""
    modified = list(value["modified"])
    if modified and modified[-1]["properties"]:
        last = modified[-1]
        key, old = list(last["properties"].items())[-1]
        modified[-1] = {**last, "properties": {**last["properties"], key: f"not {old}"}}
        return {**value, "modified": modified}
    return {**value, "score": {**before.scores(), "score": before.score + 7}}


def published(state: GameState) -> str:
    """A state as the published scorer takes it."""
    return json.dumps({"game_state": [*map(dict, state.objects.values()), state.scores()]})


def from_texts(scorer: StateRewardName, cases: Sequence[Case]) -> float:
    """Sum of the scores of all rows."""
    official_question.cache_clear()  # every pass starts without memory
    forget()
    return sum(
        score_answer(case.text, data_state=case.data_state, ground_truth=case.ground_truth, reward=scorer)
        for case in cases
    )


def from_answers(scorer: StateRewardName, cases: Sequence[Case]) -> float:
    """Sum of the scores of all rows."""
    if scorer in PUBLISHED_NAMES:
        return sum(_chosen(scorer, official_scores(case.text, case.question)) for case in cases)
    predicted = (read_answer(case.text, case.before).state for case in cases)
    return sum(_own(scorer, state, case) for state, case in zip(predicted, cases, strict=True))


def from_parsed(scorer: StateRewardName, cases: Sequence[Case]) -> float:
    """Sum of the scores of all rows."""
    if scorer in PUBLISHED_NAMES:
        return sum(_chosen(scorer, official_answer_scores(case.value, case.question)) for case in cases)
    return sum(_own(scorer, case.predicted, case) for case in cases)


def _own(scorer: StateRewardName, predicted: GameState | None, case: Case) -> float:
    if scorer == "exact":
        return exact(predicted, target=case.target)
    return property_f1(predicted, before=case.before, target=case.target)


def _chosen(scorer: StateRewardName, scores: OfficialScores) -> float:
    return scores.binary if scorer == "official_binary" else scores.task_specific


FORMS: dict[str, Callable[[StateRewardName, Sequence[Case]], float]] = {
    "from texts": from_texts,
    "question read, answer a text": from_answers,
    "from what is parsed": from_parsed,
}


def published_scorer(file: Path) -> Callable[[str, Sequence[Case]], float]:
    """The sum of the scores of all rows, by the published module in ``file``."""
    spec = importlib.util.spec_from_file_location("published_scorer", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise SystemExit(f"{file} is no Python file; name the module of the published scorer")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise SystemExit(f"the published scorer needs {error.name}: pip install {error.name}") from error

    def work(name: str, cases: Sequence[Case]) -> float:
        kind = PUBLISHED_NAMES[name]
        return sum(
            module.compute_score(
                case.text, case.ground_truth, {"data_state": case.data_state, "data_action": ""}, kind
            )
            for case in cases
        )

    return work


def seconds_of(works: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median processor seconds of each work; all take turns, so that a busy machine is so for all."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            started = time.process_time()
            work()
            taken[name].append(time.process_time() - started)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def own_rows(number: int) -> list[GameTransition]:
    """Transitions of our own games, of as many variations as it takes."""
    rows: list[GameTransition] = []
    variation = TEST_VARIATION
    while len(rows) < number:
        for game in GAMES.values():
            rows += variation_rows(game, variation, TextCollectConfig())
        variation += 1
    return rows[:number]


def main(
    data: Path | None = None,
    published: Path | None = None,
    rows: int = 3000,
    repeats: int = 5,
    results: Path = RESULTS,
) -> None:
    """Measure and print.

    Args:
        data: Folder with the published test rows; none: our own games.
        published: File of the published scorer, to be timed in the same run; none: not compared.
        rows: So many rows at most.
        repeats: Passes over the rows that a number is the median of.
        results: Folder for the tables.
    """
    if rows < 1 or repeats < 1:
        raise SystemExit(f"rows and repeats must be at least 1, got {rows} and {repeats}")
    if data is None:
        chosen = own_rows(rows)
        ids = sha256_of([row.id for row in chosen])[:16]
        source = {"rows": "our own games", "first_variation": TEST_VARIATION, "ids_sha256": ids}
        name = "transitions of our own games"
    else:
        chosen, digest = load_rows(data, "test")
        chosen = chosen[:rows]
        source = {"folder": data.name, "digest": digest, "split": "test"}
        name = "published test rows"
    theirs = None if published is None else published_scorer(published)
    if published is not None:
        source["published_sha256"] = hashlib.sha256(published.read_bytes()).hexdigest()
    seconds = {}
    for kind in ANSWERS:
        cases = [case_of(row, kind) for row in chosen]
        works = {
            f"{scorer}, {form}": partial(work, scorer, cases)
            for scorer in SCORERS
            for form, work in FORMS.items()
        }
        if theirs is not None:
            for scorer in PUBLISHED_NAMES:
                works[f"{scorer}, published code"] = partial(theirs, scorer, cases)
                _same(works, scorer, kind)
        seconds[kind] = seconds_of(works, repeats)
    tables = [_speeds(seconds, len(chosen), f"{len(chosen):,} {name}", repeats)]
    if theirs is not None:
        tables.append(_ratios(seconds))
    protocol = {"task": "text scorer speed", "rows": len(chosen), "repeats": repeats}
    report = Report(
        name="text-scorer-speed",
        tables=tuple(tables),
        manifest=manifest(protocol=protocol, weights={}, data=source),
    )
    report.show(Console(width=140))
    report.write(results)


def _same(works: Mapping[str, Callable[[], float]], scorer: str, kind: str) -> None:
    theirs, ours = works[f"{scorer}, published code"](), works[f"{scorer}, from texts"]()
    if not math.isclose(theirs, ours, rel_tol=1e-9):
        raise SystemExit(f"{scorer} of {kind} answers: the published code gives {theirs} in all, ours {ours}")


def _speeds(seconds: Mapping[str, Mapping[str, float]], count: int, what: str, repeats: int) -> Table:
    names = seconds[ANSWERS[0]]
    return Table(
        name="text-scorer-speed",
        title=f"Rows per second on {what}, one thread",
        columns=tuple(Column(key=kind, title=title, digits=0) for kind, title in TITLES.items()),
        rows={name: {kind: count / seconds[kind][name] for kind in ANSWERS} for name in names},
        notes=(
            f"processor time, median of {repeats} passes",
            "from texts: answer and both states are read; rows of a pass read once what they have in common",
            "question read: the second to the last sample of a group; parsed: the comparison alone",
        ),
    )


def _ratios(seconds: Mapping[str, Mapping[str, float]]) -> Table:
    def ratio(name: str, kind: str) -> float:
        scorer = name.partition(",")[0]
        like = scorer if scorer in PUBLISHED_NAMES else "official_binary"
        return seconds[kind][f"{like}, published code"] / seconds[kind][name]

    ours = [name for name in seconds[ANSWERS[0]] if not name.endswith("published code")]
    return Table(
        name="text-scorer-ratio",
        title="Times as fast as the published code, same rows, same run",
        columns=tuple(Column(key=kind, title=title, digits=1) for kind, title in TITLES.items()),
        rows={name: {kind: ratio(name, kind) for kind in ANSWERS} for name in ours},
        notes=("exact and property are compared with the published binary reward, the cheaper one",),
    )


if __name__ == "__main__":
    tyro.cli(main)
