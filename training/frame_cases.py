"""What a frame tokenizer is shown: a context frame and a few later frames of one episode, drawn from a segment.

Special: the defaults are the published multi-step tokenizer's (segments of 32 frames, 7 of them drawn; episodes that
hold no whole segment are an error, not shorter segments).

Absent: models and losses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.data import tensor_of
from training.frame_data import FrameData

_MOVED = 0.1  # from when on a pixel differs from the context's, of a range of 1


@dataclass(frozen=True, kw_only=True)
class CasesConfig:
    """How to draw.

    Attributes:
        batch: Contexts.
        frames: Frames drawn with each.
        segment: Frames from the context to the last frame that may be drawn with it, both counted.
        whole_segments: Contexts are frames that a whole segment begins with, as published. False: any frame but an
            episode's last, whose end then cuts the segment.
        first_context: Share of the cases whose context is the episode's first frame, as in an environment.
    """

    batch: int = 16
    frames: int = 7
    segment: int = 32
    whole_segments: bool = True
    first_context: float = 0.0


@dataclass(frozen=True, eq=False)
class Cases:
    """B contexts with T later frames of the same episodes.

    Attributes:
        contexts: ``(B, 3, H, W)`` float32 in [0, 1].
        frames: ``(B, T, 3, H, W)``, likewise.
        states: What the frames show, ``(B, T, S)`` float32, or None where the data has no states.
    """

    contexts: Tensor
    frames: Tensor
    states: Tensor | None

    def pixel_weights(self, motion: float) -> Tensor:
        """Weights ``(B * T, 1, H, W)`` of the frames' pixels: 1, ``motion`` more where the context differs."""
        differs = (self.frames - self.contexts[:, None]).abs().amax(dim=2, keepdim=True) > _MOVED
        return 1 + motion * differs.flatten(0, 1).to(torch.float32)


def draw_cases(data: FrameData, config: CasesConfig, generator: np.random.Generator) -> Cases:
    """One batch.

    Raises:
        ValueError: Whole segments are asked for, and the episodes are shorter.
    """
    last = data.steps - 1
    if config.whole_segments:
        data.check_frames(config.segment, "a segment")
        last = data.steps - config.segment + 1
    episodes = generator.integers(0, len(data), config.batch)
    contexts = generator.integers(0, last + 1, config.batch)
    contexts[generator.random(config.batch) < config.first_context] = 0
    reach = np.minimum(contexts + config.segment - 1, data.steps)
    times = generator.integers(contexts[:, None], reach[:, None] + 1, (config.batch, config.frames))
    states = None if data.states is None else tensor_of(data.states[episodes[:, None], times]).float()
    return Cases(data.images(episodes, contexts), data.images(episodes[:, None], times), states)
