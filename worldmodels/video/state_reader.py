"""Reads from a frame what state it shows, or from two frames which action led from one to the other.

Special: one small network for both. Trained on true frames, it tells a frame-only world model where things
are in its own dreams (``Predictions.states``), and serves as a measuring instrument.

Absent: what the numbers mean; ``names`` says it.

Shapes: B frames or pairs, D numbers that are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.nets.keypoints import KeypointEncoder


@dataclass(frozen=True, kw_only=True)
class StateReaderConfig:
    """Sizes, and what is read.

    Attributes:
        names: Name of each number that is read, D of them.
        centre: Mean of each in the training data.
        scale: Standard deviation of each; also the unit in which errors are weighed.
        frames: 1: the state that a frame shows; 2: the action between two frames.
        side: Frames are padded to a square of this side, a multiple of 16, px.
        width, keypoints, hidden: See ``KeypointEncoder``.
    """

    names: tuple[str, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    frames: int = 1
    side: int = 80
    width: int = 48
    keypoints: int = 24
    hidden: int = 256

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.centre) == len(self.scale) > 0 or self.frames not in (1, 2):
            raise ValueError(
                f"{len(self.names)} names, {len(self.centre)} centres, {len(self.scale)} scales, {self.frames} frames;"
                " give one centre and scale per name, and 1 or 2 frames"
            )


class StateReader(nn.Module):
    """Frames in [0, 1] -> numbers in their own units."""

    def __init__(self, config: StateReaderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = KeypointEncoder(
            image_size=config.side, width=config.width, keypoints=config.keypoints, hidden=config.hidden
        )
        self.out = nn.Sequential(
            nn.Linear(config.hidden * config.frames, config.hidden),
            nn.SiLU(),
            nn.Linear(config.hidden, len(config.names)),
        )

    def standardised(self, frames: Tensor) -> Tensor:
        """``(B, D)`` in units of ``scale`` from ``centre``; ``frames`` as for :meth:`forward`."""
        height, width = frames.shape[-2:]
        if height > self.config.side or width > self.config.side:
            raise ValueError(
                f"frames are {height}x{width} px, the reader was made for at most {self.config.side}"
            )
        padded = F.pad(frames, (0, self.config.side - width, 0, self.config.side - height))
        flat = padded.flatten(0, 1) if self.config.frames == 2 else padded
        features = self.encoder(flat.contiguous(memory_format=torch.channels_last)).float()
        if self.config.frames == 2:  # what changed, beside where it was
            before, after = features.unflatten(0, (len(frames), 2)).unbind(1)
            features = torch.cat([after - before, before], 1)
        out: Tensor = self.out(features)
        return out

    def forward(self, frames: Tensor) -> Tensor:
        """``(B, 3, H, W)``, or ``(B, 2, 3, H, W)`` for pairs, to ``(B, D)`` float32."""
        raw = self.standardised(frames)
        return raw * raw.new_tensor(self.config.scale) + raw.new_tensor(self.config.centre)
