"""Dreams: Gymnasium environments over any world model, one at a time or natively batched.

Special: what an episode is about (spaces, first observations, goal, reward, end) comes from a ``Task``, how
the world moves from a ``WorldModel``, and neither knows the other. A batch makes one world-model step for all
its rows, and row i of a batch with seed s goes exactly as a single environment with seed s + i. A bad model
output never raises: the last observation is kept and ``info["prediction_error"]`` says why. No simulator is
imported here.

Absent on purpose: a time limit of the single environment (Gymnasium's wrapper does it) and anything about
PushT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from rlvr_envs.moments import Moment, Report, Task, accept, begin, report
from rlvr_envs.spaces import checked_action, checked_options
from worldmodels.api import History, RolloutState, WorldModel


@dataclass(frozen=True, kw_only=True)
class LearnedSnapshot:
    """A moment of a dream; the generator of later episodes is not part of it."""

    rollout: RolloutState
    moment: Moment


class LearnedEnv(gym.Env[Any, Any]):
    """One dream.

    The randomness of an episode is one seed for the world model, drawn from ``self.np_random`` at reset.

    Args:
        world_model: An object, or a name, folder or hub id for ``worldmodels.load``.
        task: What the episodes are about.
        temperature: Of the world model's draws; 0 takes the likeliest tokens.
        render_mode: The task's (``"rgb_array"``, for texts ``"ansi"``) or None.

    Raises:
        FileNotFoundError: No checkpoint of that name.
        ValueError: No world model, or its actions have another shape than the task's.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}  # noqa: RUF012  (Gymnasium's own interface)

    def __init__(
        self,
        world_model: WorldModel | str | Path,
        task: Task,
        *,
        temperature: float = 1.0,
        render_mode: str | None = None,
    ) -> None:
        self.world_model = _ready(world_model, task, temperature)
        self.temperature = temperature
        self.render_mode = _render_mode(task, render_mode)
        self.observation_space = task.observation_space
        self.action_space = task.action_space
        self.metadata = {
            **self.metadata,
            "render_modes": [task.render_mode],
            "render_fps": task.render_fps,
        }
        self._task = task
        self._current: LearnedSnapshot | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Options: the task's own, or a ``snapshot`` alone.

        Raises:
            ValueError: Unknown options, or whatever the task refuses.
        """
        super().reset(seed=seed)
        options = checked_options(options, (*self._task.option_names, "snapshot"))
        if "snapshot" in options:
            if len(options) > 1:
                raise ValueError(f"options has {sorted(options)}; a snapshot holds everything, give it alone")
            return self.restore(options["snapshot"])
        moment, history, dream_seed = begin(self._task, self.np_random, options)
        rollout = self.world_model.start([history], seeds=[dream_seed])
        self._current = LearnedSnapshot(rollout=rollout, moment=moment)
        observation, _, info = report(self._task, moment)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Imagine one step.

        Raises:
            ValueError: An action of the wrong shape, or not finite.
        """
        current = self.snapshot()
        value, clipped = checked_action(self.action_space, action)
        rollout, predictions = self.world_model.step(
            current.rollout, _batched(self.action_space, [value]), temperature=self.temperature
        )
        moment, error = accept(self._task, current.moment, predictions[0], predictions.states(), 0, clipped)
        self._current = LearnedSnapshot(rollout=rollout, moment=moment)
        observation, outcome, info = report(self._task, moment, error, ended=self._task.ends(value))
        return observation, outcome.reward, outcome.terminated, False, info

    def render(self) -> Any:
        """The present frame or text, as the task shows it; None without a render mode."""
        if self.render_mode is None:
            return None
        return self._task.picture(self.snapshot().moment.prediction.observation)

    def snapshot(self) -> LearnedSnapshot:
        """This moment; costs nothing. ``restore`` and ``reset(options={"snapshot": ...})`` go back to it."""
        if self._current is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        return self._current

    def restore(self, snapshot: LearnedSnapshot) -> tuple[Any, dict[str, Any]]:
        """Go back to a snapshot of a dream in the same world model; wrappers (the time limit) do not notice.

        The same actions then give the same observations.

        Raises:
            ValueError: Not a snapshot.
        """
        if not isinstance(snapshot, LearnedSnapshot):
            raise ValueError(
                f"snapshot is {type(snapshot).__name__}; give what snapshot() of a LearnedEnv returned"
            )
        self._current = snapshot
        observation, _, info = report(self._task, snapshot.moment)
        return observation, info


class LearnedVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """Many dreams, one world-model step for all.

    A row whose episode has ended starts anew in the next step (``AutoresetMode.NEXT_STEP``): that step
    ignores its action and gives the new first observation with reward 0. The other rows go on; the world
    model's state is the stepped rows' with the new ones appended.

    Args:
        world_model: As for :class:`LearnedEnv`.
        task: As for :class:`LearnedEnv`; all rows share it.
        num_envs: Number of rows, at least 1.
        max_episode_steps: Steps after which an episode is truncated; None for never.
        temperature: As for :class:`LearnedEnv`.
        render_mode: The task's (``"rgb_array"``, for texts ``"ansi"``) or None.

    Raises:
        ValueError: ``num_envs`` below 1, or what :class:`LearnedEnv` refuses.
    """

    metadata = {  # noqa: RUF012  (Gymnasium's own interface)
        "render_modes": ["rgb_array"],
        "render_fps": 2,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        world_model: WorldModel | str | Path,
        task: Task,
        *,
        num_envs: int,
        max_episode_steps: int | None = None,
        temperature: float = 1.0,
        render_mode: str | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; it must be at least 1")
        self.world_model = _ready(world_model, task, temperature)
        self.num_envs = num_envs
        self.max_episode_steps = max_episode_steps
        self.temperature = temperature
        self.render_mode = _render_mode(task, render_mode)
        self.metadata = {
            **self.metadata,
            "render_modes": [task.render_mode],
            "render_fps": task.render_fps,
        }
        self.single_observation_space = task.observation_space
        self.single_action_space = task.action_space
        self.observation_space = batch_space(task.observation_space, num_envs)
        self.action_space = batch_space(task.action_space, num_envs)
        self._task = task
        self._generators = [np_random()[0] for _ in range(num_envs)]
        self._rollout: RolloutState | None = None
        self._moments: list[Moment] = []
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every row, with the same options; row i gets ``seed + i``, or ``seed[i]``.

        Raises:
            ValueError: A list of seeds of another length, unknown options, or what the task refuses.
        """
        options = checked_options(options, self._task.option_names)
        seeds = [seed + row for row in range(self.num_envs)] if isinstance(seed, int | np.integer) else seed
        if seeds is not None:
            if len(seeds) != self.num_envs:
                raise ValueError(
                    f"{len(seeds)} seeds for {self.num_envs} environments; give one each, or one number"
                )
            self._generators = [
                generator if row_seed is None else np_random(int(row_seed))[0]
                for generator, row_seed in zip(self._generators, seeds, strict=True)
            ]
        rows = range(self.num_envs)
        begun = [begin(self._task, self._generators[row], options) for row in rows]
        self._moments = [moment for moment, _, _ in begun]
        self._rollout = self._start(begun)
        self._elapsed[:] = 0
        self._ended[:] = False
        return self._returns([report(self._task, moment) for moment in self._moments])

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Imagine one step in every row whose episode goes on, and start the others anew.

        Raises:
            ValueError: Another number of actions than rows, or an action of the wrong shape, or not finite.
        """
        if self._rollout is None:
            raise gym.error.ResetNeeded("there are no episodes yet; call reset() first")
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments; give one each")
        running, restarting = np.flatnonzero(~self._ended).tolist(), np.flatnonzero(self._ended).tolist()
        reports: dict[int, Report] = {}
        rollout: RolloutState | None = None
        if running:
            rollout, stepped = self._step_rows(running, actions)
            reports.update(stepped)
        if restarting:
            begun = [begin(self._task, self._generators[row], {}) for row in restarting]
            fresh = self._start(begun)
            rollout = fresh if rollout is None else rollout.append(fresh)
            if running:  # back into the order of the rows
                rollout = rollout.select(np.argsort([*running, *restarting]).tolist())
            for row, (moment, _, _) in zip(restarting, begun, strict=True):
                self._moments[row] = moment
                observation, outcome, info = report(self._task, moment)
                reports[row] = observation, replace(outcome, reward=0.0, terminated=False), info
        self._rollout = rollout
        ordered = [reports[row] for row in range(self.num_envs)]
        rewards = np.array([outcome.reward for _, outcome, _ in ordered], dtype=np.float64)
        terminated = np.array([outcome.terminated for _, outcome, _ in ordered], dtype=np.bool_)
        self._elapsed = np.where(self._ended, 0, self._elapsed + 1)
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        if self.max_episode_steps is not None:
            truncated = self._elapsed >= self.max_episode_steps
        self._ended = terminated | truncated
        observations, infos = self._returns(ordered)
        return observations, rewards, terminated, truncated, infos

    def render(self) -> tuple[Any, ...] | None:
        """The present frame or text of every row; None without a render mode."""
        if self.render_mode is None:
            return None
        return tuple(self._task.picture(moment.prediction.observation) for moment in self._moments)

    def _start(self, begun: Sequence[tuple[Moment, History, int]]) -> RolloutState:
        return self.world_model.start(
            [history for _, history, _ in begun], seeds=[dream_seed for _, _, dream_seed in begun]
        )

    def _step_rows(self, rows: list[int], actions: Any) -> tuple[RolloutState, dict[int, Report]]:
        """Step some rows of the batch, and them alone."""
        assert self._rollout is not None
        given = list(iterate(self.action_space, actions))
        checked = [checked_action(self.single_action_space, given[row]) for row in rows]
        rollout = self._rollout if len(rows) == self.num_envs else self._rollout.select(rows)
        rollout, predictions = self.world_model.step(
            rollout,
            _batched(self.single_action_space, [value for value, _ in checked]),
            temperature=self.temperature,
        )
        readings = predictions.states()
        reports = {}
        for k, (row, (value, clipped)) in enumerate(zip(rows, checked, strict=True)):
            moment, error = accept(
                self._task, self._moments[row], predictions[k], readings, k, clipped=clipped
            )
            self._moments[row] = moment
            reports[row] = report(self._task, moment, error, ended=self._task.ends(value))
        return rollout, reports

    def _returns(self, reports: Sequence[Report]) -> tuple[Any, dict[str, Any]]:
        """Observations on a new first axis, and infos in Gymnasium's form (arrays, and masks ``_key``)."""
        infos: dict[str, Any] = {}
        for row, (_, _, info) in enumerate(reports):
            infos = self._add_info(infos, info, row)
        buffer: Any = create_empty_array(self.single_observation_space, self.num_envs)
        observations = concatenate(
            self.single_observation_space, [observation for observation, _, _ in reports], buffer
        )
        return observations, infos


def _ready(world_model: WorldModel | str | Path, task: Task, temperature: float) -> WorldModel:
    """The world model itself, loaded if it is a name, once it is known to fit the task."""
    if not (np.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature is {temperature}; it must be a finite number of at least 0")
    if isinstance(world_model, str | Path):
        from worldmodels import load  # imports torch, which an environment over another model may not need

        world_model = load(world_model)
    if not isinstance(world_model, WorldModel):
        raise ValueError(
            f"world_model is {type(world_model).__name__}; give the name, folder or hub id of a checkpoint, or a"
            " worldmodels.api.WorldModel: start, step, history_length and action_shape"
        )
    expected = task.action_space.shape if isinstance(task.action_space, gym.spaces.Box) else None
    if world_model.action_shape != expected:
        raise ValueError(
            f"the world model takes actions of shape {world_model.action_shape}, the task gives {expected};"
            " choose a model of this environment, or the frame_skip that the model was trained with"
        )
    trained_for = getattr(world_model, "protocol", {})
    for key, value in task.protocol.items():
        found = trained_for.get(key, value)
        if (list(found) if isinstance(found, tuple) else found) != value:  # JSON knows no tuples
            raise ValueError(
                f"the world model was trained for {key} = {found!r}, but this environment has {value!r};"
                " choose a checkpoint of the same protocol"
            )
    return world_model


def _render_mode(task: Task, render_mode: str | None) -> str | None:
    if render_mode not in (None, task.render_mode):
        raise ValueError(f"render_mode is {render_mode!r}; it may be {task.render_mode!r} or None")
    return render_mode


def _batched(space: gym.Space[Any], actions: Sequence[Any]) -> Any:
    """Actions of all rows as a world model takes them: one array, or a list of texts."""
    return np.stack(actions).astype(space.dtype) if isinstance(space, gym.spaces.Box) else list(actions)
