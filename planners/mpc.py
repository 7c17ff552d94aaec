"""Receding-horizon control of P problems at once: plan in the model, execute some of it, look, plan again.

Special: the true environment is only ever stepped and looked at, never asked while planning; problems that
are done leave the batch, and that changes nothing for the others. With ``replan_every = H``,
``shrink_horizon = False``, a reference planner and success reported at each replan, this is DINO-WM's loop,
except that it re-executes everything from the start after each plan and stops the search when the true
environment succeeds.

Absent on purpose: environments (an ``act`` callable), success rules (``act`` says who is done), videos and
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planners.rollout import CostSource
from planners.search import Plan, Planner
from worldmodels.api import History, Observation
from worldmodels.sampling import derive

Act: TypeAlias = Callable[
    [Sequence[int], NDArray[np.floating[Any]]], tuple[Sequence[Observation], Sequence[bool]]
]
"""Problem numbers and their actions ``(n, A)`` -> their next observations, and whether each is done."""


@dataclass(frozen=True, kw_only=True)
class MPCConfig:
    """Settings of :class:`MPC`.

    Attributes:
        horizon_steps: Planned steps, H.
        replan_every: So many planned steps are executed before the next plan.
        shrink_horizon: Plan H, then H - replan_every, ... steps, so that a goal H steps away is reached at
            its time, and start again with H after that; never beyond the budget. With a cost on the last step
            only, a constant horizon keeps postponing the arrival when less than H steps are executed.
        warm_start: Start each search from the steps of the last plan that were not executed.
        env_steps_per_action: Environment steps that one planned action stands for (frame skip).
        budget_env_steps: No more environment steps than this per problem.

    Raises:
        ValueError: a setting is out of its range.
    """

    horizon_steps: int = 5
    replan_every: int = 1
    shrink_horizon: bool = True
    warm_start: bool = True
    env_steps_per_action: int = 5
    budget_env_steps: int = 50

    def __post_init__(self) -> None:
        for name in ("horizon_steps", "replan_every", "env_steps_per_action"):
            if getattr(self, name) < 1:
                raise ValueError(f"MPCConfig.{name} must be at least 1, got {getattr(self, name)}")
        if self.replan_every > self.horizon_steps:
            raise ValueError(
                f"MPCConfig.replan_every must be at most horizon_steps = {self.horizon_steps},"
                f" got {self.replan_every}"
            )
        if self.budget_env_steps < self.env_steps_per_action:
            raise ValueError(
                f"MPCConfig.budget_env_steps must allow one action of {self.env_steps_per_action} environment"
                f" steps, got {self.budget_env_steps}"
            )

    @property
    def budget_actions(self) -> int:
        """Planned actions that fit into the budget."""
        return self.budget_env_steps // self.env_steps_per_action

    def horizon(self, steps_taken: int) -> int:
        """Steps to plan after so many executed ones."""
        if not self.shrink_horizon:
            return self.horizon_steps
        return self.horizon_steps - steps_taken % self.horizon_steps


@dataclass(frozen=True, kw_only=True)
class MPCResult:
    """What happened to P problems.

    Attributes:
        done: ``(P,)`` bool.
        num_actions: ``(P,)`` planned actions executed; environment steps are these times
            ``env_steps_per_action``.
        actions: Per problem, ``(num_actions, A)``.
        planned_costs: Per problem, the model's cost of each of its plans.
    """

    done: NDArray[np.bool_]
    num_actions: NDArray[np.int64]
    actions: list[NDArray[np.floating[Any]]]
    planned_costs: list[list[float]]


@dataclass(frozen=True, kw_only=True)
class MPC:
    """Model-predictive control.

    Attributes:
        planner: CEM, iCEM, MPPI or your own.
        cost_source: The world model with its goal cost (:class:`planners.ImaginedCost`), or a stand-in.
        config: Horizon, replanning and budget.
    """

    planner: Planner
    cost_source: CostSource
    config: MPCConfig = MPCConfig()

    def plan(
        self,
        histories: Sequence[History],
        goals: Sequence[Any],
        *,
        seeds: Sequence[int],
        steps_taken: int = 0,
        steps_left: int | None = None,
        tail: Tensor | None = None,
    ) -> Plan:
        """One plan for each problem, from what was seen so far.

        Args:
            histories: What each problem has seen and done.
            goals: Their goals.
            seeds: Their seeds; a replan draws from seeds derived with ``steps_taken``.
            steps_taken: Planned actions executed so far.
            steps_left: Planned actions that the budget still allows; limits a shrinking horizon.
            tail: ``(P, T, A)`` untaken actions of the last plan.
        """
        base = torch.as_tensor(list(seeds), dtype=torch.int64)
        model_seeds, planner_seeds = (derive(base, 2 * steps_taken + k).tolist() for k in (1, 2))
        horizon = self.config.horizon(steps_taken)
        if self.config.shrink_horizon and steps_left is not None:
            horizon = min(horizon, steps_left)
        initial = tail[:, :horizon] if tail is not None and self.config.warm_start else None
        return self.planner.plan(
            self.cost_source(histories, goals, seeds=model_seeds),
            horizon_steps=horizon,
            action_size=self.cost_source.action_size,
            seeds=planner_seeds,
            initial=initial,
        )

    def run(
        self, observations: Sequence[Observation], goals: Sequence[Any], act: Act, *, seeds: Sequence[int]
    ) -> MPCResult:
        """Control all problems until each is done or its budget is spent.

        Args:
            observations: First observation of each problem.
            goals: Goal of each.
            act: Executes one planned action in the environments of the given problems.
            seeds: One per problem.

        Raises:
            ValueError: if the numbers of observations, goals and seeds differ, or ``act`` returns another
                number.
        """
        if not len(observations) == len(goals) == len(seeds):
            raise ValueError(
                f"one observation, goal and seed per problem are needed, got {len(observations)},"
                f" {len(goals)} and {len(seeds)}"
            )
        histories = [History(observations=(observation,)) for observation in observations]
        actions: list[list[NDArray[np.floating[Any]]]] = [[] for _ in goals]
        planned_costs: list[list[float]] = [[] for _ in goals]
        active, taken, tail = list(range(len(goals))), 0, None
        while active and taken < self.config.budget_actions:
            plan = self.plan(
                [histories[p] for p in active],
                [goals[p] for p in active],
                seeds=[seeds[p] for p in active],
                steps_taken=taken,
                steps_left=self.config.budget_actions - taken,
                tail=tail,
            )
            for problem, cost in zip(active, plan.cost.tolist(), strict=True):
                planned_costs[problem].append(cost)
            planned = plan.actions.cpu().numpy()
            steps = min(self.config.replan_every, planned.shape[1], self.config.budget_actions - taken)
            rows = list(range(len(active)))  # of the plan, of those not done
            for step in range(steps):
                problems = [active[row] for row in rows]
                now = planned[rows, step]
                seen, done = act(problems, now)
                if not len(seen) == len(done) == len(problems):
                    raise ValueError(
                        f"act got {len(problems)} problems and returned {len(seen)} observations and"
                        f" {len(done)} done flags"
                    )
                for problem, action, observation in zip(problems, now, seen, strict=True):
                    actions[problem].append(action)
                    histories[problem] = extended(
                        histories[problem], action, observation, length=self.cost_source.history_length
                    )
                rows = [row for row, stop in zip(rows, done, strict=True) if not stop]
                if not rows:
                    break
            taken += steps
            active = [active[row] for row in rows]
            tail = plan.actions[rows, steps:]
        still = set(active)
        return MPCResult(
            done=np.array([p not in still for p in range(len(goals))], dtype=bool),
            num_actions=np.array([len(a) for a in actions], dtype=np.int64),
            actions=[np.stack(a) if a else np.zeros((0, self.cost_source.action_size)) for a in actions],
            planned_costs=planned_costs,
        )


def extended(history: History, action: Any, observation: Observation, *, length: int) -> History:
    """The history after one more action, cut to its last ``length`` observations."""
    observations = [*history.observations, observation][-length:]
    actions = [*history.actions, action]
    return History(
        observations=observations,
        actions=actions[len(actions) - len(observations) + 1 :],
        instruction=history.instruction,
    )
