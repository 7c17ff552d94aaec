"""A patch discriminator: which parts of a frame look real.

Special: the usual stack of strided 4 x 4 convolutions with GroupNorm; one number per patch, not per frame, so
it works at any size. Used in training only; it never ships with a tokenizer.

Absent: gradient penalties and adaptive loss weights; the published recipe uses a fixed weight from a fixed
step on.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class PatchDiscriminator(nn.Module):
    """Frames ``(B, 3, H, W)`` in [0, 1] -> logits ``(B, 1, h, w)``, positive where a patch looks real.

    Args:
        layers: Convolutions in all (the paper's tokenizers use 6).
        width: Channels after the first; doubled by each layer up to eight times.
        image_size: Smallest side of the frames; layers stop halving before a side falls below 4.
    """

    def __init__(self, *, layers: int = 6, width: int = 64, image_size: int = 256) -> None:
        super().__init__()
        if layers < 2:
            raise ValueError(f"a discriminator needs at least 2 layers, got {layers}")
        blocks: list[nn.Module] = [nn.Conv2d(3, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        channels, side = width, image_size // 2
        for _ in range(layers - 2):
            wider = min(channels * 2, width * 8)
            stride = 2 if side >= 8 else 1
            blocks += [
                nn.Conv2d(channels, wider, 4 if stride == 2 else 3, stride=stride, padding=1),
                nn.GroupNorm(min(8, wider), wider),
                nn.LeakyReLU(0.2),
            ]
            channels, side = wider, side // stride
        blocks.append(nn.Conv2d(channels, 1, 3, padding=1))
        self.blocks = nn.Sequential(*blocks)

    def forward(self, frames_B3HW: Tensor) -> Tensor:
        """See the class."""
        logits: Tensor = self.blocks(frames_B3HW.contiguous() * 2 - 1)
        return logits


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Hinge loss of the discriminator on logits of real and decoded frames."""
    return (F.relu(1 - real).mean() + F.relu(1 + fake).mean()) / 2


def generator_loss(fake: Tensor) -> Tensor:
    """What the decoder adds to its own loss: it wants its frames to look real."""
    return -fake.mean()
