"""A tiny real world model for planner tests: a point in the plane moved by its action and by seeded noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from worldmodels.api import History, Prediction, Predictions, RolloutState
from worldmodels.sampling import derive, uniforms

GAIN = 0.3
IMAGE_SIZE = 32


def observe(position: np.ndarray) -> dict[str, np.ndarray]:
    """Frames ``(..., 32, 32, 3)`` whose red and green say where the point is, and the position itself."""
    colour = np.clip(128 + 40 * np.concatenate([position, np.zeros((*position.shape[:-1], 1))], -1), 0, 255)
    frame = np.broadcast_to(colour[..., None, None, :], (*position.shape[:-1], IMAGE_SIZE, IMAGE_SIZE, 3))
    return {"image": np.round(frame).astype(np.uint8), "proprio": position.astype(np.float32)}


@dataclass(frozen=True)
class ToyState:
    positions: np.ndarray  # (B, 2) float64
    seeds: torch.Tensor  # (B,) int64
    steps: np.ndarray  # (B,) int64

    def __post_init__(self) -> None:
        self.positions.flags.writeable = False

    def __len__(self) -> int:
        return len(self.positions)

    def fork(self, n: int) -> ToyState:
        seeds = derive(self.seeds[:, None], torch.arange(n)).flatten()
        return ToyState(self.positions.repeat(n, axis=0), seeds, self.steps.repeat(n))

    def select(self, rows: Sequence[int]) -> ToyState:
        index = list(rows)
        return ToyState(self.positions[index], self.seeds[index], self.steps[index])


class ToyPredictions:
    def __init__(self, positions: np.ndarray) -> None:
        self.positions = positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, row: int) -> Prediction:
        return Prediction(observation=observe(self.positions[row]))

    def observations(self) -> dict[str, np.ndarray]:
        return observe(self.positions)

    def states(self) -> np.ndarray:
        return self.positions.astype(np.float32)


@dataclass
class ToyWorldModel:
    """Position += GAIN * action + 0.05 * temperature * noise."""

    action_shape: tuple[int, ...] | None = (2,)
    history_length: int = 3
    rows_seen: int = 0  # most rows stepped in one call, for the memory bound

    def start(self, histories: Sequence[History], *, seeds: Sequence[int]) -> ToyState:
        positions = np.stack([h.observations[-1]["proprio"] for h in histories]).astype(np.float64)
        return ToyState(positions, torch.as_tensor(list(seeds)), np.zeros(len(histories), dtype=np.int64))

    def step(
        self, state: RolloutState, actions: Any, *, temperature: float = 1.0
    ) -> tuple[ToyState, Predictions]:
        assert isinstance(state, ToyState)
        assert self.action_shape is not None
        assert actions.shape == (len(state), *self.action_shape)
        self.rows_seen = max(self.rows_seen, len(state))
        noise = (
            uniforms(state.seeds[:, None], torch.as_tensor(state.steps)[:, None], torch.arange(2)).numpy()
            - 0.5
        )
        moved = state.positions + GAIN * actions.reshape(len(state), 2) + 0.05 * temperature * noise
        return ToyState(moved, state.seeds, state.steps + 1), ToyPredictions(moved)


def position_cost(predictions: Predictions, goals: Sequence[Any]) -> torch.Tensor:
    """Squared distance of the state from the goal position."""
    states = torch.as_tensor(predictions.states()).double().view(len(goals), -1, 2)
    return (states - torch.as_tensor(np.stack(goals)).double()[:, None]).square().sum(-1).flatten()


def start_histories(positions: Sequence[Sequence[float]]) -> list[History]:
    return [History(observations=(observe(np.asarray(p, dtype=np.float64)),)) for p in positions]
