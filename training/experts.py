"""A goal-reaching PushT expert: plans with the true simulator, many worlds at once.

Special: a small search (one held action per five steps, few samples) is enough to behave on purpose; it is
meant to make training data, not to be the oracle row of a table (``evaluate`` has that one).
"""

from __future__ import annotations

import numpy as np
import torch

from planners.cem import CEM, CEMConfig
from rlvr_envs.simulators.pusht import (
    ANGLE_TOLERANCE_RAD,
    POSITION_TOLERANCE_PX,
    FloatArray,
    angle_difference,
)
from rlvr_envs.simulators.pusht_batch import PushTBatch
from rlvr_envs.simulators.pusht_policies import clearance

PLAN_STEPS = 25  # environment steps between two plans
HOLD_STEPS = 5  # one planned action is kept that long
NUM_SAMPLES = 32
NEW_GOAL_PROBABILITY = 0.5
AGENT_WEIGHT = 0.03


def sample_goals(states: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Goals ``(N, 5)`` near the present states: the block moved by 10-90 px and turned, the agent beside it."""
    count = len(states)
    direction = generator.uniform(0, 2 * np.pi, size=count)
    distance = generator.uniform(15, 90, size=count)
    goals = np.zeros((count, 7))
    goals[:, 2] = np.clip(states[:, 2] + distance * np.cos(direction), 80, 432)
    goals[:, 3] = np.clip(states[:, 3] + distance * np.sin(direction), 80, 432)
    goals[:, 4] = states[:, 4] + generator.normal(size=count) * 0.5
    todo = np.arange(count)
    while len(todo):
        around = generator.uniform(-150, 150, size=(len(todo), 2))
        goals[todo, :2] = np.clip(goals[todo, 2:4] + around, 20, 492)
        todo = todo[clearance(goals[todo]) < 16]
    return goals[:, :5]


class BatchExpert:
    """Plans 25 steps towards a random goal, executes them open loop with a little noise, plans again.

    Args:
        states: Where the worlds start, ``(N, 7)``.
        generator: Source of all randomness.
    """

    def __init__(self, states: FloatArray, generator: np.random.Generator) -> None:
        self._generator = generator
        self._goals = sample_goals(states, generator)
        self._imagined = PushTBatch(len(states) * NUM_SAMPLES)
        self._noise = generator.uniform(0.0, 0.08, size=(len(states), 1))
        self._planner = CEM(
            CEMConfig(
                num_samples=NUM_SAMPLES,
                num_elites=5,
                iterations=4,
                sigma=0.3,
                keep_elites=2,
                action_low=-1.0,
                action_high=1.0,
            )
        )
        self._plan = np.zeros((len(states), PLAN_STEPS // HOLD_STEPS, 2))
        self._step = 0

    def act(self, states: FloatArray) -> FloatArray:
        """Actions ``(N, 2)``."""
        if self._step % PLAN_STEPS == 0:
            self._replan(states)
        action = self._plan[:, self._step % PLAN_STEPS // HOLD_STEPS]
        self._step += 1
        return np.clip(action + self._generator.normal(size=action.shape) * self._noise, -1, 1)

    def _replan(self, states: FloatArray) -> None:
        if self._step:
            renewed = self._generator.uniform(size=len(states)) < NEW_GOAL_PROBABILITY
            self._goals = np.where(renewed[:, None], sample_goals(states, self._generator), self._goals)
        seeds = self._generator.integers(0, 2**62, size=len(states)).tolist()

        def cost(candidates: torch.Tensor) -> torch.Tensor:
            problems, samples, horizon, size = candidates.shape
            flat = candidates.reshape(problems * samples, horizon, size).double().numpy()
            self._imagined.set_states(np.repeat(states, samples, axis=0))
            for step in range(horizon * HOLD_STEPS):
                last = self._imagined.step(flat[:, step // HOLD_STEPS])
            return torch.from_numpy(goal_distance(last, np.repeat(self._goals, samples, axis=0))).reshape(
                problems, samples
            )

        plan = self._planner.plan(cost, horizon_steps=PLAN_STEPS // HOLD_STEPS, action_size=2, seeds=seeds)
        self._plan = plan.actions.numpy()


def goal_distance(states: FloatArray, goals: FloatArray) -> FloatArray:
    """Squared distance to the goals in units of the success tolerances, ``(N,)``."""
    agent = np.square(states[:, :2] - goals[:, :2]).sum(-1)
    block = np.square(states[:, 2:4] - goals[:, 2:4]).sum(-1)
    turn = angle_difference(states[:, 4], goals[:, 4])
    return np.asarray(
        (AGENT_WEIGHT * agent + block) / POSITION_TOLERANCE_PX**2 + np.square(turn / ANGLE_TOLERANCE_RAD)
    )
