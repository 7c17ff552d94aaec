"""Training of slot models, by likelihood and by rewards, and the tables."""

import json
from dataclasses import replace

import pytest
import torch

from tests.worldmodels.language.tiny_slots import tiny_slot_model, turns
from training.commands.evaluate import evaluate
from training.commands.train import train
from training.fit import FitConfig
from training.grpo_config import GRPOConfig
from training.grpo_loop import Rollout
from training.grpo_task import train_task
from training.jobs import Job
from training.provenance import weights_sha256
from training.run import Run
from training.text_data import TextCollectConfig, TextRows, collect_mistaken, collect_text_games
from training.text_mistaken import MistakenConfig
from training.text_searched import SearchedConfig
from training.text_slot_rlvr import SlotRLVRRecipe, SlotTask, balanced
from training.text_slots import SlotRecipe, exact_shares, slot_world, train_slots
from training.textgame_evaluate import TextTableConfig, evaluate_text_games
from training.textgame_recipes import FOLDS, TEXTGAME_RECIPES, _mostly_mistakes
from worldmodels.checkpoints import load
from worldmodels.language.slot_world import SlotWorldModel
from worldmodels.language.transitions import write_transitions


@pytest.fixture(scope="module")
def rows():
    model = tiny_slot_model()
    return TextRows.of(turns(limit=24), model.vocabulary, model.schema, max_answer=24)


def test_likelihood_falls_and_a_run_repeats_itself(rows, tmp_path):
    hashes = []
    for name in ("a", "b"):
        model = tiny_slot_model().train()
        recipe = SlotRecipe(
            fit=FitConfig(steps=12, learning_rate=1e-2, log_every=4, evaluate_every=12), batch=8
        )
        run = Run(tmp_path / name, recipe, 0)
        train_slots(run, model, rows, rows, recipe, seed=0)
        lines = [line for line in run.metrics() if "loss" in line]
        assert lines[-1]["loss"] < lines[0]["loss"]
        assert 0 <= lines[-1]["validation/greedy_exact"] <= 1
        hashes.append(weights_sha256(model))
    assert hashes[0] == hashes[1]


def test_exact_shares_tell_changed_from_unchanged(rows):
    shares = exact_shares(tiny_slot_model(), rows, count=16)
    assert {"greedy_exact", "sampled_exact_changed", "greedy_exact_unchanged", "sampled_unread"} <= set(
        shares
    )


@pytest.mark.parametrize("reward", ["exact", "property"])
def test_two_steps_of_grpo(rows, tmp_path, reward):
    model = tiny_slot_model()
    before = weights_sha256(model)
    recipe = SlotRLVRRecipe(
        grpo=GRPOConfig(
            group_size=8, prompts_per_step=8, minibatches=1, steps=2, learning_rate=1e-2, eval_every=2
        ),
        reward=reward,
        validation_rows=8,
    )
    task = SlotTask(model, rows, recipe)
    run = Run(tmp_path / "run", recipe, 0)
    train_task(run, model, task, task, recipe.grpo, seed=0)
    lines = list(run.metrics())
    assert all(line["logprob_gap"] < 1e-3 for line in lines if line["trained_tokens"])
    assert "eval/greedy_exact" in lines[-1]
    if any(line["informative_groups"] for line in lines):
        assert weights_sha256(model) != before


def test_rewards_are_those_of_the_states(rows):
    model = tiny_slot_model()
    task = SlotTask(model, rows, SlotRLVRRecipe(reward="property"))
    prompts = task.questions[:4]
    width = max(len(rows.answers[row]) for row in prompts)
    right = torch.zeros(4, width, dtype=torch.int64)
    for line, row in enumerate(prompts):
        right[line, : len(rows.answers[row])] = torch.tensor(rows.answers[row])
    rewards, parts = task.score(
        prompts, Rollout(tokens=right, logprobs=torch.zeros_like(right).float(), mask=right > 0)
    )
    assert rewards.tolist() == [1.0] * 4
    assert parts["exact"].tolist() == [1.0] * 4
    assert parts["unread"].tolist() == [0.0] * 4


def test_balance(rows):
    changed = [n for n in range(len(rows)) if rows.rows[n].after != rows.rows[n].before]
    assert balanced(rows, None) == list(range(len(rows)))
    assert balanced(rows, 0) == changed
    assert len(balanced(rows, 10)) == len(changed) + round(len(changed) / 10)
    with pytest.raises(ValueError, match="'exact' or 'property'"):
        SlotTask(tiny_slot_model(), rows, SlotRLVRRecipe(reward="official_binary"))


def test_the_table_has_its_baselines_and_keeps_finished_rows(tmp_path):
    asked, train = turns("boil-water", 3, 40), turns("boil-water", 3, 20)
    config = TextTableConfig(sampling_seeds=(0, 1))
    models = {"tiny": SlotWorldModel(tiny_slot_model()), "other": SlotWorldModel(tiny_slot_model(seed=1))}
    make = lambda: evaluate_text_games(  # noqa: E731
        models,
        asked,
        train,
        config,
        name="textgame-prediction",
        data={"folder": "x"},
        compare=[("tiny", "other")],
        folder=tmp_path,
        progress=False,
    )
    report = make()
    rows = report.table("all-rows").rows
    assert rows["perfect difference"]["exact/all"].value == 1
    assert rows["nothing changes"]["exact/changed"].value == 0
    assert rows["nothing changes"]["exact/unchanged"].value == 1
    assert rows["lookup in training"]["exact/all"].value > rows["nothing changes"]["exact/all"].value
    assert {"tiny, greedy", "tiny, sampled", "nearest neighbour"} <= set(rows)
    without = report.table("without-a-twin-in-training").rows
    assert without["lookup in training"] == {
        **without["nothing changes"],
        "seconds": without["lookup in training"]["seconds"],
    }
    assert set(report.table("comparison").rows) == {"tiny - other, sampled", "tiny - other, greedy"}
    assert make().table("all-rows").rows == rows
    assert not [note for note in report.table("all-rows").notes if "twin" in note]


