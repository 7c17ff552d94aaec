"""Model-predictive control as a policy, for one episode of any environment.

Special: the same :class:`planners.MPC` as in the batched evaluation, so a policy and an evaluation with one
problem act alike. Absent on purpose: a budget (the environment truncates) and goals in words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from planners.mpc import MPC, extended
from worldmodels.api import History, Observation


class MPCPolicy:
    """Replans every ``mpc.config.replan_every`` planned actions.

    Args:
        mpc: Planner, world model with goal cost, horizon. ``env_steps_per_action`` is how many environment
            steps one planned action stands for: it is cut into that many equal parts, acted out one by one
            without looking.
        goal: What the goal cost compares with.
        action_shape: Shape of one environment action.

    Raises:
        ValueError: if a planned action does not have as many numbers as its environment actions.
    """

    def __init__(self, mpc: MPC, goal: Any, *, action_shape: tuple[int, ...]) -> None:
        parts, size = mpc.config.env_steps_per_action, mpc.cost_source.action_size
        if size != parts * int(np.prod(action_shape)):
            raise ValueError(
                f"a planned action has {size} numbers, which are not {parts} environment actions"
                f" (env_steps_per_action) of shape {action_shape}"
            )
        self.mpc = mpc
        self.goal = goal
        self.action_shape = action_shape
        self.reset(seed=0)

    def reset(self, *, seed: int, instruction: str | None = None) -> None:
        """Start an episode; the instruction is ignored, the goal stays."""
        self._seed = seed
        self._history: History | None = None
        self._actions: NDArray[np.floating[Any]] = np.zeros(
            (0, self.mpc.cost_source.action_size)
        )  # yet to execute
        self._parts: list[NDArray[np.floating[Any]]] = []  # of the planned action that is being executed
        self._last: NDArray[np.floating[Any]] | None = None
        self._tail: Tensor | None = None
        self._taken = 0

    def act(self, observation: Observation) -> NDArray[np.float32]:
        """The next environment action, float32 of ``action_shape``."""
        if not self._parts:
            self._look(observation)
            if not len(self._actions):
                self._replan()
            self._last, self._actions = self._actions[0], self._actions[1:]
            self._taken += 1
            parts = self._last.reshape(self.mpc.config.env_steps_per_action, *self.action_shape)
            self._parts = list(parts.astype(np.float32))
        return self._parts.pop(0)

    def _look(self, observation: Observation) -> None:
        if self._history is None:
            self._history = History(observations=(observation,))
        else:
            length = self.mpc.cost_source.history_length
            self._history = extended(self._history, self._last, observation, length=length)

    def _replan(self) -> None:
        assert self._history is not None
        plan = self.mpc.plan(
            [self._history], [self.goal], seeds=[self._seed], steps_taken=self._taken, tail=self._tail
        )
        steps = min(self.mpc.config.replan_every, plan.actions.shape[1])
        self._actions = plan.actions[0, :steps].cpu().numpy()
        self._tail = plan.actions[:, steps:]
