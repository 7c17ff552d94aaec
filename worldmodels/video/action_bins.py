"""Continuous actions as tokens: each dimension is cut into equally wide bins between its minimum and maximum.

Special: computed in float32 in the order of operations of the published RT-1 processors, so that values on a
bin's edge fall on the same side.

Absent on purpose: vocabulary offsets (see ``layouts``), bins by quantile, the ranges of any data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, kw_only=True)
class ActionBins:
    """Bins of D-dimensional actions.

    Attributes:
        low: Smallest value of each dimension; smaller actions fall into bin 0.
        high: Largest value of each dimension; larger actions fall into the last bin. Where both are equal, all actions
            fall into bin 0: the dimension never varied, and a model has not learnt what another bin means.
        num_bins: Bins per dimension.
    """

    low: Sequence[float]
    high: Sequence[float]
    num_bins: int = 256

    def __post_init__(self) -> None:
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        if (
            low.ndim != 1
            or low.shape != high.shape
            or not np.isfinite([low, high]).all()
            or (low > high).any()
        ):
            raise ValueError(
                f"low and high must be finite, of one length, low <= high: got {self.low}, {self.high}"
            )
        if self.num_bins < 1:
            raise ValueError(f"num_bins must be at least 1, got {self.num_bins}")

    def encode(self, actions: ArrayLike) -> NDArray[np.int64]:
        """Bins ``(..., D)`` in [0, num_bins) of actions ``(..., D)``.

        Raises:
            ValueError: if the last axis is not D or an action is NaN or infinite.
        """
        values = np.asarray(actions, dtype=np.float32)
        if values.ndim == 0 or values.shape[-1] != len(self.low):
            raise ValueError(f"actions must be (..., {len(self.low)}), got shape {values.shape}")
        if not np.isfinite(values).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            raise ValueError(f"actions must be finite, got {values[where]} at index {where}")
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        fraction = np.clip((values - low) / (high - low + np.float32(1e-8)), 0, 1)
        fraction = np.where(high > low, fraction, np.float32(0))
        bins = np.floor(fraction * np.float32(self.num_bins)).astype(np.int64)
        return np.clip(bins, 0, self.num_bins - 1)

    def decode(self, bins: ArrayLike) -> NDArray[np.float32]:
        """Centres ``(..., D)`` of bins ``(..., D)``.

        Raises:
            ValueError: if the last axis is not D or a bin is not in [0, num_bins).
        """
        indices = np.asarray(bins)
        if indices.ndim == 0 or indices.shape[-1] != len(self.low):
            raise ValueError(f"bins must be (..., {len(self.low)}), got shape {indices.shape}")
        if not np.issubdtype(indices.dtype, np.integer):
            raise ValueError(f"bins must be integers, got {indices.dtype}")
        if indices.size and (indices.min() < 0 or indices.max() >= self.num_bins):
            raise ValueError(
                f"bins must be in [0, {self.num_bins}), got {indices.min()}..{indices.max()}; take off the "
                "vocabulary offset"
            )
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        centres: NDArray[np.float32] = low + (indices.astype(np.float32) + 0.5) / self.num_bins * (high - low)
        return centres.astype(np.float32)
