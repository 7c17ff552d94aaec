"""Trains readers of frames: what state a frame shows, and which action led from one frame to the next.

Special: measuring instruments, trained on true frames and put before dreamt ones. Errors of pixels and LPIPS
preferred copying the last frame to good models; where the gripper and the drawers *are* in a decoded frame
does not lie, and an action that cannot be recovered from two dreamt frames was not followed.

Absent: rewards; no reward of this project sees a reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from training.data import tensor_of
from training.fit import FitConfig, fit, seeded
from training.frame_data import FrameData
from training.run import Run
from worldmodels.nets.bfloat16 import autocast
from worldmodels.video.state_reader import StateReader, StateReaderConfig


@dataclass(frozen=True, kw_only=True)
class StateReaderRecipe:
    """One training run of a reader.

    Attributes:
        fit: Optimisation.
        batch: Cases per step.
        blur_px: Frames are blurred by Gaussians of up to this deviation, and
        noise: roughened by noise of up to this deviation (of a range of 1), both drawn per case: an instrument for
            dreams must not read blur as motion.
    """

    fit: FitConfig = field(
        default_factory=lambda: FitConfig(steps=4000, learning_rate=2e-3, evaluate_every=1000)
    )
    batch: int = 48
    blur_px: float = 0.0
    noise: float = 0.0


Labels = Callable[[FrameData], NDArray[np.float64]]
"""What is read: ``(N, T+1, D)`` for states, ``(N, T, D)`` for actions."""


def train_state_reader(
    run: Run,
    train: FrameData,
    validation: FrameData,
    labels: Labels,
    names: tuple[str, ...],
    recipe: StateReaderRecipe,
    *,
    frames: int,
    seed: int,
) -> StateReader:
    """Train a reader on true frames; an interrupted run goes on from its newest checkpoint."""
    known = labels(train)
    flat = known.reshape(-1, known.shape[-1])
    config = StateReaderConfig(
        names=names,
        centre=tuple(float(x) for x in flat.mean(axis=0)),
        scale=tuple(float(x) for x in np.maximum(flat.std(axis=0), 1e-4)),
        frames=frames,
        side=-(-max(train.image_size) // 16) * 16,
    )
    reader: StateReader = seeded(lambda: StateReader(config), seed)
    centre, scale = tensor_of(np.array(config.centre)), tensor_of(np.array(config.scale))

    def loss(step: int, generator: np.random.Generator) -> tuple[Tensor, dict[str, float | Tensor]]:
        episodes = generator.integers(0, len(train), recipe.batch)
        times = generator.integers(0, known.shape[1], recipe.batch)
        images = worsened(_cases(train, episodes, times, frames), recipe, generator)
        with autocast(images.device):
            raw = reader.standardised(images)
        truth = ((tensor_of(known[episodes, times]) - centre) / scale).float()
        return F.smooth_l1_loss(raw.float(), truth, beta=0.1), {}

    def evaluate() -> dict[str, float]:
        return state_reader_errors(reader, validation, labels, cases=800)

    fit(run, reader, loss, recipe.fit, seed=seed, evaluate=evaluate)
    return reader


def worsened(images: Tensor, recipe: StateReaderRecipe, generator: np.random.Generator) -> Tensor:
    """Frames ``(B, ..., 3, H, W)`` as a bad decoder would show them; the frames of one case are worsened alike."""
    if recipe.blur_px > 0:
        radius = max(1, int(np.ceil(2 * recipe.blur_px)))
        sigma = tensor_of(generator.uniform(0.05, recipe.blur_px, len(images))).float()
        place = torch.arange(-radius, radius + 1, dtype=torch.float32)
        kernel = torch.exp(-0.5 * (place / sigma[:, None]) ** 2)
        kernel = kernel / kernel.sum(1, keepdim=True)
        planes = images.flatten(1, -3).transpose(0, 1)  # every case is a group with a kernel of its own
        planes = F.pad(planes, (radius,) * 4, mode="replicate")
        for shape in ((len(images), 1, -1, 1), (len(images), 1, 1, -1)):
            planes = F.conv2d(planes, kernel.view(shape), groups=len(images))
        images = planes.transpose(0, 1).unflatten(1, images.shape[1:-2]).contiguous()
    if recipe.noise > 0:
        strength = generator.uniform(0, recipe.noise, (len(images), *[1] * (images.ndim - 1)))
        rough = generator.standard_normal(images.shape, dtype=np.float32) * strength.astype(np.float32)
        images = (images + tensor_of(rough)).clamp(0, 1)
    return images


def _cases(data: FrameData, episodes: NDArray[np.int64], times: NDArray[np.int64], frames: int) -> Tensor:
    """Single frames ``(B, 3, H, W)``, or frames and their successors ``(B, 2, 3, H, W)``."""
    if frames == 1:
        return data.images(episodes, times)
    return data.images(episodes[:, None], times[:, None] + np.arange(2))


@torch.no_grad()
def state_reader_errors(
    reader: StateReader, data: FrameData, labels: Labels, *, cases: int
) -> dict[str, float]:
    """Mean absolute error of each number on true frames, spread evenly over the data."""
    known = labels(data)
    index = np.linspace(0, known.shape[0] * known.shape[1] - 1, cases).astype(np.int64)
    episodes, times = np.divmod(index, known.shape[1])
    read = [
        reader(_cases(data, e, t, reader.config.frames))
        for e, t in zip(np.array_split(episodes, 8), np.array_split(times, 8), strict=True)
    ]
    errors = (torch.cat(read) - tensor_of(known[episodes, times]).float()).abs().mean(0)
    return {name: float(error) for name, error in zip(reader.config.names, errors, strict=True)}
