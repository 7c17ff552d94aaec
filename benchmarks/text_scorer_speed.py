"""Speed of the rewards on game states, one thread: rows per second of each scorer on answers of three kinds.

.venv/bin/python benchmarks/text_scorer_speed.py --data FOLDER

FOLDER holds the test rows of ByteSized32-State-Prediction as JSON lines (a file with "test" in its name); without
it, transitions of our own games are scored. From texts, a row is all that an answer costs: reading the answer, both
states and comparing them, with nothing remembered from an earlier pass. From what is parsed, the question is
prepared and the answer read, and comparing is left: what the second to the last sample of a group cost. Prints one
table and writes benchmarks/results/text-scorer-speed.json.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import tyro
from rich.console import Console

from rlvr_envs.simulators.text_games.catalogue import GAMES
from training.report import RESULTS, Column, Report, Table, manifest, sha256_of
from training.rewards import states
from training.rewards.official_states import OfficialQuestion, official_answer_scores, official_question
from training.rewards.states import StateRewardName, exact, property_f1, score_answer
from training.text_data import TextCollectConfig, load_rows, variation_rows
from worldmodels.language.answers import answer_value, read_answer
from worldmodels.language.game_state import GameState
from worldmodels.language.transitions import GameTransition

FIRST_VARIATION = 300_000  # of the test split of our own games
SCORERS: tuple[StateRewardName, ...] = get_args(StateRewardName)
ANSWERS = ("perfect", "nothing", "wrong")
COLUMNS = (
    Column(key="perfect", title="perfect answers", digits=0),
    Column(key="nothing", title="nothing changes", digits=0),
    Column(key="wrong", title="one value wrong", digits=0),
)


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
    states._parsed.cache_clear()
    return sum(
        score_answer(case.text, data_state=case.data_state, ground_truth=case.ground_truth, reward=scorer)
        for case in cases
    )


def from_parsed(scorer: StateRewardName, cases: Sequence[Case]) -> float:
    """Sum of the scores of all rows."""
    if scorer == "exact":
        return sum(exact(case.predicted, target=case.target) for case in cases)
    if scorer == "property":
        return sum(property_f1(case.predicted, before=case.before, target=case.target) for case in cases)
    scores = (official_answer_scores(case.value, case.question) for case in cases)
    return sum(score.binary if scorer == "official_binary" else score.task_specific for score in scores)


FORMS: dict[str, Callable[[StateRewardName, Sequence[Case]], float]] = {
    "from texts": from_texts,
    "from what is parsed": from_parsed,
}


def rate(work: Callable[[], object], count: int, repeats: int) -> float:
    """Things per second: ``count`` divided by the median time of several runs."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return count / statistics.median(seconds)


def own_rows(number: int) -> list[GameTransition]:
    """Transitions of our own games, of as many variations as it takes."""
    rows: list[GameTransition] = []
    variation = FIRST_VARIATION
    while len(rows) < number:
        for game in GAMES.values():
            rows += variation_rows(game, variation, TextCollectConfig())
        variation += 1
    return rows[:number]


def main(data: Path | None = None, rows: int = 3000, repeats: int = 5, results: Path = RESULTS) -> None:
    """Measure and print.

    Args:
        data: Folder with the published test rows; none: our own games.
        rows: So many of them at most.
        repeats: Passes over the rows that a number is the median of.
        results: Folder for the table.
    """
    if rows < 1 or repeats < 1:
        raise SystemExit(f"rows and repeats must be at least 1, got {rows} and {repeats}")
    if data is None:
        chosen = own_rows(rows)
        ids = sha256_of([row.id for row in chosen])[:16]
        source = {"rows": "our own games", "first_variation": FIRST_VARIATION, "ids_sha256": ids}
        name = "transitions of our own games"
    else:
        chosen, digest = load_rows(data, "test")
        chosen = chosen[:rows]
        source = {"folder": data.name, "digest": digest, "split": "test"}
        name = "published test rows"
    cases = {kind: [case_of(row, kind) for row in chosen] for kind in ANSWERS}
    table = Table(
        name="text-scorer-speed",
        title=f"Rows per second on {len(chosen):,} {name}, one thread",
        columns=COLUMNS,
        rows={
            f"{scorer}, {form}": {
                kind: rate(lambda: work(scorer, cases[kind]), len(chosen), repeats)  # noqa: B023
                for kind in ANSWERS
            }
            for scorer in SCORERS
            for form, work in FORMS.items()
        },
        notes=(
            f"median of {repeats} passes",
            "from texts: answer and both states are read; rows of a pass that share a state read it once",
            "from what is parsed: the comparison alone, with a prepared question for the published rewards",
        ),
    )
    protocol = {"task": "text scorer speed", "rows": len(chosen), "repeats": repeats}
    report = Report(
        name="text-scorer-speed",
        tables=(table,),
        manifest=manifest(protocol=protocol, weights={}, data=source),
    )
    report.show(Console(width=140))
    report.write(results)


if __name__ == "__main__":
    tyro.cli(main)
