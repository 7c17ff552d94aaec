"""Lessons of codes: they are learned, only the encoder changes, and ids stay once encoders stand still."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.training.tiny_frames import TOKENIZER
from tests.training.toy_frames import toy_store
from training.code_lessons import Lessons, LessonsRecipe, teach_encoders
from training.compressive_tokenizers import CompressiveTokenizerRecipe, train_compressive_tokenizer
from training.fit import FitConfig
from training.frame_cases import Cases, CasesConfig
from training.frame_data import FrameData
from training.multi_step import encoders_sha256
from training.reconstruction import ReconstructionConfig
from training.run import Run
from worldmodels.video.compressive_tokenizer import ENCODERS, CompressiveTokenizer

CASES = CasesConfig(batch=4, frames=2, segment=5)
LESSONS = LessonsRecipe(
    fit=FitConfig(
        steps=30, learning_rate=5e-3, warmup_steps=3, evaluate_every=10, checkpoint_every=10, log_every=10
    ),
    cases=CASES,
)


def painting(**fit):
    fit = FitConfig(warmup_steps=0, **fit)
    return ReconstructionConfig(fit=fit, perceptual_weight=0, adversarial_weight=0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    store = toy_store(tmp_path_factory.mktemp("toy"))
    return FrameData.load(store, "train"), FrameData.load(store, "validation")


def taught(folder, data, recipe, *, resume=False):
    tokenizer = CompressiveTokenizer(TOKENIZER)
    lessons = Lessons(tokenizer, data[0], recipe, seed=0)
    run = Run(folder, recipe, 0, resume=resume)
    teach_encoders(run, tokenizer, lessons, *data, seed=0)
    return tokenizer, run


def test_lessons_are_learned_and_leave_the_decoders_alone(tmp_path, data):
    fresh = dict(CompressiveTokenizer(TOKENIZER).state_dict())
    tokenizer, run = taught(tmp_path / "run", data, LESSONS)
    lines = [line for line in run.metrics() if "validation/picture" in line]
    assert lines[-1]["validation/picture"] < 0.9 * lines[0]["validation/picture"]
    changed = {
        name.split(".")[0]
        for name, value in tokenizer.state_dict().items()
        if not torch.equal(value, fresh[name])
    }
    assert changed == {
        "cond_encoder",
        "encoder",
        "quant_conv",
        "quant_linear",
        "post_quant_conv",
        "post_quant_linear",
    }


def test_an_interrupted_lesson_goes_on_as_if_nothing_had_happened(tmp_path, data):
    whole, _ = taught(tmp_path / "whole", data, LESSONS)
    _, run = taught(tmp_path / "parts", data, LESSONS)
    (run.checkpoints()[-1] / "state.json").unlink()  # as if it had been killed after step 20
    resumed, _ = taught(tmp_path / "parts", data, LESSONS, resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_painting_leaves_ids_as_the_lessons_left_them(tmp_path, data):
    recipe = CompressiveTokenizerRecipe(
        tokenizer=TOKENIZER,
        losses=painting(steps=3, learning_rate=1e-2),
        cases=CASES,
        lessons=dataclasses.replace(LESSONS, fit=dataclasses.replace(LESSONS.fit, steps=3)),
    )
    before, _ = taught(tmp_path / "lessons", data, recipe.lessons)
    after = train_compressive_tokenizer(
        Run(tmp_path / "run", recipe, 0), *data, recipe, seed=0, perceptual=None
    )
    weights = before.state_dict()
    changed = {name for name, value in after.state_dict().items() if not torch.equal(value, weights[name])}
    assert {name.split(".")[0] for name in changed} == {
        "decoder",
        "cond_decoder",
        "post_quant_conv",
        "post_quant_linear",
    }
    assert not any(name.startswith(ENCODERS) for name in changed)
    assert encoders_sha256(after) == encoders_sha256(before)
    with torch.no_grad():
        after.quant_conv.bias += 1
    assert encoders_sha256(after) != encoders_sha256(before)


def test_a_tokenizer_is_trained_further_in_place(tmp_path, data):
    recipe = CompressiveTokenizerRecipe(
        tokenizer=TOKENIZER,
        losses=painting(steps=1, learning_rate=1e-4),
        cases=CASES,
    )
    begin = CompressiveTokenizer(TOKENIZER, seed=5)
    before = {name: value.clone() for name, value in begin.state_dict().items()}
    after = train_compressive_tokenizer(
        Run(tmp_path / "run", recipe, 0), *data, recipe, seed=0, perceptual=None, begin=begin
    )
    assert after is begin
    for name, value in after.state_dict().items():
        torch.testing.assert_close(value, before[name], atol=1e-3, rtol=0.01)
    larger = dataclasses.replace(recipe, tokenizer=dataclasses.replace(TOKENIZER, latent_channels=16))
    with pytest.raises(ValueError, match="other sizes than the recipe's"):
        train_compressive_tokenizer(
            Run(tmp_path / "larger", larger, 0), *data, larger, seed=0, perceptual=None, begin=begin
        )


def test_what_moves_weighs_more_and_nothing_else():
    contexts = torch.zeros(2, 3, 4, 4)
    frames = contexts[:, None].repeat(1, 3, 1, 1, 1)
    frames[1, 2, 0, 1, 1] = 0.5
    frames[0, 0, 1, 2, 2] = 0.05  # noise
    weights = Cases(contexts, frames, None).pixel_weights(4.0)
    assert weights.shape == (6, 1, 4, 4)
    assert weights[5, 0, 1, 1] == 5
    assert weights.sum() == 6 * 16 + 4
