"""A tiny real world model and a tiny task, for tests of everything that dreams."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from rlvr_envs.dreams import PushTTask
from rlvr_envs.moments import Outcome, Start
from rlvr_envs.tasks import PushTRules
from worldmodels.api import History, Prediction, Predictions
from worldmodels.sampling import derive, uniforms

PX_PER_ACTION = 30.0  # an agent travels about 30 % of a commanded displacement of 100 px
NOISE_PX = 10.0


@dataclass(frozen=True, kw_only=True)
class PointState:
    """B points: where they are, the picture they move over, their seeds and how often they were stepped."""

    positions: np.ndarray  # (B, 2) float64
    pictures: np.ndarray  # (B, 64, 64, 3) uint8
    seeds: torch.Tensor  # (B,) int64
    steps: np.ndarray  # (B,) int64

    def __len__(self) -> int:
        return len(self.positions)

    def fork(self, n: int) -> PointState:
        rows = np.repeat(np.arange(len(self)), n)
        seeds = derive(self.seeds[:, None], torch.arange(n)).flatten()
        return PointState(
            positions=self.positions[rows], pictures=self.pictures[rows], seeds=seeds, steps=self.steps[rows]
        )

    def select(self, rows: Sequence[int]) -> PointState:
        index = list(rows)
        return PointState(
            positions=self.positions[index],
            pictures=self.pictures[index],
            seeds=self.seeds[index],
            steps=self.steps[index],
        )

    def append(self, other: PointState) -> PointState:
        return PointState(
            positions=np.concatenate([self.positions, other.positions]),
            pictures=np.concatenate([self.pictures, other.pictures]),
            seeds=torch.cat([self.seeds, other.seeds]),
            steps=np.concatenate([self.steps, other.steps]),
        )


class PointPredictions:
    def __init__(
        self,
        state: PointState,
        wrong: Mapping[int, Prediction],
        wrong_rows: Collection[int] | None,
        reads_states: bool,
    ) -> None:
        self._state, self._wrong, self._reads_states = state, wrong, reads_states
        self._wrong_rows = range(len(state)) if wrong_rows is None else wrong_rows

    def __len__(self) -> int:
        return len(self._state)

    def __getitem__(self, row: int) -> Prediction:
        wrong = self._wrong.get(int(self._state.steps[row])) if row in self._wrong_rows else None
        if wrong is not None:
            return wrong
        x, y = self._state.positions[row]
        image = self._state.pictures[row].copy()
        column, line = (int(np.clip(v / 8, 1, 62)) for v in (x, y))
        image[line - 1 : line + 2, column - 1 : column + 2] = (65, 105, 225)
        return Prediction(observation={"image": image, "proprio": np.array([x, y, 0, 0], dtype=np.float32)})

    def observations(self) -> dict[str, np.ndarray]:
        rows = [self[row].observation for row in range(len(self))]
        return {key: np.stack([row[key] for row in rows]) for key in ("image", "proprio")}

    def states(self) -> np.ndarray | None:
        """The block is read as the middle of the dark pixels, at angle 0."""
        if not self._reads_states:
            return None
        states = np.zeros((len(self), 7), dtype=np.float32)
        states[:, :2] = self._state.positions
        for row, picture in enumerate(self._state.pictures):
            states[row, 2:4] = np.argwhere(picture.mean(-1) < 200).mean(0)[::-1] * 8
        return states


class PointWorldModel:
    """The agent moves by 30 px per action of 1, and by up to 10 px of noise per unit of temperature.

    Args:
        frame_skip: Displacements per action.
        wrong: What to predict instead at a step (1 is the first).
        wrong_rows: In which rows of a batch; None for all.
        reads_states: Whether its predictions offer states.
    """

    history_length = 3

    def __init__(
        self,
        *,
        frame_skip: int = 5,
        wrong: Mapping[int, Prediction] | None = None,
        wrong_rows: Collection[int] | None = None,
        reads_states: bool = True,
    ) -> None:
        self.action_shape: tuple[int, ...] | None = (2 * frame_skip,)
        self.batch_sizes: list[int] = []  # of every step, to see that a batch is one call
        self._wrong, self._wrong_rows, self._reads_states = dict(wrong or {}), wrong_rows, reads_states

    def start(self, histories: Sequence[History], *, seeds: Sequence[int]) -> PointState:
        last = [history.observations[-1] for history in histories]
        return PointState(
            positions=np.stack([observation["proprio"][:2] for observation in last]).astype(np.float64),
            pictures=np.stack([observation["image"] for observation in last]),
            seeds=torch.tensor(list(seeds), dtype=torch.int64),
            steps=np.zeros(len(last), dtype=np.int64),
        )

    def step(
        self, state: PointState, actions: Any, *, temperature: float = 1.0
    ) -> tuple[PointState, Predictions]:
        assert actions.dtype == np.float32
        assert actions.shape == (len(state), *(self.action_shape or ()))
        self.batch_sizes.append(len(state))
        moves = actions.reshape(len(state), -1, 2).sum(1).astype(np.float64) * PX_PER_ACTION
        counters = torch.as_tensor(state.steps)[:, None]
        noise = uniforms(state.seeds[:, None], counters, torch.arange(2)).numpy() * 2 - 1
        positions = state.positions + moves + NOISE_PX * temperature * noise
        after = PointState(
            positions=positions, pictures=state.pictures, seeds=state.seeds, steps=state.steps + 1
        )
        return after, PointPredictions(after, self._wrong, self._wrong_rows, self._reads_states)


class EscapeTask:
    """Ends when the agent leaves a circle around the middle, so that the rows of a batch end at different times."""

    option_names = ()
    protocol: ClassVar[dict] = {}
    render_fps = 2.0
    render_mode = "rgb_array"
    radius_px = 200.0

    def __init__(self) -> None:
        self._pusht = PushTTask(frame_skip=5, rules=PushTRules())
        self.observation_space = self._pusht.observation_space
        self.action_space = self._pusht.action_space

    def start(self, generator: np.random.Generator, options: Mapping[str, Any]) -> Start:
        return self._pusht.start(generator, options)

    def judge(self, goal: Any, prediction: Prediction, reading: np.ndarray | None, previous: Any) -> Outcome:
        distance = float(np.linalg.norm(prediction.observation["proprio"][:2] - 256))
        escaped = distance > self.radius_px
        return Outcome(reward=distance, terminated=escaped, info={"distance": distance})

    def ends(self, action: Any) -> bool:
        return bool((np.asarray(action) >= 1).all())

    def picture(self, observation: Any) -> np.ndarray:
        return self._pusht.picture(observation)


@dataclass(frozen=True)
class RolledState:
    """Where the rows of a ``RollingWorldModel`` stand."""

    frames: np.ndarray
    openings: np.ndarray
    seeds: tuple[int, ...]
    steps: np.ndarray

    def __len__(self) -> int:
        return len(self.frames)

    def select(self, rows: Sequence[int]) -> RolledState:
        index = list(rows)
        return RolledState(
            self.frames[index],
            self.openings[index],
            tuple(self.seeds[i] for i in index),
            self.steps[index],
        )

    def fork(self, n: int) -> RolledState:
        return self.select([row for row in range(len(self)) for _ in range(n)])

    def append(self, other: Any) -> RolledState:
        return RolledState(
            np.concatenate([self.frames, other.frames]),
            np.concatenate([self.openings, other.openings]),
            self.seeds + other.seeds,
            np.concatenate([self.steps, other.steps]),
        )


class RolledPredictions:
    """Frames as they are, and states whose middle drawer stands open as far as the world model says."""

    def __init__(self, state: RolledState, reads_states: bool) -> None:
        self._state, self._reads_states = state, reads_states

    def __len__(self) -> int:
        return len(self._state)

    def __getitem__(self, row: int) -> Prediction:
        return Prediction(observation=self._state.frames[row])

    def observations(self) -> np.ndarray:
        return self._state.frames

    def states(self) -> np.ndarray | None:
        if not self._reads_states:
            return None
        states = np.zeros((len(self), 10), np.float32)
        states[:, 8] = self._state.openings
        return states


class RollingWorldModel:
    """A toy of the RT-1 family: world_vector y shifts the picture sideways, x opens the middle drawer, seeds add noise.

    Args:
        image_size: Height and width, px.
        reads_states: Whether its predictions offer states.
    """

    history_length = 2
    action_shape: tuple[int, ...] | None = (13,)

    def __init__(self, *, image_size: tuple[int, int] = (64, 80), reads_states: bool = True) -> None:
        self.protocol = {"environment": "toy", "image_size": list(image_size)}
        self._reads_states = reads_states

    def start(self, histories: Sequence[History], *, seeds: Sequence[int]) -> RolledState:
        frames = np.stack([history.observations[-1] for history in histories])
        count = len(frames)
        return RolledState(frames, np.zeros(count), tuple(seeds), np.zeros(count, np.int64))

    def step(
        self, state: RolledState, actions: Any, *, temperature: float = 1.0
    ) -> tuple[RolledState, RolledPredictions]:
        counters = torch.as_tensor(state.steps)
        noise = uniforms(
            torch.tensor(state.seeds), counters, torch.zeros(len(state), dtype=torch.int64)
        ).numpy()
        shifts = np.round(actions[:, 11] * 10 + 3 * temperature * noise).astype(int)
        frames = np.stack([np.roll(f, shift, axis=1) for f, shift in zip(state.frames, shifts, strict=True)])
        openings = state.openings + actions[:, 10]
        after = RolledState(frames, openings, state.seeds, state.steps + 1)
        return after, RolledPredictions(after, self._reads_states)
