"""Scripted PushT behaviour for many worlds at once: pushing through the block, and noise.

Special: batched numpy, one generator per batch, so a batch of episodes is a pure function of its seed. The
pusher walks to a point behind the block and then drives through it; it knows the state, plans nothing, and
misses often enough.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlvr_envs.simulators.pusht import ACTION_SCALE_PX, BLOCK_SHAPES, FloatArray

MARGIN_PX = 20.0  # way points stay this far inside the arena
# A way point counts as reached within this distance.
ARRIVED_PX = 12.0
# Distance in front of the agent at which its target is put: it travels about a third of it per step.
LOOKAHEAD = 1.6


def clearance(states: FloatArray) -> FloatArray:
    """Distance in px of each agent's centre from the T block's edge, ``(N,)``; 0 inside the block."""
    offset = states[:, :2] - states[:, 2:4]
    cosine, sine = np.cos(states[:, 4]), np.sin(states[:, 4])
    x = offset[:, 0] * cosine + offset[:, 1] * sine
    y = -offset[:, 0] * sine + offset[:, 1] * cosine
    distances = []
    for piece in BLOCK_SHAPES["T"].pieces:
        corners = np.asarray(piece)
        (x_low, y_low), (x_high, y_high) = corners.min(0), corners.max(0)
        dx = np.maximum(np.maximum(x_low - x, x - x_high), 0)
        dy = np.maximum(np.maximum(y_low - y, y - y_high), 0)
        distances.append(np.hypot(dx, dy))
    return np.asarray(np.min(distances, axis=0))


def sample_states(
    count: int, generator: np.random.Generator, *, min_clearance_px: float = 25.0
) -> FloatArray:
    """Random starts ``(count, 7)``: agent 50 to 450 px and clear of the block, block 100 to 400 px, all at rest."""
    states = np.zeros((count, 7))
    todo = np.arange(count)
    while len(todo):
        states[todo, :2] = generator.uniform(50, 450, size=(len(todo), 2))
        states[todo, 2:4] = generator.uniform(100, 400, size=(len(todo), 2))
        states[todo, 4] = generator.uniform(0, 2 * np.pi, size=len(todo))
        todo = todo[clearance(states[todo]) < min_clearance_px]
    return states


class BatchPusher:
    """Walks behind a random point of the block and pushes through it, over and over.

    Args:
        num_worlds: Batch size.
        generator: Source of all randomness.
        noise_levels: Standard deviation of the action noise, drawn once per world from this tuple.
    """

    def __init__(
        self,
        num_worlds: int,
        generator: np.random.Generator,
        *,
        noise_levels: tuple[float, ...] = (0.0, 0.0, 0.05, 0.05, 0.05, 0.1, 0.1, 0.1, 0.1, 0.2),
    ) -> None:
        self._generator = generator
        self._noise = generator.choice(noise_levels, size=(num_worlds, 1))
        self._speed = generator.uniform(0.15, 0.45, size=(num_worlds, 1))
        self._pushing = np.ones(num_worlds, dtype=bool)
        self._patience = np.zeros(num_worlds, dtype=np.int64)
        self._way_point = np.zeros((num_worlds, 2))
        self._through = np.zeros((num_worlds, 2))

    def act(self, states: FloatArray) -> FloatArray:
        """Actions ``(N, 2)`` for states ``(N, 7)``."""
        arrived = np.linalg.norm(states[:, :2] - self._way_point, axis=1) < ARRIVED_PX
        self._patience -= 1
        done = arrived | (self._patience <= 0)
        self._start_pushes(done & ~self._pushing)
        self._start_approaches(done & self._pushing & ~(done & ~self._pushing), states)
        offset = (self._way_point - states[:, :2]) / ACTION_SCALE_PX * LOOKAHEAD
        length = np.maximum(np.linalg.norm(offset, axis=1, keepdims=True), 1e-9)
        actions = offset * np.minimum(1.0, self._speed / length)
        actions += self._generator.normal(size=actions.shape) * self._noise
        return np.clip(actions, -1, 1)

    def _start_pushes(self, rows: NDArray[np.bool_]) -> None:
        self._pushing[rows] = True
        self._way_point[rows] = self._through[rows]
        self._patience[rows] = self._generator.integers(4, 16, size=int(rows.sum()))

    def _start_approaches(self, rows: NDArray[np.bool_], states: FloatArray) -> None:
        index = np.flatnonzero(rows)
        if not len(index):
            return
        random = self._generator
        pieces = np.asarray(BLOCK_SHAPES["T"].pieces)
        piece = pieces[random.integers(0, len(pieces), size=len(index))]
        weight = random.uniform(size=(len(index), 2))
        low, high = piece.min(1), piece.max(1)
        local = low + weight * (high - low)
        cosine, sine = np.cos(states[index, 4]), np.sin(states[index, 4])
        point = states[index, 2:4] + np.stack(
            [local[:, 0] * cosine - local[:, 1] * sine, local[:, 0] * sine + local[:, 1] * cosine], axis=1
        )
        # Half of the pushes start on the agent's side, so that most of them make contact soon.
        towards = states[index, :2] - point
        angle = np.arctan2(towards[:, 1], towards[:, 0]) + random.normal(size=len(index)) * np.where(
            random.uniform(size=len(index)) < 0.5, 0.4, 2.0
        )
        direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        behind = point + direction * random.uniform(60, 110, size=(len(index), 1))
        through = point - direction * random.uniform(0, 90, size=(len(index), 1))
        self._way_point[index] = np.clip(behind, MARGIN_PX, 512 - MARGIN_PX)
        self._through[index] = np.clip(through, MARGIN_PX, 512 - MARGIN_PX)
        self._pushing[index] = False
        self._patience[index] = random.integers(5, 14, size=len(index))


class BatchNoise:
    """Gaussian actions, drawn anew every ``hold`` steps; their scale is drawn once per world.

    Args:
        num_worlds: Batch size.
        generator: Source of all randomness.
        hold: Steps for which one action is kept.
    """

    def __init__(self, num_worlds: int, generator: np.random.Generator, *, hold: int) -> None:
        self._generator = generator
        self._hold = hold
        self._step = 0
        self._scale = generator.uniform(0.1, 0.4, size=(num_worlds, 1))
        self._actions = np.zeros((num_worlds, 2))

    def act(self, states: FloatArray) -> FloatArray:
        """Actions ``(N, 2)``; a push back towards the middle keeps most agents in the arena."""
        if self._step % self._hold == 0:
            self._actions = self._generator.normal(size=self._actions.shape) * self._scale
        self._step += 1
        outside = np.clip(states[:, :2], MARGIN_PX, 512 - MARGIN_PX) - states[:, :2]
        return np.clip(self._actions + outside / ACTION_SCALE_PX, -1, 1)
