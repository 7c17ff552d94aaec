"""The contract: the few types that everything in this project passes through.

Special: no torch and nothing of ours is imported here, so environments, planners and tests can talk about
world models without loading one. A type enters only if two packages use it. Everything is *sequences in,
sequences out*: one call handles a batch, and a batch of one is not a special case.

Absent on purpose: tensors, devices, configuration, registries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Observation: TypeAlias = Any
"""What one environment returns at one time: an array, a ``dict`` of arrays, or a text."""

Action: TypeAlias = Any
"""What one environment takes: an array or a text."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One recorded trajectory of T steps.

    Attributes:
        id: Unique name inside its data set. Splits are made by this name.
        observations: T + 1 observations, *stacked*: an array ``(T+1, ...)``, a ``dict`` of such arrays, or a list of
            texts.
        actions: T actions: an array ``(T, ...)`` or a list of texts.
        rewards: ``(T,)`` float64.
        terminated: True if the episode ended by the task's own rule at its last step.
        truncated: True if it was cut at its last step.
        info: Whatever else was recorded; arrays ``(T+1, ...)`` (for example ``"state"``) or scalars.
    """

    id: str
    observations: Observation
    actions: Any
    rewards: NDArray[np.float64]
    terminated: bool = False
    truncated: bool = True
    info: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of steps T."""
        return len(self.actions)


@dataclass(frozen=True, kw_only=True)
class History:
    """What has been seen and done so far.

    Attributes:
        observations: At least one observation, oldest first, the current one last.
        actions: The ``len(observations) - 1`` actions between them.
        instruction: What the episode is about where no observation says so: a command to a robot, or a game's name.
    """

    observations: Sequence[Observation]
    actions: Sequence[Action] = ()
    instruction: str = ""


@dataclass(frozen=True, kw_only=True)
class Transition:
    """The question put to a world model.

    Attributes:
        history: What came before.
        actions: H >= 1 actions from now on (H = 1 is single-step prediction; RT-1's multi-step model takes 7).
        targets: The H recorded next observations, where they are known: what rewards compare with.
    """

    history: History
    actions: Sequence[Action]
    targets: Sequence[Observation] | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer for one step.

    Attributes:
        observation: The predicted next observation, or None where the answer could not be decoded.
        reward: Predicted reward, where the model predicts one.
        terminated: Predicted end of the episode.
        error: Why ``observation`` is None, in words; None when all is well.
        probability: How likely the model finds this answer among all that it could give, in [0, 1]; 1 where it does
            not say.
    """

    observation: Observation | None
    reward: float | None = None
    terminated: bool = False
    error: str | None = None
    probability: float = 1.0


@runtime_checkable
class Predictions(Protocol):
    """A batch of B answers that decodes its observations only when asked (a planner often needs none of them)."""

    def __len__(self) -> int:
        """Batch size B."""
        ...

    def __getitem__(self, row: int) -> Prediction:
        """The answer of one row, decoded."""
        ...

    def observations(self) -> Observation:
        """All B observations stacked on a new first axis; computed once, then kept."""
        ...

    def states(self) -> NDArray[np.float32] | None:
        """``(B, D)`` physical state as the model itself reads it from its tokens, or None if it cannot say."""
        ...


class RolloutState(Protocol):
    """Where B imagined rollouts stand. Immutable and opaque: an old state stays valid after ``step``.

    Snapshot, backtracking and tree search therefore cost nothing but memory.
    """

    def __len__(self) -> int:
        """Number of rows B."""
        ...

    def fork(self, n: int) -> RolloutState:
        """Repeat every row n times (row b becomes rows b*n .. b*n+n-1), each copy with a derived seed of its own.

        The first copy keeps the row's seed, so ``fork(1)`` changes nothing.
        """
        ...

    def select(self, rows: Sequence[int]) -> RolloutState:
        """The given rows, in the given order; a row may be taken twice and then draws the same numbers twice."""
        ...

    def append(self, other: RolloutState) -> RolloutState:
        """The rows of this state followed by those of another of the same model, each going on as it would alone.

        The rows may have taken different numbers of steps. This is how a batch in which some episodes have ended
        gets new ones in their place.
        """
        ...


@runtime_checkable
class WorldModel(Protocol):
    """Predicts the next observation of B rollouts at once.

    Attributes:
        history_length: How many observations a history may hold that count; fewer are accepted, older ones ignored.
        action_shape: Shape of one action, or None for texts.
    """

    history_length: int
    action_shape: tuple[int, ...] | None

    def start(self, histories: Sequence[History], *, seeds: Sequence[int]) -> RolloutState:
        """Begin one rollout per history, each with its own seed."""
        ...

    def step(
        self, state: RolloutState, actions: Any, *, temperature: float = 1.0
    ) -> tuple[RolloutState, Predictions]:
        """Apply one action per row. ``temperature`` 0 takes the likeliest tokens.

        The same (seed, step, token index) always draws the same random number, whatever the batch.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a verifiable reward says of one answer: ``value`` (higher is better) and the named parts it is made of."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)


class VerifiableReward(Protocol):
    """Compares predictions with the recorded next observations: the quality of a prediction, not the task's reward.

    ``predictions[i]`` holds the H answers to ``transitions[i]``, H = ``len(transitions[i].actions)``.
    """

    def __call__(
        self, predictions: Sequence[Sequence[Prediction]], transitions: Sequence[Transition]
    ) -> list[Score]:
        """One score per transition. A score that is not finite is an error of the reward, never silently dropped."""
        ...


class Policy(Protocol):
    """Anything that acts: scripted, behaviour-cloned, a planner, RT-1, a web agent."""

    def reset(self, *, seed: int, instruction: str | None = None) -> None:
        """Forget everything and start an episode."""
        ...

    def act(self, observation: Observation) -> Action:
        """The action for one observation."""
        ...
