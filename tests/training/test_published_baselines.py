"""Our scorers and baselines beside the published figures: trivial answers, real predictions, twins in training."""

import csv
import gzip
import json

import numpy as np
import pytest

from training.rewards.official_states import official_answer_scores, official_question
from training.rewards.states import exact, published_state
from training.text_baselines import TrainingTable
from training.textgame_evaluate import measured
from worldmodels.language.answers import answer_value
from worldmodels.language.game_state import build_state
from worldmodels.language.transitions import read_transitions

STILL = {"modified": [], "removed": []}
SCORE = {"score": 0, "gameOver": False, "gameWon": False}  # the predictions of people and of GPT-4 have none
TRIVIAL = {
    "nothing_emptyscore": lambda row: {**STILL, "score": {}},
    "nothing_keepscore": lambda row: {**STILL, "score": row.before.scores()},
    "nothing_truescore": lambda row: {**STILL, "score": row.after.scores()},
    "perfect_diff": lambda row: answer_value(row.before, row.after),
}


@pytest.fixture(scope="module")
def rows(conformance):
    return list(read_transitions(conformance("language/bytesized32_test.jsonl.gz")))


@pytest.fixture(scope="module")
def published(conformance):
    return json.loads(conformance("language/baselines.json").read_text())


@pytest.fixture(scope="module")
def labels(conformance):
    """The published labels of the test rows, by name, as arrays."""
    with conformance("language/bytesized32_test_labels.csv").open() as file:
        lines = list(csv.DictReader(file))
    names = ("changed", "gold", "n_added", "n_removed", "twin_in_full_train", "twin_in_train_sample")
    return {name: np.array([int(line[name]) > 0 for line in lines]) for name in names}


@pytest.fixture(scope="module")
def groups(labels):
    changed, gold = labels["changed"], labels["gold"]
    return {
        "all": np.ones_like(changed),
        "changed": changed,
        "unchanged": ~changed,
        "gold": gold,
        "nogold": ~gold,
        "added": labels["n_added"],
        "removed": labels["n_removed"],
    }


@pytest.mark.parametrize("name", list(TRIVIAL))
def test_trivial_answers_earn_what_was_published(name, rows, published, groups):
    scores = [
        official_answer_scores(
            TRIVIAL[name](row), official_question(published_state(row.before), published_state(row.after))
        )
        for row in rows
    ]
    binary, shaped = np.array(scores).T
    assert set(published[name]) == set(groups)
    for group, mask in groups.items():
        figures = published[name][group]
        assert (mask.sum(), binary[mask].sum()) == (figures["n"], figures["exact_match"]), group
        assert binary[mask].mean() == pytest.approx(figures["accuracy"], abs=1e-6)
        assert shaped[mask].mean() == pytest.approx(figures["mean_task_specific_reward"], abs=1e-6)


def test_states_compare_as_published(rows, published, labels, groups):
    """The identity as GPT-simulator judges it, and a lookup in all that was crawled, whose twins always agree."""
    still = np.array([exact(row.before, target=row.after) for row in rows])
    known = still + (1 - still) * labels["twin_in_full_train"]
    for name, right in (("gs_identity", still), ("train_lookup_else_identity", known)):
        for group, figures in published[name].items():
            assert right[groups[group]].sum() == figures["exact_match"], (name, group)


@pytest.mark.parametrize("who", ["gpt4", "human"])
def test_real_predictions_are_judged_as_published(who, conformance):
    with gzip.open(conformance(f"language/{who}_predictions.jsonl.gz")) as lines:
        predictions = [json.loads(line) for line in lines]
    right: dict[str, list[bool]] = {}
    for line in predictions:
        before, target, said = (line[key] for key in ("current_objects", "gold_objects", "predicted_objects"))
        try:
            state = build_state(said, SCORE)
        except ValueError:  # a field is missing, or a uuid is there twice
            state = None
        start, goal = build_state(before, SCORE), build_state(target, SCORE)
        assert (start != goal) == line["changed"]
        assert state is None or (state == start) == line["predicts_no_change"]
        right.setdefault(line["source"], []).append(exact(state, target=goal) == 1)
        assert right[line["source"]][-1] == line["official_correct"]

        uuids = {item.get("uuid") for item in said}
        answer = {"modified": said, "removed": [uuid for uuid in start.objects if uuid not in uuids]}
        question = official_question(
            *(json.dumps({"game_state": [*objects, SCORE]}) for objects in (before, target))
        )
        scores = official_answer_scores({**answer, "score": SCORE}, question)
        added = goal.objects.keys() - start.objects.keys()  # no difference can bring them, a whole state can
        assert scores.binary == float(line["evaluate_num_errors"] == 0 and not added)
        if not question.totals.gold and scores.task_specific:
            share = (scores.task_specific - 0.01 - 0.2 * scores.binary) / 0.09
            assert share == pytest.approx(line["verl_item_score"], abs=1e-9)
    expected = {
        "gpt4": {"gpt-4": 47},
        "human": {"human_annotation_1": 70, "human_annotation_2": 63, "human_annotation_3": 67},
    }
    assert {source: sum(found) for source, found in right.items()} == expected[who]
    assert {len(found) for found in right.values()} == {100}


@pytest.mark.slow
def test_twins_and_the_nearest_neighbour_in_the_sample_of_training_rows(conformance, rows, labels):
    train = read_transitions(conformance("language/bytesized32_train_sample.jsonl.gz"))
    table = TrainingTable(list(train))
    twins = np.array([table.twin(row) is not None for row in rows])
    assert (twins == labels["twin_in_train_sample"]).all()
    lines = measured(table.neighbour(rows, range(len(rows))), rows)
    right = np.array(lines["official"])[:, 0]
    # A trial with another measure of likeness found 68.9 and 33.0.
    assert 100 * right.mean() == pytest.approx(68.48, abs=0.01)
    assert 100 * right[labels["changed"]].mean() == pytest.approx(32.40, abs=0.01)
