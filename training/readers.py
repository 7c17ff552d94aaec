"""A pose reader: frame -> agent and block pose, trained on true frames, used to judge decoded ones.

Special: it is a measuring instrument. The reader that judges (seed 1) is another one than the reader whose
encoder starts a tokenizer (seed 0), so instrument and measured thing share no weights. Mean squared error and
LPIPS preferred copying the last frame to better models; where the block *is* in a decoded frame does not lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.data import PushTData, pose_errors, tensor_of
from training.fit import FitConfig, fit, seeded
from training.run import Run
from worldmodels.checkpoints import find, read_config, read_weights
from worldmodels.nets.bfloat16 import autocast
from worldmodels.nets.keypoints import KeypointEncoder
from worldmodels.nets.weights import fill


@dataclass(frozen=True, kw_only=True)
class PoseReaderConfig:
    """Sizes of a ``PoseReader``."""

    image_size: int = 64
    arena_px: float = 512.0
    width: int = 48
    keypoints: int = 24
    hidden: int = 256


class PoseReader(nn.Module):
    """Reads agent x, y and block x, y, cosine, sine from a frame."""

    def __init__(self, config: PoseReaderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = KeypointEncoder(
            image_size=config.image_size, width=config.width, keypoints=config.keypoints, hidden=config.hidden
        )
        self.out = nn.Linear(config.hidden, 6)

    def forward(self, images_B3HW: Tensor) -> tuple[Tensor, Tensor]:
        """Agent ``(B, 2)`` px and block pose ``(B, 4)`` (x, y px, unit cosine and sine)."""
        raw = self.out(self.encoder(images_B3HW)).float()
        places = (raw[:, :4] + 1) * (self.config.arena_px / 2)
        return places[:, :2], torch.cat([places[:, 2:], F.normalize(raw[:, 4:], dim=-1, eps=1e-4)], -1)


@dataclass(frozen=True, kw_only=True)
class ReaderRecipe:
    """One training run of a reader."""

    reader: PoseReaderConfig = PoseReaderConfig()
    fit: FitConfig = FitConfig(steps=4000, learning_rate=2e-3)
    batch: int = 48


def train_reader(
    run: Run, train: PushTData, validation: PushTData, recipe: ReaderRecipe, *, seed: int
) -> PoseReader:
    """Train a reader on true frames; ``run.load`` resumes."""
    reader: PoseReader = seeded(lambda: PoseReader(recipe.reader), seed)
    half = recipe.reader.arena_px / 2

    def loss(step: int, generator: np.random.Generator) -> tuple[Tensor, dict[str, float | Tensor]]:
        episodes = generator.integers(0, len(train), recipe.batch)
        times = generator.integers(0, train.states.shape[1], recipe.batch)
        images = train.images(episodes, times).contiguous(memory_format=torch.channels_last)
        with autocast(images.device):
            features = reader.encoder(images)
        raw = reader.out(features.float())
        states = tensor_of(train.states[episodes, times]).float()
        truth = torch.cat([states[:, :4] / half - 1, states[:, 4:5].cos(), states[:, 4:5].sin()], 1)
        # Smooth L1: frames in which the agent has left the arena must not dominate.
        return F.smooth_l1_loss(raw, truth, beta=0.05), {}

    def evaluate() -> dict[str, float]:
        return reader_errors(reader, validation, frames=800)

    fit(run, reader, loss, recipe.fit, seed=seed, evaluate=evaluate)
    return reader


@torch.no_grad()
def reader_errors(reader: PoseReader, data: PushTData, *, frames: int) -> dict[str, float]:
    """Mean and median errors on true frames, spread evenly over the data."""
    index = np.linspace(0, len(data) * data.states.shape[1] - 1, frames).astype(np.int64)
    episodes, times = np.divmod(index, data.states.shape[1])
    agent, pose = reader(data.images(episodes, times))
    states = tensor_of(data.states[episodes, times])
    distance, angle = pose_errors(pose, data.poses(episodes, times))
    away = (agent - states[:, :2]).norm(dim=-1)
    return {
        "agent_px": float(away.median()),
        "block_px": float(distance.mean()),
        "block_px_median": float(distance.median()),
        "angle_deg": float(angle.mean()),
        "angle_deg_median": float(angle.median()),
    }


def load_reader(name: str | Path) -> PoseReader:
    """A pose reader by bundled name or folder.

    Raises:
        FileNotFoundError: Nothing of that name.
        ValueError: The folder holds something else or does not fit.
    """
    folder = find(name)
    config = read_config(folder)
    if config["kind"] != "pose_reader":
        raise ValueError(f"{folder} holds a {config['kind']!r}, expected a 'pose_reader'")
    reader = PoseReader(PoseReaderConfig(**config["reader"]))
    fill(reader, read_weights(folder, config), folder)
    return reader.eval()
