"""The cases of the prediction table: short windows of recorded episodes, some frames of history and some to
predict.

Special: a seeded choice without repetition from all windows of a split; the episode of a window is the unit
that a bootstrap resamples, because windows of one episode are not independent.

Absent: models and metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.data import PushTData, pose_errors, pose_of
from worldmodels.api import History

# From when on the block counts as moved since the last history frame.
MOVED_PX, MOVED_DEG = 10.0, 10.0


@dataclass(frozen=True)
class Windows:
    """N windows; frame 0 of a window is its first history frame.

    Attributes:
        data: Where they come from.
        episodes: ``(N,)`` rows of ``data``.
        starts: ``(N,)`` stored frame that is frame 0.
        history: Frames that a model gets to see.
        horizon: Frames to predict, H.
    """

    data: PushTData
    episodes: NDArray[np.int64]
    starts: NDArray[np.int64]
    history: int
    horizon: int

    def __len__(self) -> int:
        return len(self.episodes)

    @property
    def units(self) -> list[str]:
        """Id of each window's episode."""
        return [self.data.ids[episode] for episode in self.episodes]

    def to_protocol(self) -> list[list[Any]]:
        """(Episode id, first frame) of each."""
        return [[unit, int(start)] for unit, start in zip(self.units, self.starts, strict=True)]

    def take(self, rows: Sequence[int]) -> Windows:
        """Some of them."""
        return replace(self, episodes=self.episodes[list(rows)], starts=self.starts[list(rows)])

    def images(self, first: int, count: int) -> NDArray[np.uint8]:
        """Frames ``first``, ``first + 1``, ...: ``(N, count, H, W, 3)``."""
        store, ids = self.data.store, self.units
        pairs = zip(ids, self._times(first, count), strict=True)
        return np.stack([store.episode(name).observations["image"][times] for name, times in pairs])

    def proprio(self, first: int, count: int) -> NDArray[np.float32]:
        """``(N, count, 4)``."""
        return self.data.proprio[self.episodes[:, None], self._times(first, count)]

    def states(self, first: int, count: int) -> NDArray[np.float64]:
        """``(N, count, 7)``."""
        return self.data.states[self.episodes[:, None], self._times(first, count)]

    def actions(self, first: int, count: int) -> NDArray[np.float32]:
        """``(N, count, A)``; action i leads from frame i to frame i + 1."""
        return self.data.actions[self.episodes[:, None], self._times(first, count)]

    def histories(self) -> list[History]:
        """What a model gets to see of each window."""
        images, proprio = self.images(0, self.history), self.proprio(0, self.history)
        actions = self.actions(0, self.history - 1)
        return [
            History(
                observations=[
                    {"image": images[row, t], "proprio": proprio[row, t]} for t in range(self.history)
                ],
                actions=list(actions[row]),
            )
            for row in range(len(self))
        ]

    def moved(self) -> NDArray[np.bool_]:
        """``(N, H)``: whether the block has moved since the last history frame."""
        poses = pose_of(torch.from_numpy(self.states(self.history - 1, self.horizon + 1)))
        shift, turn = pose_errors(poses[:, 1:], poses[:, :1])
        return ((shift > MOVED_PX) | (turn > MOVED_DEG)).numpy()

    def _times(self, first: int, count: int) -> NDArray[np.int64]:
        return self.starts[:, None] + np.arange(first, first + count)


def choose_windows(data: PushTData, *, count: int, history: int, horizon: int, seed: int) -> Windows:
    """``count`` different windows.

    Raises:
        ValueError: The data hold fewer.
    """
    per_episode = max(data.actions.shape[1] + 2 - history - horizon, 0)
    if count > per_episode * len(data):
        raise ValueError(
            f"{count} windows of {history} + {horizon} frames asked for, but {len(data)} episodes of"
            f" {data.actions.shape[1] + 1} frames hold {per_episode * len(data)}; ask for fewer, or collect more"
        )
    chosen = np.random.default_rng([seed, 2]).permutation(per_episode * len(data))[:count]
    episodes, starts = np.divmod(chosen, per_episode)
    return Windows(data, episodes, starts, history, horizon)
