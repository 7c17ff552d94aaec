"""PushT episodes as the tensors that training needs.

Special: frames stay memory-mapped uint8 and only a batch of them is ever a float; states, which label poses,
are small enough for memory. Labels are used in training and in metrics, never by a released model at run
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodels.episodes import EpisodeStore, Split


@dataclass(frozen=True)
class PushTData:
    """One split of a store whose episodes have equal length.

    Attributes:
        ids: Episode ids, N.
        states: ``(N, T+1, 7)`` float64.
        proprio: ``(N, T+1, 4)`` float32.
        actions: ``(N, T, A)`` float32.
    """

    store: EpisodeStore
    ids: tuple[str, ...]
    states: NDArray[np.float64]
    proprio: NDArray[np.float32]
    actions: NDArray[np.float32]

    @classmethod
    def load(cls, store: EpisodeStore, split: Split, *, limit: int | None = None) -> PushTData:
        """Read one split, or its first ``limit`` episodes.

        Raises:
            ValueError: The split is empty.
        """
        ids = store.ids(split)[:limit]
        if not ids:
            raise ValueError(
                f"{store.folder} holds no {split} episodes; collect more (2 % go to validation, 2 % to test)"
            )
        return cls(
            store,
            tuple(ids),
            store.stack("info.state", ids),
            store.stack("observation.proprio", ids),
            store.stack("actions", ids),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def images(self, episodes: NDArray[np.int64], times: NDArray[np.int64]) -> Tensor:
        """Frames ``(B, 3, H, W)`` float32 in [0, 1] at pairs of (episode row, time)."""
        rows = [
            np.asarray(self.store.episode(self.ids[e]).observations["image"][t])
            for e, t in zip(episodes, times, strict=True)
        ]
        return to_float(np.stack(rows))

    def poses(self, episodes: NDArray[np.int64], times: NDArray[np.int64]) -> Tensor:
        """True block poses ``(B, 4)``: x, y px, cosine, sine."""
        return pose_of(tensor_of(self.states[episodes, times]))


def tensor_of(array: NDArray[Any]) -> Tensor:
    """The array as a tensor on the default device, which a recipe sets for the time of its run."""
    return torch.from_numpy(array).to(torch.get_default_device())


def pose_of(states: Tensor) -> Tensor:
    """Pose ``(..., 4)`` float32 (x, y, cosine, sine) of states ``(..., 7)``."""
    angle = states[..., 4]
    return torch.cat([states[..., 2:4], angle.cos()[..., None], angle.sin()[..., None]], -1).float()


def to_float(images: NDArray[np.uint8]) -> Tensor:
    """Frames ``(..., H, W, 3)`` uint8 -> ``(..., 3, H, W)`` float32 in [0, 1], contiguous."""
    return tensor_of(images).movedim(-1, -3).contiguous().float() / 255


def pose_errors(pose: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Distance in px and absolute angle in degrees between poses ``(..., 4)``."""
    distance = (pose[..., :2] - truth[..., :2]).norm(dim=-1)
    cosine = (pose[..., 2:] * truth[..., 2:]).sum(-1)
    sine = pose[..., 3] * truth[..., 2] - pose[..., 2] * truth[..., 3]
    return distance, torch.atan2(sine, cosine).abs().rad2deg()
