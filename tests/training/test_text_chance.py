"""How likely recorded answers are, and the questions that post-training is given."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from tests.worldmodels.language.tiny_slots import tiny_slot_model, turns
from training.grpo_config import GRPOConfig
from training.jobs import Job
from training.text_chance import chances, uncertain
from training.text_data import TextRows
from training.text_slot_rlvr import SlotTask
from training.textgame_recipes import PROTOCOL, RLVR, TEXTGAME_RECIPES, post_train
from worldmodels.checkpoints import load, save
from worldmodels.language.slot_world import slot_config
from worldmodels.language.transitions import write_transitions


@pytest.fixture(scope="module")
def rows():
    model = tiny_slot_model()
    return TextRows.of(turns(limit=24), model.vocabulary, model.schema, max_answer=24)


def test_chances_are_those_of_sampled_answers(rows):
    model = tiny_slot_model()
    found = chances(model, rows)
    assert ((found > 0) & (found <= 1)).all()
    row = int(found.argmax())
    draws = 4000
    said = model.answer(
        [rows.questions[row]], seeds=torch.arange(draws), num_samples=draws, temperature=1.0
    ).tokens.tolist()
    answer = rows.answers[row]
    share = np.mean([tokens[: len(answer)] == answer for tokens in said])
    assert abs(share - found[row]) < 4 * (found[row] * (1 - found[row]) / draws) ** 0.5


def test_each_chance_is_its_own_whatever_is_asked_beside(rows):
    model = tiny_slot_model()
    alone = [float(chances(model, rows.select([number]))[0]) for number in range(len(rows))]
    np.testing.assert_allclose(chances(model, rows), alone, rtol=1e-4)


def test_uncertain_rows_lie_between_and_keep_their_order(rows):
    model = tiny_slot_model()
    found = chances(model, rows)
    low, high = np.quantile(found, [0.25, 0.75])
    kept = uncertain(model, rows, (float(low), float(high)))
    assert kept == [number for number in range(len(rows)) if low < found[number] < high]
    assert 0 < len(kept) < len(rows)


def test_selected_rows_keep_question_and_answer_together(rows):
    few = rows.select([5, 2])
    assert few.rows == [rows.rows[5], rows.rows[2]]
    assert few.questions == [rows.questions[5], rows.questions[2]]
    assert few.answers == [rows.answers[5], rows.answers[2]]


@pytest.mark.parametrize("between", [(0.5, 0.5), (0.7, 0.2), (-0.1, 0.5), (0.5, 1.2), (float("nan"), 0.5)])
def test_no_interval_of_probabilities(rows, between):
    with pytest.raises(ValueError, match="two probabilities"):
        uncertain(tiny_slot_model(), rows, between)


def test_nothing_between(rows):
    with pytest.raises(ValueError, match="none of"):
        uncertain(tiny_slot_model(), rows, (0.999, 1.0))


def test_recipes_ask_only_uncertain_questions(rows, tmp_path):
    model = tiny_slot_model()
    save(tmp_path / "base", model, {**slot_config(model), "protocol": PROTOCOL}, card="tiny")
    for split in ("posttrain", "validation"):
        write_transitions(tmp_path / "data" / f"{split}.jsonl.gz", rows.rows)
    likeliest = np.sort(chances(model, rows))[-2:]
    assert likeliest[1] < RLVR.chance[0]  # an untrained model knows no answer well enough to be taught so
    job = Job(data=tmp_path / "data", folder=tmp_path / "run", base=str(tmp_path / "base"))
    for name in ("textgame-rlvr", "textgame-more-mle"):
        with pytest.raises(ValueError, match="train the model longer"):
            TEXTGAME_RECIPES[name].run(dataclasses.replace(job, folder=tmp_path / name))
    one = (float(likeliest.mean()), 1.0)
    grpo = GRPOConfig(group_size=2, prompts_per_step=2, minibatches=1, steps=1)
    assert load(post_train(job, dataclasses.replace(RLVR, grpo=grpo, chance=one), "tiny"))
    assert not (job.folder / "best.safetensors").exists()


def test_post_training_ends_with_the_weights_that_are_best_on_validation(rows, tmp_path, caplog, monkeypatch):
    model = tiny_slot_model()
    save(tmp_path / "base", model, {**slot_config(model), "protocol": PROTOCOL}, card="tiny")
    data = tmp_path / "data"
    for split in ("posttrain", "validation"):
        write_transitions(data / f"{split}.jsonl.gz", rows.rows)
        (data / f"more_{split}.jsonl").write_text("{broken\n")  # named, and costs nothing else
    grpo = GRPOConfig(
        group_size=8, prompts_per_step=8, minibatches=1, steps=3, learning_rate=1e-2, eval_every=1
    )
    job = Job(data=data, folder=tmp_path / "run", base=str(tmp_path / "base"))
    recipe = dataclasses.replace(RLVR, grpo=grpo, chance=None)
    seen: list[torch.Tensor] = []

    def validate(task, model):
        seen.append(parameters_to_vector(model.parameters()).detach().clone())
        return {"sampled_exact": (0.1, 0.3, 0.2)[len(seen) - 1]}

    monkeypatch.setattr(SlotTask, "validate", validate)
    # An untrained model says nothing that earns anything; this reward differs.
    monkeypatch.setattr(SlotTask, "score", lambda task, prompts, rollout: rollout.tokens[:, 0].float())
    ended = parameters_to_vector(load(post_train(job, recipe, "tiny")).model.parameters()).detach()
    apart = [float((ended - weights).abs().max()) for weights in seen]
    assert apart[1] < 1e-3  # saved in half precision
    assert min(apart[0], apart[2]) > 5e-3
    assert [message.split(": ")[1].rpartition("/")[2] for message in caplog.messages] == [
        "more_posttrain.jsonl:1",
        "more_validation.jsonl:1",
    ]