def test_a_group_of_rows_without_a_table_is_named():
    report = evaluate_text_games(
        {}, turns(variation=3, limit=9), turns(variation=4, limit=9), TextTableConfig(), name="x", data={}
    )
    assert [table.name for table in report.tables] == ["all-rows"]
    assert report.tables[0].notes[-3:] == (
        "without a twin in training: all of these rows, so there is no table of them",
        "action seen in training: no row, so there is no table of them",
        "action not seen in training: all of these rows, so there is no table of them",
    )


@pytest.mark.slow
def test_recipes_end_in_models_that_load_and_are_evaluated(tmp_path):
    data = tmp_path / "data"
    collect_text_games(
        data, TextCollectConfig(variations=1, rows=4, search=SearchedConfig(budget=30, rows=4))
    )
    base = TEXTGAME_RECIPES["textgame-base"].run(Job(folder=tmp_path / "base", data=data, steps=2))
    assert isinstance(load(base), SlotWorldModel)
    mistakes = TEXTGAME_RECIPES["textgame-base-mistakes"]
    with pytest.raises(ValueError, match="--world-model"):
        mistakes.run(Job(folder=tmp_path / "none", data=data, steps=1, base=str(base)))
    lessons = MistakenConfig(budget=30, wrong=4, right=2)
    collect_mistaken(data, slot_world(str(base)), TextCollectConfig(variations=1, mistaken=lessons))
    own = ("textgame-base-again", "textgame-base-mistakes")
    bundled = (
        "textgame-more-mle",
        "textgame-rlvr",
    )  # need a base that knows something, to be unsure of the rest
    begins = {**dict.fromkeys(own, str(base)), **dict.fromkeys(bundled, "textgame-base")}
    for name, begin in begins.items():
        job = Job(folder=tmp_path / name, data=data, steps=1, base=begin)
        assert load(TEXTGAME_RECIPES[name].run(job)).model.schema == load(begin).model.schema
    evaluate(
        "textgame",
        models=(str(base),),
        windows=40,
        data=data,
        folder=tmp_path / "kept",
        results=tmp_path / "results",
    )
    written = json.loads((tmp_path / "results" / "textgame-prediction.json").read_text())
    assert "games-not-seen-in-training" in written["tables"]
    with pytest.raises(ValueError, match="chess"):
        evaluate("textgame", models=(str(base),), data=data, hold_out=("chess",), results=tmp_path / "r")


def test_mistakes_are_read_four_times_beside_as_many_other_rows():
    rows = [
        replace(row, id=f"pot/{number}{mark}/0")
        for number, row in enumerate(turns(variation=0, limit=90))
        for mark in ("", "-mistaken")[: 1 + (number < 5)]
    ]
    chosen = _mostly_mistakes(rows, seed=0)
    mistakes = [row for row in rows if row.id.endswith("-mistaken/0")]
    assert [row for row in chosen if row in mistakes] == mistakes * 4
    others = [row for row in chosen if row not in mistakes]
    assert len(others) == len({row.id for row in others}) == 20
    assert _mostly_mistakes(rows, seed=1) != chosen


@pytest.fixture
def two_games(tmp_path):
    """A folder with turns of two games of ByteSized32 by name, of different folds, and with a broken line."""
    data = tmp_path / "data"
    renamed = [
        type(row)(id=row.id, game=game, before=row.before, action=row.action, after=row.after)
        for game in (FOLDS["1"][0], FOLDS["2"][0])
        for variation in range(30)
        for row in turns(variation=variation, limit=90)[::30]
    ]
    write_transitions(data / "train.jsonl.gz", renamed)
    (data / "more_train.jsonl").write_text("{broken\n")
    return data


def test_the_small_model_has_a_name_that_may_be_written_with_underscores(two_games, tmp_path, caplog):
    train("textgame_bytesized32_small", data=two_games, folder=tmp_path / "run", steps=1)
    assert load(tmp_path / "run" / "model").protocol["environment"] == "ByteSized32"
    assert len(caplog.messages) == 1
    assert "more_train.jsonl:1: " in caplog.messages[0]


def test_folds_train_on_no_row_of_their_games(two_games, tmp_path):
    games = [game for fold in FOLDS.values() for game in fold]
    assert len(games) == len(set(games)) == 21
    left, data = FOLDS["1"][0], two_games
    folder = TEXTGAME_RECIPES["textgame-bytesized32-fold-1"].run(
        Job(folder=tmp_path / "run", data=data, steps=1)
    )
    assert left in (folder.parent / "manifest.json").read_text()
    assert load(folder).protocol["environment"] == "ByteSized32"
