"""From episodes to checkpoints at toy size, by the lines that train the drawer models and the published ones."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import worldmodels
from tests.training.tiny_frames import TOKENIZER
from tests.training.toy_frames import toy_store
from training.compressive_tokenizers import (
    CompressiveTokenizerRecipe,
    reconstruction_errors,
    train_compressive_tokenizer,
)
from training.fit import FitConfig
from training.frame_cases import CasesConfig, draw_cases
from training.frame_data import FrameData
from training.grpo_config import GRPOConfig
from training.jobs import Job
from training.multi_step import MultiStepRecipe
from training.multi_step_recipes import MultiStepSettings, train_base, train_more, train_rlvr
from training.multi_step_rlvr import MultiStepRLVRRecipe
from training.paper_recipes import PAPER_RECIPES, RT1
from training.paper_recipes import TOKENIZER as PAPER_TOKENIZER
from training.recipes import RECIPES
from training.reconstruction import ReconstructionConfig
from training.rewards.frames import FrameRewardConfig
from training.run import Run
from worldmodels.api import History
from worldmodels.checkpoints import save, tokenizer_config
from worldmodels.nets.llama import Llama, LlamaConfig
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
    actions = FrameData.load(data, "train").actions
    np.testing.assert_allclose(worldmodels.load(base).action_bins.low, actions.min((0, 1)))


def test_the_published_recipes_have_the_published_sizes():
    assert set(PAPER_RECIPES) <= set(RECIPES)
    with torch.device("meta"):
        tokenizer = CompressiveTokenizer(PAPER_TOKENIZER.tokenizer)
        layout_vocab = 2 * 4375 + 256 + 2
        llama = Llama(dataclasses.replace(RT1.transformer, vocab_size=layout_vocab))
    assert sum(parameter.numel() for parameter in tokenizer.parameters()) == 129_448_016
    assert sum(parameter.numel() for parameter in llama.parameters()) == 127_101_696
