"""RGB frames and RT-1 actions on their way into a world model, and frames on their way out.

Special: predictions decode their frames when first asked, in parts that bound the memory. What comes in is
checked here, with one error that says what is wrong.

Shapes: B rows, H, W pixels, A action numbers, K ids of a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodels.api import Observation, Prediction
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.state_reader import StateReader

# Encoded or decoded at once: one frame of the published size, 25 of the bundled models'. More at once is slower: fresh
# memory for larger maps costs more than larger products bring.
_PIXELS_AT_ONCE = 1 << 17


class DecodedFrames:
    """See ``worldmodels.api.Predictions``: frames ``(H, W, 3)`` uint8, decoded when asked for.

    Attributes:
        tokens: ``(B, K)`` int64, ids of the frames.
        logprobs: ``(B, K)`` float32, their log-probabilities.
    """

    def __init__(
        self,
        tokens: Tensor,
        logprobs: Tensor,
        decode: Callable[[], Tensor],
        reader: StateReader | None = None,
    ) -> None:
        """``decode`` gives frames ``(B, 3, H, W)``, about in [0, 1]; ``reader`` reads states from them."""
        self.tokens, self.logprobs, self._decode, self._reader = tokens, logprobs, decode, reader

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> Prediction:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} predictions")
        if not self._finite[row]:
            return Prediction(
                observation=None, error="the model gave NaN or infinite logits; are its weights finite?"
            )
        return Prediction(observation=self._observations[row])

    def observations(self) -> NDArray[np.uint8]:
        """``(B, H, W, 3)`` uint8."""
        return self._observations

    def states(self) -> NDArray[np.float32] | None:
        """``(B, D)`` as the reader sees them in the frames; None without one: ids tell no physical state."""
        return None if self._reader is None else self._states

    @cached_property
    def _states(self) -> NDArray[np.float32]:
        assert self._reader is not None
        device = next(self._reader.parameters()).device
        frames = torch.from_numpy(self._observations).to(device).movedim(-1, 1).float() / 255
        with torch.no_grad():
            read: NDArray[np.float32] = self._reader(frames).cpu().numpy()
        return read

    @cached_property
    def _finite(self) -> list[bool]:
        finite: list[bool] = torch.isfinite(self.logprobs).all(1).tolist()
        return finite

    @cached_property
    def _observations(self) -> NDArray[np.uint8]:
        frames = self._decode().float().clamp(0, 1)
        pixels = (frames * 255).round().to(torch.uint8).movedim(1, -1).contiguous()
        image: NDArray[np.uint8] = pixels.cpu().numpy()
        return image


def frames_at_once(image_size: tuple[int, int]) -> int:
    """How many frames are encoded or decoded at once."""
    return max(1, _PIXELS_AT_ONCE // (image_size[0] * image_size[1]))


def checked_frames(observations: Sequence[Observation], image_size: tuple[int, int]) -> Tensor:
    """Frames ``(B, 3, H, W)`` float32 in [0, 1] of RGB arrays ``(H, W, 3)`` uint8.

    Raises:
        ValueError: One of another shape or type.
    """
    arrays = [np.asarray(observation) for observation in observations]
    for row, found in enumerate(arrays):
        if found.shape != (*image_size, 3) or found.dtype != np.uint8:
            raise ValueError(
                f"observation {row} is {found.dtype} {found.shape}, expected an RGB frame "
                f"({image_size[0]}, {image_size[1]}, 3) uint8; resize or convert it first"
            )
    # Contiguous: GroupNorm loses precision in the memory order of (H, W, C).
    return torch.from_numpy(np.stack(arrays)).movedim(-1, 1).contiguous().float() / 255


def checked_bins(bins: ActionBins, actions: Any, count: int) -> Tensor:
    """Bins ``(count, A)`` int64 of that many actions; numbers outside the range go to the nearest bin.

    Raises:
        ValueError: Another shape, or a number that is not finite.
    """
    array = np.asarray(actions, dtype=np.float32)
    if array.size == 0:  # an empty list has no second axis
        array = array.reshape(0, len(bins.low))
    if array.shape != (count, len(bins.low)):
        raise ValueError(f"actions have shape {array.shape}, expected {(count, len(bins.low))}")
    return torch.from_numpy(bins.encode(array))
