"""Teaches the encoders of a compressive tokenizer by themselves, before anything is painted from their codes.

Special: a narrow code must say where the gripper is before a decoder can paint it there, and through the decoder
that is learned very slowly (a gripper is a few pixels, and a batch of whole pictures is dear). So small heads, which
no checkpoint keeps, read the codes instead: one names the recorded state, the others paint pictures at once, with no
layer finer than the latents. Codes are rounded only after a while, as in the PushT tokenizer.

Absent: states where the data has none; then pictures are the only lesson.

Shapes: B contexts, T frames of each, Nd codes of D numbers, S numbers of a state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.data import tensor_of
from training.fit import FitConfig, fit, seeded
from training.frame_cases import Cases, CasesConfig, draw_cases
from training.frame_data import FrameData
from training.run import Run
from worldmodels.nets.bfloat16 import autocast
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer

_WIDTH = 256


@dataclass(frozen=True, kw_only=True)
class LessonsRecipe:
    """What codes are taught.

    Attributes:
        fit: Optimisation.
        cases: What a step sees.
        soft_until: Share of the steps with codes bounded but not rounded yet.
        state_weight: Of the smooth L1 error of the standardised state.
        picture_weight: Of the L1 errors of the two pictures, contexts and other frames.
        motion_weight: What pixels that differ from the context weigh more.
    """

    fit: FitConfig
    cases: CasesConfig = field(default_factory=CasesConfig)
    soft_until: float = 0.2
    state_weight: float = 1.0
    picture_weight: float = 4.0
    motion_weight: float = 8.0


class Lessons(nn.Module):
    """The heads and their loss.

    Args:
        tokenizer: Whose codes they read.
        data: Names the mean and the spread of states.
        recipe: Weights.
        seed: Of fresh weights.
    """

    centre: Tensor
    scale: Tensor

    def __init__(
        self, tokenizer: CompressiveTokenizer, data: FrameData, recipe: LessonsRecipe, *, seed: int
    ) -> None:
        super().__init__()
        self.recipe, config = recipe, tokenizer.config
        states = np.zeros((1, 0)) if data.states is None else data.states.reshape(-1, data.states.shape[-1])
        codes = tokenizer.dynamic_tokens * len(config.dynamic_levels)
        self.register_buffer("centre", tensor_of(states.mean(0)).float())
        self.register_buffer("scale", tensor_of(np.maximum(states.std(0), 1e-4)).float())

        def state_head() -> nn.Module:
            return nn.Sequential(
                nn.Linear(codes, _WIDTH),
                nn.SiLU(),
                nn.Linear(_WIDTH, _WIDTH),
                nn.SiLU(),
                nn.Linear(_WIDTH, states.shape[1]),
            )

        pixels = 3 * config.downscale**2  # of a latent

        def picture_head(more: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(config.latent_channels + more, _WIDTH // 4, 3, padding=1),
                nn.SiLU(),
                nn.Conv2d(_WIDTH // 4, pixels, 1),
            )

        self.state = seeded(state_head, seed) if states.shape[1] else None
        self.context = seeded(lambda: picture_head(0), seed + 1)
        self.picture = seeded(lambda: picture_head(pixels), seed + 2)

    def loss(
        self, tokenizer: CompressiveTokenizer, context_codes: Tensor, codes: Tensor, cases: Cases
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What the heads get wrong.

        Args:
            tokenizer: Its last linear maps turn codes into latents, which pictures are painted from.
            context_codes: ``(B, D, h, w)``.
            codes: ``(B, T, Nd, D)``.
            cases: What they are codes of.
        """
        recipe, side = self.recipe, tokenizer.config.downscale
        contexts, frames = cases.contexts, cases.frames.flatten(0, 1)
        before = contexts.repeat_interleave(cases.frames.shape[1], 0)
        again = F.pixel_shuffle(self.context(tokenizer.post_quant_conv(context_codes)), side)
        context = (again - contexts).abs().mean()
        known = F.pixel_unshuffle(before, side)
        latents = tokenizer.code_latents(codes.flatten(0, 1))
        painted = before + F.pixel_shuffle(self.picture(torch.cat([latents.float(), known], 1)), side)
        weights = cases.pixel_weights(recipe.motion_weight)
        picture = ((painted - frames).abs() * weights / weights.mean()).mean()
        total = recipe.picture_weight * (picture + context)
        parts = {"context": context.detach(), "picture": picture.detach()}
        if self.state is not None and cases.states is not None:
            read = self.state(codes.flatten(2))
            error = F.smooth_l1_loss(read.float(), (cases.states - self.centre) / self.scale, beta=0.1)
            total, parts["state"] = total + recipe.state_weight * error, error.detach()
        return total, parts


def teach_encoders(
    run: Run,
    tokenizer: CompressiveTokenizer,
    lessons: Lessons,
    train: FrameData,
    validation: FrameData,
    *,
    seed: int,
) -> None:
    """Train the encoders alone, in place; an interrupted run goes on from its newest checkpoint."""
    recipe = lessons.recipe
    pupil = nn.ModuleDict({"tokenizer": tokenizer, "lessons": lessons})

    def lesson(
        data: FrameData, generator: np.random.Generator, *, soft: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        cases = draw_cases(data, recipe.cases, generator)
        with autocast(cases.frames.device):
            codes = tokenizer.codes(cases.contexts, cases.frames, soft=soft)
            return lessons.loss(tokenizer, *codes, cases)

    def evaluate() -> dict[str, float]:
        parts = [
            lesson(validation, np.random.default_rng([seed, 7, part]), soft=False)[1] for part in range(12)
        ]
        return {name: float(np.mean([float(part[name]) for part in parts])) for name in parts[0]}

    def loss(step: int, generator: np.random.Generator) -> tuple[Tensor, dict[str, float | Tensor]]:
        total, parts = lesson(train, generator, soft=step < recipe.soft_until * recipe.fit.steps)
        return total, {**parts}

    fit(run, pupil, loss, recipe.fit, seed=seed, evaluate=evaluate)
