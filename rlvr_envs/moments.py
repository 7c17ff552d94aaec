"""What an episode is about (``Task``), and one row of a dream: how it begins, goes on, and is shown.

Special: plain functions on an immutable moment, so the single and the batched environment go through the same
lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlvr_envs.spaces import checked_action, checked_observation, holds
from worldmodels.api import History, Observation, Prediction


@dataclass(frozen=True, kw_only=True)
class Start:
    """How an episode begins.

    Attributes:
        history: What the world model sees first; its last observation is the episode's first.
        goal: Whatever the task judges by.
        reading: The physical state shown by the last observation, where it is known.
    """

    history: History
    goal: Any
    reading: NDArray[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a task says of one prediction. ``info`` must not hold keys of the observation."""

    reward: float
    terminated: bool
    info: Mapping[str, Any]


class Task(Protocol):
    """What an episode is about, whatever moves its world."""

    @property
    def observation_space(self) -> gym.Space[Any]:
        """Of one environment."""
        ...

    @property
    def action_space(self) -> gym.Space[Any]:
        """Of one environment."""
        ...

    @property
    def option_names(self) -> tuple[str, ...]:
        """The reset options that ``start`` understands."""
        ...

    @property
    def protocol(self) -> Mapping[str, Any]:
        """What a world model must have been trained for, as far as its checkpoint says."""
        ...

    @property
    def render_fps(self) -> float:
        """Steps per second of the world's own time."""
        ...

    def start(self, generator: np.random.Generator, options: Mapping[str, Any]) -> Start:
        """A first context and a goal, random or from the options."""
        ...

    def judge(
        self,
        goal: Any,
        prediction: Prediction,
        reading: NDArray[Any] | None,
        previous: Observation | None,
    ) -> Outcome:
        """Judge a prediction and the world model's own reading of its state.

        Where ``prediction.error`` is set, the rest of it and the reading are the last good ones. ``previous`` is the
        observation before it; None at the start of an episode.
        """
        ...

    def ends(self, action: Any) -> bool:
        """Whether taking this (checked) action ends the episode, whatever the world makes of it."""
        ...

    @property
    def render_mode(self) -> str:
        """``"rgb_array"`` or ``"ansi"``: what :meth:`picture` gives."""
        ...

    def picture(self, observation: Observation) -> Any:
        """What to show for an observation: a frame ``(H, W, 3)`` uint8, or a text."""
        ...


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where one row stands, apart from the world model's own state: the last good answer, and what was before it."""

    goal: Any
    prediction: Prediction
    reading: NDArray[Any] | None
    clipped_actions: int = 0
    previous: Observation | None = None


Report: TypeAlias = tuple[Any, Outcome, dict[str, Any]]
"""Observation, judgement, and the whole ``info``."""


def begin(
    task: Task, generator: np.random.Generator, options: Mapping[str, Any]
) -> tuple[Moment, History, int]:
    """A row's first moment, what the world model sees, and its seed (drawn first: no option changes it)."""
    dream_seed = int(generator.integers(2**62))
    start = task.start(generator, options)
    observation = start.history.observations[-1]
    prediction = Prediction(observation=observation)
    return Moment(goal=start.goal, prediction=prediction, reading=start.reading), start.history, dream_seed


def accept(
    task: Task, moment: Moment, prediction: Prediction, readings: NDArray[Any] | None, row: int, clipped: int
) -> tuple[Moment, str]:
    """The next moment, and what is wrong with the prediction: "", or the last good one is kept."""
    error = prediction.error or ("" if prediction.observation is not None else "no observation was predicted")
    if not error and not holds(task.observation_space, prediction.observation):
        error = "the predicted observation is outside the observation space"
    moment = replace(moment, clipped_actions=moment.clipped_actions + clipped)
    moment = replace(moment, previous=moment.prediction.observation)
    if error:
        return moment, error
    return replace(moment, prediction=prediction, reading=None if readings is None else readings[row]), ""


def report(task: Task, moment: Moment, error: str = "", *, ended: bool = False) -> Report:
    """What the user gets to see of a moment; copies, so that nobody changes the kept observation.

    ``ended``: the last action has ended the episode.
    """
    prediction = moment.prediction
    if error:
        prediction = replace(prediction, reward=None, terminated=False, error=error)
    outcome = task.judge(moment.goal, prediction, moment.reading, moment.previous)
    if ended:
        outcome = replace(outcome, terminated=True)
    info = {
        "prediction_error": error,
        **outcome.info,
        "clipped_actions": moment.clipped_actions,
    }
    return deepcopy(prediction.observation), outcome, info


def history_option(
    options: Mapping[str, Any], observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> History | None:
    """The ``history`` or ``observation`` of reset options, checked, or None if neither is there.

    Raises:
        ValueError: Both are given, or they do not fit each other or the spaces.
    """
    if "history" not in options and "observation" not in options:
        return None
    if "history" in options and "observation" in options:
        raise ValueError("options has both 'history' and 'observation'; give one of them")
    history = options.get("history")
    if history is None:
        history = History(observations=(options["observation"],))
    if not isinstance(history, History):
        raise ValueError(f"options['history'] is {type(history).__name__}; give a worldmodels.api.History")
    if len(history.observations) != len(history.actions) + 1:
        raise ValueError(
            f"options['history'] has {len(history.observations)} observations and {len(history.actions)} actions;"
            " there must be one observation more than actions"
        )
    for observation in history.observations:
        checked_observation("an observation of the options", observation_space, observation)
    actions = [checked_action(action_space, action)[0].astype(np.float32) for action in history.actions]
    return replace(history, observations=tuple(history.observations), actions=tuple(actions))
