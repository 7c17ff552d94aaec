"""The slots of one frame: which tokens stand for it, in which order, and what their ids mean.

Special: proprioception first (position and velocity of the agent as uniform bins), then the codes of the
picture. Ids are *slot-local* (0 .. V_s - 1) everywhere outside the embedding table; ``globalise`` adds the
offset of the slot's part of the vocabulary. A sampled id can therefore never belong to another slot.

Shapes: S slots, G digits of the slot with most digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

PROPRIO_SIZE = 4


@dataclass(frozen=True)
class SlotLayout:
    """What a frame's tokens are.

    Attributes:
        num_codes: Tokens of the picture.
        code_levels: FSQ levels of each of them.
        position_bins, position_low, position_high: Bins of agent x and y in px.
        velocity_bins, velocity_limit: Bins of agent velocity in px/s, symmetric.
        arena_px, reach_px, speed_px: Units in which lengths near the object and velocities enter the stem.
        action_gain: Factor that brings actions to about unit size.
    """

    num_codes: int = 4
    code_levels: tuple[int, ...] = (32, 32)
    position_bins: int = 512
    position_low: float = -64.0
    position_high: float = 576.0
    velocity_bins: int = 256
    velocity_limit: float = 512.0
    arena_px: float = 512.0
    reach_px: float = 60.0
    speed_px: float = 100.0
    action_gain: float = 3.0

    @property
    def slots(self) -> int:
        """S."""
        return PROPRIO_SIZE + self.num_codes

    @property
    def max_digits(self) -> int:
        """G."""
        return len(self.code_levels)

    @property
    def code_digits(self) -> int:
        """Digits of all codes of a frame."""
        return self.num_codes * len(self.code_levels)

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Levels of every slot's digits."""
        bins = (self.position_bins,) * 2 + (self.velocity_bins,) * 2
        return tuple((count,) for count in bins) + (self.code_levels,) * self.num_codes

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of ids of every slot."""
        return tuple(int(np.prod(levels)) for levels in self.levels)

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        """Start of every slot's part of the vocabulary; all codes share one part."""
        starts = [0]
        for size in self.sizes[:PROPRIO_SIZE]:
            starts.append(starts[-1] + size)
        return tuple(starts[:PROPRIO_SIZE]) + (starts[PROPRIO_SIZE],) * self.num_codes

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table."""
        return self._offsets[-1] + self.sizes[-1]

    def vocab(self, slot: int) -> slice:
        """The slot's part of the vocabulary."""
        return slice(self._offsets[slot], self._offsets[slot] + self.sizes[slot])

    def globalise(self, tokens: Tensor, slots: slice = slice(None)) -> Tensor:
        """Vocabulary ids of slot-local ids ``(..., n)`` of the given slots."""
        return tokens + torch.tensor(self._offsets[slots], device=tokens.device)

    @cached_property
    def code_middle(self) -> Tensor:
        """Half of the highest digit of every code digit."""
        return torch.tensor([(level - 1) / 2 for level in self.code_levels] * self.num_codes)

    def proprio_digits(self, proprio: Tensor) -> Tensor:
        """Proprioception ``(..., 4)`` as real-valued bin numbers (bin b is centred on b)."""
        span = self.position_high - self.position_low
        position = (proprio[..., :2] - self.position_low) / span * self.position_bins - 0.5
        velocity = (proprio[..., 2:] / self.velocity_limit + 1) / 2 * self.velocity_bins - 0.5
        return torch.cat([position, velocity], -1)

    def encode_proprio(self, proprio: Tensor) -> Tensor:
        """Ids ``(..., 4)`` int64; values outside the range go to the outermost bin."""
        highest = torch.tensor([size - 1 for size in self.sizes[:PROPRIO_SIZE]], device=proprio.device)
        digits = self.proprio_digits(proprio.float()).round().clamp(min=0)
        return torch.minimum(digits.long(), highest)

    def proprio(self, tokens: Tensor) -> Tensor:
        """Proprioception ``(..., 4)`` float32 at the centres of the bins of tokens ``(..., S)``."""
        span = self.position_high - self.position_low
        centres = tokens[..., :PROPRIO_SIZE].float() + 0.5
        position = self.position_low + centres[..., :2] / self.position_bins * span
        velocity = (centres[..., 2:] / self.velocity_bins * 2 - 1) * self.velocity_limit
        return torch.cat([position, velocity], -1)

    def code_digits_of(self, codes: Tensor) -> Tensor:
        """Digits ``(..., num_codes * G)`` of picture ids ``(..., num_codes)``."""
        digits, rest = [], codes
        for level in self.code_levels:
            digits.append(rest % level)
            rest = rest // level
        return torch.stack(digits, -1).flatten(-2)

    def join_digits(self, proprio_digits: Tensor, code_digits: Tensor) -> Tensor:
        """Digits of all slots ``(..., S, G)`` from those of proprioception and codes; missing digits are 0."""
        first = torch.nn.functional.pad(proprio_digits[..., None], (0, self.max_digits - 1))
        return torch.cat([first, code_digits.unflatten(-1, (self.num_codes, self.max_digits))], -2)

    def values(self, tokens: Tensor) -> Tensor:
        """Every token's digits scaled to about [-1, 1], ``(..., S, G)``."""
        digits = self.join_digits(
            tokens[..., :PROPRIO_SIZE].float(), self.code_digits_of(tokens[..., PROPRIO_SIZE:]).float()
        )
        highest = torch.ones(self.slots, self.max_digits, device=tokens.device)
        for slot, levels in enumerate(self.levels):
            for digit, level in enumerate(levels):
                highest[slot, digit] = level - 1
        return digits / highest * 2 - 1
