"""Episodes whose observation is one frame, as the tensors that training needs: the RT-1 family.

Special: frames stay memory-mapped uint8 and only a batch of them is ever a float. Recorded states, where the
data has any (a simulator's has), are for readers and metrics only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from training.data import to_float
from worldmodels.episodes import EpisodeStore, Split


@dataclass(frozen=True)
class FrameData:
    """One split of a store whose episodes have equal length: N episodes, T actions, T + 1 frames.

    Attributes:
        store: Where the frames are.
        ids: Episode ids, N.
        actions: ``(N, T, A)`` float32.
        states: ``(N, T+1, S)`` float64, or None where the data has none.
    """

    store: EpisodeStore
    ids: tuple[str, ...]
    actions: NDArray[np.float32]
    states: NDArray[np.float64] | None

    @classmethod
    def load(cls, store: EpisodeStore, split: Split, *, limit: int | None = None) -> FrameData:
        """Read one split, or its first ``limit`` episodes.

        Raises:
            ValueError: The split is empty, its episodes differ in length, or an observation is not a frame.
        """
        ids = store.ids(split)[:limit]
        if not ids:
            raise ValueError(
                f"{store.folder} holds no {split} episodes; collect more (2 % go to validation, 2 % to test)"
            )
        first = store.episode(ids[0])
        if isinstance(first.observations, dict) or np.ndim(first.observations) != 4:
            raise ValueError(
                f"{store.folder}: an observation is not a frame (H, W, 3); these recipes train on frames alone"
            )
        if lengths := {len(store.episode(name)) for name in ids} - {len(first)}:
            raise ValueError(
                f"{store.folder} holds episodes of {sorted({len(first), *lengths})} steps; cut them to one length with "
                "rlvr-world convert --length"
            )
        states = store.stack("info.state", ids) if "state" in first.info else None
        return cls(store, tuple(ids), store.stack("actions", ids), states)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def steps(self) -> int:
        """T."""
        return self.actions.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width, px."""
        height, width = self.store.episode(self.ids[0]).observations.shape[1:3]
        return int(height), int(width)

    def check_image_size(self, wanted: tuple[int, int], what: str) -> None:
        """Check that frames have the height and width in px that ``what`` (for the error) is for.

        Raises:
            ValueError: They have not; names the remedy.
        """
        if self.image_size != wanted:
            raise ValueError(
                f"{self.store.folder} has frames of {self.image_size} px, {what} is for {wanted}; convert recordings"
                f" with --image-size {wanted[0]} {wanted[1]} (rlvr-world convert), or change the recipe"
            )

    def check_frames(self, needed: int, what: str) -> None:
        """Check that episodes are long enough.

        Args:
            needed: Frames that one has to hold.
            what: What needs them, for the error.

        Raises:
            ValueError: They have fewer; names the remedy.
        """
        if self.steps + 1 < needed:
            raise ValueError(
                f"{what} has {needed} frames, and the episodes in {self.store.folder} have {self.steps + 1}; cut"
                f" recordings into longer ones, with rlvr-world convert --length {needed - 1} or more"
            )

    def pixels(self, episodes: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Frames ``(..., H, W, 3)`` at episode rows and times ``(...)`` of one shape."""
        rows, columns = np.broadcast_arrays(episodes, times)
        frames = [
            np.asarray(self.store.episode(self.ids[e]).observations[t])
            for e, t in zip(rows.ravel(), columns.ravel(), strict=True)
        ]
        stacked = np.stack(frames)
        return stacked.reshape(*rows.shape, *stacked.shape[1:])

    def images(self, episodes: NDArray[np.int64], times: NDArray[np.int64]) -> Tensor:
        """The same as ``(..., 3, H, W)`` float32 in [0, 1], contiguous."""
        return to_float(self.pixels(episodes, times))
