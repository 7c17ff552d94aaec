"""Trains the per-frame FSQ tokenizer of the single-step RT-1 world model.

Special: the published recipe (Appendix of the paper: L1 1, perceptual 1, adversarial 0.1 from step 10,000 on,
AdamW 5e-4, batch 16) as defaults; the loop is that of all frame tokenizers.

Absent: the compressive tokenizer, see ``training.compressive_tokenizers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from training.reconstruction import Reconstruction, ReconstructionConfig, train_reconstruction
from training.run import Run
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.frame_tokenizer import FrameTokenizer, FrameTokenizerConfig

Batch = Callable[[np.random.Generator, int], Tensor]
"""(generator, count) -> frames ``(count, 3, H, W)`` in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class FrameTokenizerRecipe:
    """One training run; the defaults are the published single-step tokenizer.

    Attributes:
        tokenizer: Sizes.
        losses: Losses and optimisation.
        batch: Frames per step.
        image_side: The smaller side of the frames, px.
    """

    tokenizer: FrameTokenizerConfig = field(default_factory=FrameTokenizerConfig)
    losses: ReconstructionConfig = field(default_factory=ReconstructionConfig)
    batch: int = 16
    image_side: int = 256


def train_frame_tokenizer(
    run: Run,
    frames: Batch,
    recipe: FrameTokenizerRecipe,
    *,
    seed: int,
    perceptual: Perceptual | None,
    evaluate: Callable[[FrameTokenizer], Mapping[str, float]] | None = None,
) -> FrameTokenizer:
    """Train a tokenizer; an interrupted run goes on from its newest checkpoint.

    Args:
        run: The run folder.
        frames: Draws training frames.
        recipe: Settings.
        seed: Of weights and batches.
        perceptual: Needed where the perceptual loss has a positive weight.
        evaluate: Validation metrics of the model, logged.

    Raises:
        ValueError, FloatingPointError: See ``training.reconstruction.train_reconstruction``.
    """
    model = FrameTokenizer(recipe.tokenizer, seed=seed)

    def reconstruct(generator: np.random.Generator) -> Reconstruction:
        target = frames(generator, recipe.batch)
        return Reconstruction(decoded=model(target)[0], target=target)

    train_reconstruction(
        run,
        model,
        reconstruct,
        recipe.losses,
        seed=seed,
        image_side=recipe.image_side,
        perceptual=perceptual,
        evaluate=None if evaluate is None else lambda: evaluate(model),
    )
    return model
