"""From episodes to checkpoints at toy size, by the lines that train the drawer models and the published ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import worldmodels
from tests.training.tiny_frames import TOKENIZER
from tests.training.toy_frames import toy_store
from training.code_lessons import LessonsRecipe
from training.compressive_tokenizers import (
    CompressiveTokenizerRecipe,
    reconstruction_errors,
    train_compressive_tokenizer,
)
from training.fit import FitConfig
from training.frame_cases import CasesConfig, draw_cases
from training.frame_data import FrameData
from training.grpo_config import GRPOConfig
from training.jobs import Job, training_hours
from training.multi_step import MultiStepRecipe
from training.multi_step_recipes import MultiStepSettings, train_base, train_more, train_rlvr
from training.multi_step_rlvr import MultiStepRLVRRecipe
from training.reconstruction import ReconstructionConfig
from training.rewards.frames import FrameRewardConfig
from training.run import Run
from worldmodels.api import History
from worldmodels.checkpoints import load_compressive_tokenizer, save, tokenizer_config
from worldmodels.folders import find
from worldmodels.nets.llama import LlamaConfig
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer

FIT = FitConfig(steps=3, learning_rate=1e-3, warmup_steps=1, evaluate_every=3, checkpoint_every=3)
SETTINGS = MultiStepSettings(
    title="Toy",
    tokenizer="none is bundled",
    base="none either",
    transformer=LlamaConfig(
        vocab_size=1, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    ),
    bins=None,
    protocol={"environment": "toy", "image_size": [16, 32]},
    mle=MultiStepRecipe(fit=FIT, batch=4, windows_per_episode=2),
    shared_rows=True,
)
RLVR = MultiStepRLVRRecipe(
    grpo=GRPOConfig(group_size=2, prompts_per_step=2, minibatches=1, steps=1, checkpoint_every=1),
    reward=FrameRewardConfig(lpips=0.0),
    network="alex",
)
RECIPE = CompressiveTokenizerRecipe(
    tokenizer=TOKENIZER,
    losses=ReconstructionConfig(
        fit=dataclasses.replace(FIT, steps=25, learning_rate=5e-3, evaluate_every=25),
        perceptual_weight=0.0,
        adversarial_weight=0.0,
    ),
    cases=CasesConfig(batch=4, segment=5, frames=2, first_context=0.5),
    motion_weight=2.0,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return toy_store(tmp_path_factory.mktemp("toy"))


def test_cases_are_a_context_and_later_frames_of_one_segment(data):
    frames = FrameData.load(data, "train")
    config = dataclasses.replace(RECIPE.cases, batch=64)
    cases = draw_cases(frames, config, np.random.default_rng(0))
    contexts, later = cases.contexts, cases.frames
    assert (contexts.shape, later.shape) == ((64, 3, 16, 32), (64, 2, 3, 16, 32))
    stored = {
        (name, time): frame.tobytes()
        for name in frames.ids
        for time, frame in enumerate(data.episode(name).observations)
    }
    places: dict[bytes, list[tuple[str, int]]] = {}
    for place, content in stored.items():
        places.setdefault(content, []).append(place)

    def found(frame: torch.Tensor) -> list[tuple[str, int]]:
        return places[(frame * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy().tobytes()]

    for row in range(64):
        for frame in later[row]:
            pairs = [(a, b) for a in found(contexts[row]) for b in found(frame) if a[0] == b[0]]
            assert any(0 <= b[1] - a[1] < config.segment for a, b in pairs)


def test_segments_are_whole_unless_an_episodes_end_may_cut_them(data):
    frames = FrameData.load(data, "train")  # 11 frames each
    numbered = np.broadcast_to(np.arange(11.0)[:, None], (len(frames), 11, 1))
    frames = dataclasses.replace(frames, states=numbered)
    generator = np.random.default_rng(0)

    def times(**settings: Any) -> np.ndarray:
        """When the frames are that are drawn with a context, ``(batch, frames)``."""
        states = draw_cases(frames, CasesConfig(batch=60, frames=150, **settings), generator).states
        assert states is not None
        return states.numpy()[..., 0]

    whole = times(segment=9)
    assert set(whole.min(1)) == {0, 1, 2}  # contexts: they may be drawn, too
    assert set(whole.max(1) - whole.min(1)) == {8}
    cut = times(segment=9, whole_segments=False)
    assert set(cut.min(1)) >= {0, 5, 9}
    assert cut.max() == 10
    assert set(times(segment=11).min(1)) == {0}
    with pytest.raises(ValueError, match=r"a segment has 12 frames.* have 11; .*convert --length 11 or more"):
        times(segment=12)
    assert times(segment=12, whole_segments=False).max() == 10


def test_dropped_attention_is_resumed_exactly_and_leaves_torchs_generator_alone(tmp_path, data):
    train, validation = FrameData.load(data, "train"), FrameData.load(data, "validation")
    dropping = dataclasses.replace(TOKENIZER, attention_dropout=0.5)
    fit = dataclasses.replace(RECIPE.losses.fit, steps=4, checkpoint_every=2)
    recipe = dataclasses.replace(
        RECIPE, tokenizer=dropping, losses=dataclasses.replace(RECIPE.losses, fit=fit)
    )

    def trained(name: str, recipe: CompressiveTokenizerRecipe = recipe) -> dict[str, torch.Tensor]:
        run = Run(tmp_path / name, recipe, 0, resume=True)
        model = train_compressive_tokenizer(run, train, validation, recipe, seed=0, perceptual=None)
        assert not model.training
        return model.state_dict()

    before = torch.get_rng_state()
    whole = trained("whole")
    assert torch.equal(torch.get_rng_state(), before)
    trained("parts")
    (Run(tmp_path / "parts", recipe, 0, resume=True).checkpoints()[-1] / "state.json").unlink()
    torch.rand(3)  # nobody's business
    resumed = trained("parts")
    assert all(torch.equal(value, whole[name]) for name, value in resumed.items())
    plain = trained("plain", dataclasses.replace(recipe, tokenizer=TOKENIZER))
    assert any(not torch.equal(value, whole[name]) for name, value in plain.items())
    with pytest.raises(ValueError, match=r"attention_dropout is 0\.5, but after lessons ids must stay"):
        dataclasses.replace(recipe, lessons=LessonsRecipe(fit=fit))


def test_a_tokenizer_stored_before_there_was_dropout_loads(tmp_path):
    tokenizer = CompressiveTokenizer(dataclasses.replace(TOKENIZER, attention_dropout=0.1))
    config = tokenizer_config(tokenizer)
    assert load_compressive_tokenizer(
        save(tmp_path / "new", tokenizer, config, card="")
    ).config.attention_dropout
    del config["tokenizer"]["attention_dropout"]
    assert load_compressive_tokenizer(save(tmp_path / "old", tokenizer, config, card="")).config == TOKENIZER


def test_the_tokenizer_learns(tmp_path, data):
    train, validation = FrameData.load(data, "train"), FrameData.load(data, "validation")
    before = reconstruction_errors(
        CompressiveTokenizer(TOKENIZER).eval(), validation, perceptual=None, episodes=3
    )
    run = Run(tmp_path / "run", RECIPE, 0)
    tokenizer = train_compressive_tokenizer(run, train, validation, RECIPE, seed=0, perceptual=None)
    after = reconstruction_errors(tokenizer, validation, perceptual=None, episodes=3)
    assert after["mae"] < 0.6 * before["mae"]
    assert run.metrics()[-1]["validation/mae"] == pytest.approx(after["mae"], rel=1e-3)
    wrong = dataclasses.replace(RECIPE, tokenizer=dataclasses.replace(TOKENIZER, image_size=(16, 48)))
    with pytest.raises(ValueError, match=r"\(16, 32\) px, the tokenizer is for \(16, 48\)"):
        train_compressive_tokenizer(run, train, validation, wrong, seed=0, perceptual=None)


def test_from_episodes_to_post_trained_models(tmp_path, data):
    tokenizer = CompressiveTokenizer(TOKENIZER).eval()
    kept = save(tmp_path / "tokenizer", tokenizer, tokenizer_config(tokenizer), card="", dtype=torch.float32)

    def job(name: str, **more: str) -> Job:
        return Job(folder=tmp_path / name, data=data.folder, **more)

    base = train_base(job("base", tokenizer=str(kept)), SETTINGS)
    further = train_more(job("more", base=str(base)), SETTINGS, SETTINGS.mle)
    rlvr = train_rlvr(job("rlvr", base=str(base)), SETTINGS, RLVR, "RLVR")
    frame = data.episode(data.ids()[0]).observations[0]
    for folder in (base, further, rlvr):
        model = worldmodels.load(folder)  # with its tokenizer, from wherever it lies
        assert model.protocol["image_size"] == [16, 32]
        _, predictions = model.step(
            model.start([History(observations=[frame])], seeds=[0]), np.zeros((1, 13))
        )
        assert predictions.observations().shape == (1, 16, 32, 3)
        assert "Toy, " in (folder / "card.md").read_text()
        hours = training_hours(folder)
        assert hours is not None
        assert 0 <= hours < 0.1
    actions = FrameData.load(data, "train").actions
    np.testing.assert_allclose(worldmodels.load(base).action_bins.low, actions.min((0, 1)))


def test_hours_of_training_are_read_from_cards(tmp_path):
    for name in ("drawer-base", "drawer-rlvr"):
        assert 0.5 < training_hours(find(name)) < 24
    (tmp_path / "card.md").write_text("# Somebody else's\n\n- recipe: none\n")
    assert training_hours(tmp_path) is None
    assert training_hours(tmp_path / "none") is None
