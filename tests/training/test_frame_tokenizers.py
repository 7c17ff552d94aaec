"""The published tokenizer recipe at toy size: it learns, all three losses act, and it resumes exactly."""

import dataclasses

import numpy as np
import pytest
import torch

from training.fit import FitConfig
from training.frame_tokenizers import FrameTokenizerRecipe, train_frame_tokenizer
from training.reconstruction import ReconstructionConfig
from training.run import Run
from worldmodels.nets.discriminator import PatchDiscriminator, discriminator_loss, generator_loss
from worldmodels.video.frame_tokenizer import FrameTokenizerConfig

RECIPE = FrameTokenizerRecipe(
    tokenizer=FrameTokenizerConfig(
        block_out_channels=(8, 8), layers_per_block=1, latent_channels=8, norm_num_groups=4
    ),
    losses=ReconstructionConfig(
        fit=FitConfig(steps=24, learning_rate=3e-3, warmup_steps=1, checkpoint_every=8, evaluate_every=24),
        perceptual_weight=0.0,
        adversarial_from=12,
        discriminator_layers=3,
        discriminator_width=8,
    ),
    batch=4,
    image_side=16,
)


def squares(generator: np.random.Generator, count: int) -> torch.Tensor:
    frames = torch.ones(count, 3, 16, 16)
    for frame, (x, y) in zip(frames, generator.integers(0, 10, (count, 2)), strict=True):
        frame[:, y : y + 6, x : x + 6] = 0.2
    return frames


def test_learns_and_the_discriminator_joins_when_told(tmp_path):
    run = Run(tmp_path / "run", RECIPE, 0)
    train_frame_tokenizer(run, squares, RECIPE, seed=0, perceptual=None)
    lines = run.metrics()
    assert np.mean([line["l1"] for line in lines[-4:]]) < 0.7 * lines[0]["l1"]
    assert ["discriminator" in line for line in lines] == [step >= 12 for step in range(24)]


def test_resume_is_exact(tmp_path):
    whole = train_frame_tokenizer(Run(tmp_path / "a", RECIPE, 0), squares, RECIPE, seed=0, perceptual=None)
    calls = 0

    def failing(generator: np.random.Generator, count: int) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 19:
            raise RuntimeError("stop here")
        return squares(generator, count)

    with pytest.raises(RuntimeError, match="stop here"):
        train_frame_tokenizer(Run(tmp_path / "b", RECIPE, 0), failing, RECIPE, seed=0, perceptual=None)
    resumed = train_frame_tokenizer(
        Run(tmp_path / "b", RECIPE, 0, resume=True), squares, RECIPE, seed=0, perceptual=None
    )
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_needs_a_perceptual_metric_where_it_counts(tmp_path):
    recipe = dataclasses.replace(RECIPE, losses=dataclasses.replace(RECIPE.losses, perceptual_weight=1.0))
    with pytest.raises(ValueError, match="Perceptual"):
        train_frame_tokenizer(Run(tmp_path / "run", recipe, 0), squares, recipe, seed=0, perceptual=None)


def test_discriminator_losses_point_the_right_way():
    judge = PatchDiscriminator(layers=3, width=8, image_size=16)
    logits = judge(torch.rand(2, 3, 16, 16))
    assert logits.shape[:2] == (2, 1)
    good, bad = torch.full((4,), 2.0), torch.full((4,), -2.0)
    assert discriminator_loss(good, bad) == 0 < discriminator_loss(bad, good)
    assert generator_loss(good) < generator_loss(bad)
    with pytest.raises(ValueError, match="2 layers"):
        PatchDiscriminator(layers=1)
