"""Trains the compressive tokenizer of the multi-step world model.

Special: a case is a context frame and a few later frames of one episode, drawn from a segment; the published
recipe (segments of 32 frames, 7 of them sampled, L1 1, perceptual 1, adversarial 0.1 from step 10,000 on,
AdamW 5e-4, batch 16, a tenth of the cross attention dropped) as defaults; the loop is that of all frame tokenizers.

Absent: the tokens' fate in the world model (``training.multi_step``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from training.code_lessons import Lessons, LessonsRecipe, teach_encoders
from training.fit import FitConfig
from training.frame_cases import CasesConfig, draw_cases
from training.frame_data import FrameData
from training.reconstruction import Reconstruction, ReconstructionConfig, train_reconstruction
from training.rewards.image_metrics import mae, psnr, ssim
from training.run import Run
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.compressive_config import CompressiveTokenizerConfig
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer


@dataclass(frozen=True, kw_only=True)
class CompressiveTokenizerRecipe:
    """One training run; the defaults are the published multi-step tokenizer.

    Attributes:
        tokenizer: Sizes.
        losses: Losses and optimisation.
        cases: What a step sees.
        motion_weight: What pixels that differ from the context weigh more in the L1 loss: a gripper is a few pixels.
        lessons: The encoders are taught first by themselves, and then ids stay what they are while painting them is
            trained: a world model of them can be trained at the same time. None: all at once, as published.
    """

    tokenizer: CompressiveTokenizerConfig = field(
        default_factory=lambda: CompressiveTokenizerConfig(attention_dropout=0.1)
    )
    losses: ReconstructionConfig = field(
        default_factory=lambda: ReconstructionConfig(
            fit=FitConfig(steps=600_000, learning_rate=5e-4, decay_from=1.0, warmup_steps=1000)
        )
    )
    cases: CasesConfig = field(default_factory=CasesConfig)
    motion_weight: float = 0.0
    lessons: LessonsRecipe | None = None

    def __post_init__(self) -> None:
        if self.lessons is not None and self.tokenizer.attention_dropout > 0:
            raise ValueError(
                f"attention_dropout is {self.tokenizer.attention_dropout}, but after lessons ids must stay what they"
                " are; set it to 0, or lessons to None"
            )


def check_data(data: FrameData, recipe: CompressiveTokenizerRecipe) -> None:
    """Check that a recipe can be trained on these episodes.

    Raises:
        ValueError: Frames of another size than the tokenizer's, or episodes shorter than the recipe's segments.
    """
    data.check_image_size(recipe.tokenizer.image_size, "the tokenizer")
    if recipe.cases.whole_segments:
        data.check_frames(recipe.cases.segment, "a segment")


def train_compressive_tokenizer(
    run: Run,
    train: FrameData,
    validation: FrameData,
    recipe: CompressiveTokenizerRecipe,
    *,
    seed: int,
    perceptual: Perceptual | None,
    begin: CompressiveTokenizer | None = None,
) -> CompressiveTokenizer:
    """Train a tokenizer; an interrupted run goes on from its newest checkpoint.

    Args:
        run: The run folder; lessons have one of their own in it.
        train: What is learned from.
        validation: What is logged.
        recipe: Settings.
        seed: Of fresh weights and of batches.
        perceptual: Needed where the perceptual loss has a positive weight.
        begin: Is trained further, in place; None: a fresh tokenizer.

    Raises:
        ValueError: ``begin`` is of other sizes than the recipe's; else as for ``check_data`` and
            ``train_reconstruction``.
    """
    check_data(train, recipe)
    if begin is not None and begin.config != recipe.tokenizer:
        raise ValueError(
            f"the tokenizer to begin with is of other sizes than the recipe's: {begin.config}; train a fresh one"
        )
    tokenizer = begin or CompressiveTokenizer(recipe.tokenizer, seed=seed)
    tokenizer.to(torch.get_default_device())
    if recipe.lessons is not None:
        lessons = Lessons(tokenizer, train, recipe.lessons, seed=seed)
        first = Run(
            run.folder / "encoders",
            {"tokenizer": recipe.tokenizer, "lessons": recipe.lessons},
            seed,
            data_hash=run.manifest["data_hash"],
            resume=True,  # the outer run has checked what it goes on with
        )
        teach_encoders(first, tokenizer, lessons, train, validation, seed=seed)

    def reconstruct(generator: np.random.Generator) -> Reconstruction:
        cases = draw_cases(train, recipe.cases, generator)
        contexts, frames = cases.contexts, cases.frames
        with _dropout_of(generator):
            again_context, again, _ = tokenizer(contexts, frames, train_encoders=recipe.lessons is None)
        # Contexts first, so that a limited perceptual loss looks at them: whatever stands still is seen through them.
        return Reconstruction(
            decoded=torch.cat([again_context, again.flatten(0, 1)]),
            target=torch.cat([contexts, frames.flatten(0, 1)]),
            weights=torch.cat([torch.ones_like(contexts[:, :1]), cases.pixel_weights(recipe.motion_weight)]),
        )

    train_reconstruction(
        run,
        tokenizer,
        reconstruct,
        recipe.losses,
        seed=seed,
        image_side=min(recipe.tokenizer.image_size),
        perceptual=perceptual,
        evaluate=lambda: reconstruction_errors(tokenizer, validation, perceptual=perceptual, episodes=24),
    )
    return tokenizer


@contextmanager
def _dropout_of(generator: np.random.Generator) -> Iterator[None]:
    """What is dropped is a function of a step's own generator, so that a resumed run drops what it would have dropped.

    Torch's global generators are put back afterwards.
    """
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
        torch.manual_seed(int(generator.integers(2**62)))
        yield


@torch.no_grad()
def reconstruction_errors(
    model: CompressiveTokenizer, data: FrameData, *, perceptual: Perceptual | None, episodes: int
) -> dict[str, float]:
    """How close decoded frames are, seen from the episode's first frame; and how many ids stay from frame to frame."""
    rows = np.arange(min(episodes, len(data)))
    times = np.linspace(0, data.steps - 1, 5).astype(np.int64)
    results: dict[str, list[Tensor]] = {
        name: [] for name in ("mae", "psnr", "ssim", "context_psnr", "kept_ids")
    }
    if perceptual is not None:
        results["lpips"] = []
    for part in np.array_split(rows, max(1, len(rows) // 8)):
        contexts = data.images(part, np.zeros_like(part))
        frames = data.images(part[:, None], times)
        after = data.images(part[:, None], times + 1)
        ids, seen = model.encode_context(contexts)
        codes = model.encode(seen, frames)
        context, features = model.decode_context(ids)
        where = torch.arange(len(part)).repeat_interleave(len(times))
        decoded = model.decode(features, codes.flatten(0, 1), rows=where).clamp(0, 1)
        target = frames.flatten(0, 1)
        results["mae"].append(mae(decoded, target))
        results["psnr"].append(psnr(decoded, target))
        results["ssim"].append(ssim(decoded, target))
        results["context_psnr"].append(psnr(context.clamp(0, 1), contexts))
        results["kept_ids"].append((codes == model.encode(seen, after)).float().mean(-1).flatten())
        if perceptual is not None:
            results["lpips"].append(perceptual.distance(decoded, target))
    return {name: float(torch.cat(values).mean()) for name, values in results.items()}
