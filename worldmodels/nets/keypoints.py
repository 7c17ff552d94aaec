"""A small convolutional network that says *where* things are: heat maps reduced to coordinates, and a coarse
overview.

Special: soft-argmax over heat maps keeps sub-pixel precision with few weights, which is what a tokenizer of
rigid objects needs; pooled or flattened features lose it or need millions of weights. Normalisation is over
channels at one place only, so nothing far away makes an answer flicker.

Shapes: B batch, C channels, H, W height and width, K keypoints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HEAT_GAIN = 8.0


class ChannelNorm(nn.Module):
    """RMS normalisation over the channels of each pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Same shape out."""
        scale = torch.rsqrt(x_BCHW.square().mean(1, keepdim=True) + 1e-5)
        return x_BCHW * scale * self.weight[:, None, None]


class KeypointEncoder(nn.Module):
    """Image -> K soft keypoints (x, y, presence) and an overview -> a feature vector ``(B, hidden)``.

    Args:
        image_size: Height and width of the input, a multiple of 16.
        width: Channels of the convolutions.
        keypoints: Number of heat maps K.
        hidden: Width of the two layers behind the keypoints, size of the output.
    """

    def __init__(self, *, image_size: int, width: int, keypoints: int, hidden: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width // 2, 5, stride=2, padding=2)
        self.blocks = nn.Sequential(
            ChannelNorm(width // 2),
            nn.SiLU(),
            nn.Conv2d(width // 2, width, 3, stride=2, padding=1),
            ChannelNorm(width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            ChannelNorm(width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            ChannelNorm(width),
            nn.SiLU(),
        )
        # Heat maps at half resolution: coarse features, upsampled, beside the fine ones of the stem.
        self.fine = nn.Conv2d(width // 2, width // 2, 1)
        self.coarse = nn.Conv2d(width, width // 2, 1)
        self.heat = nn.Conv2d(width // 2, keypoints, 1)
        # Flat heat maps put every keypoint in the middle, where orientation is learned very late.
        self.heat.weight.data.mul_(HEAT_GAIN)
        self.overview = nn.Sequential(
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            ChannelNorm(width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            ChannelNorm(width),
            nn.SiLU(),
            nn.Flatten(),
        )
        side = image_size // 2
        axis = (torch.arange(side) + 0.5) / side * 2 - 1
        self.register_buffer("axis", axis, persistent=False)
        self.head = nn.Sequential(
            nn.Linear(keypoints * 3 + width * (image_size // 16) ** 2, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
        )

    def forward(self, images_B3HW: Tensor) -> Tensor:
        """``(B, hidden)`` for images in [0, 1]."""
        fine = self.stem(images_B3HW * 2 - 1)
        coarse = self.blocks(fine)
        mixed = F.silu(self.fine(fine) + F.interpolate(self.coarse(coarse), scale_factor=2.0, mode="nearest"))
        heat_BKHW = self.heat(mixed)
        weight = heat_BKHW.flatten(2).softmax(-1).unflatten(2, heat_BKHW.shape[2:])
        x_BK = (weight.sum(2) * self.axis).sum(-1)
        y_BK = (weight.sum(3) * self.axis).sum(-1)
        presence_BK = torch.logsumexp(heat_BKHW.flatten(2), -1) * 0.1
        found = torch.cat([x_BK, y_BK, presence_BK, self.overview(coarse)], -1)
        features: Tensor = self.head(found)
        return features
