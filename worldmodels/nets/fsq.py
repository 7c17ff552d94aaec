"""Finite scalar quantisation (Mentzer et al. 2023, arXiv:2309.15505): a code is a few rounded numbers.

Special: the code book is implicit. Channel d takes ``levels[d]`` values spread over [-1, 1], a token id is
the mixed-radix number of the channels' digits (channel 0 changes fastest), and rounding passes gradients
straight through. Both layouts work: channels last ``(..., D)``, and images channel-first ``(..., D, h, w)``.

Absent on purpose: projections in and out (they belong to the tokenizer), entropy losses, learned code books,
and ids that wrap around: an id outside the code book is an error, because it is always a mistake upstream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

LEVELS_BY_BITS: dict[int, tuple[int, ...]] = {
    8: (8, 6, 5),
    10: (8, 5, 5, 5),
    12: (7, 5, 5, 5, 5),
    14: (8, 8, 8, 6, 5),
    16: (8, 8, 8, 5, 5, 5),
}
"""About 2^bits codes each: the paper's recommended levels, as the published RT-1 tokenizers use them."""

# Bounded values stay this far (relatively) inside the outermost rounding boundary, so that tanh at infinity
# still rounds to an existing level. Value of the published tokenizers.
_MARGIN = 1e-3


class FSQ(nn.Module):
    """Quantises D numbers to ``levels`` values each. It has no parameters and adds no key to a state dict.

    Attributes:
        levels: Number of values of each channel.
        codebook_size: Their product, the number of token ids.
    """

    def __init__(self, levels: Sequence[int]) -> None:
        """Args: levels: at least one; each at least 2."""
        super().__init__()
        if not levels or any(level < 2 for level in levels):
            raise ValueError(f"levels must be one or more integers of at least 2, got {tuple(levels)}")
        self.levels = tuple(int(level) for level in levels)
        self.codebook_size = math.prod(self.levels)

    def bound(self, z: Tensor) -> Tensor:
        """Squash to the open range that rounds to the channel's levels: ``(..., D)``, same shape out.

        ``tanh(z + shift) * half - offset``; for an even number of levels the range is shifted by half a
        level, so that z = 0 is in both cases inside of level 0's cell or on its boundary.
        """
        half_D, offset_D, shift_D = self._bound_constants(z)
        return torch.tanh(z + shift_D) * half_D - offset_D

    def quantize(self, z: Tensor) -> Tensor:
        """Codes in [-1, 1] of ``z`` (channels last), gradients straight through the rounding."""
        bounded = self.bound(z)
        rounded = bounded + (bounded.round() - bounded).detach()
        return rounded / self._half_width(z)

    def soft(self, z: Tensor) -> Tensor:
        """What ``quantize`` would round: ``(..., D)`` in about [-1, 1]; the first steps of training may use it."""
        return self.bound(z) / self._half_width(z)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Quantise.

        Args:
            z: ``(..., D)`` float.

        Returns:
            codes ``(..., D)`` in [-1, 1], same dtype, and ids ``(...)`` int64 in [0, codebook_size).
        """
        self._check_channels(z)
        codes = self.quantize(z)
        return codes, self.codes_to_indices(codes)

    def forward_image(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The same for images: ``(..., D, h, w)`` to codes ``(..., D, h, w)`` and ids ``(..., h, w)``."""
        codes, indices = self.forward(z.movedim(-3, -1))
        return codes.movedim(-1, -3).contiguous(), indices

    def codes_to_indices(self, codes: Tensor) -> Tensor:
        """Ids ``(...)`` int64 of codes ``(..., D)``."""
        self._check_channels(codes)
        half = self._half_width(codes)
        digits = (codes.detach() * half + half).round().to(torch.int64)
        return (digits * self._basis(codes.device)).sum(dim=-1)

    def indices_to_codes(self, indices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Codes ``(..., D)`` of ids ``(...)``.

        Raises:
            ValueError: if an id is negative or not below ``codebook_size``.
        """
        if indices.numel():
            low, high = (int(x) for x in torch.aminmax(indices))
            if low < 0 or high >= self.codebook_size:
                raise ValueError(
                    f"ids must be in [0, {self.codebook_size}) for levels {self.levels}, got {low}..{high}: "
                    "take off the vocabulary offset, and sample only from the visual part of the vocabulary"
                )
        levels = torch.tensor(self.levels, device=indices.device)
        digits = indices.to(torch.int64)[..., None] // self._basis(indices.device) % levels
        half = levels // 2
        return (digits - half).to(dtype) / half.to(dtype)

    def indices_to_codes_image(self, indices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Codes ``(..., D, h, w)`` of ids ``(..., h, w)``."""
        return self.indices_to_codes(indices, dtype).movedim(-1, -3).contiguous()

    def _bound_constants(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        half = [(level - 1) * (1 + _MARGIN) / 2 for level in self.levels]
        offset = [0.5 if level % 2 == 0 else 0.0 for level in self.levels]
        shift = [math.atanh(o / h) for o, h in zip(offset, half, strict=True)]
        half_D, offset_D, shift_D = like.new_tensor([half, offset, shift]).unbind(0)
        return half_D, offset_D, shift_D

    def _half_width(self, like: Tensor) -> Tensor:
        """Rounded values lie in [-half, half] for odd levels and [-half, half - 1] for even ones."""
        return like.new_tensor([level // 2 for level in self.levels])

    def _basis(self, device: torch.device) -> Tensor:
        """Weight of each digit in the id: the product of the levels before it."""
        return torch.tensor([math.prod(self.levels[:d]) for d in range(len(self.levels))], device=device)

    def _check_channels(self, z: Tensor) -> None:
        if z.ndim == 0 or z.shape[-1] != len(self.levels):
            raise ValueError(
                f"FSQ with levels {self.levels} needs {len(self.levels)} channels, got shape {tuple(z.shape)}"
            )
