"""Imagine candidate plans in a world model and price them.

Special: every problem's rollout is forked once per candidate and stepped in chunks, so memory is bounded
whatever the batch; the answer does not depend on the chunk size because every copy draws from a seed of its
own.

Absent on purpose: the search (:mod:`planners.search`), the goal (:mod:`planners.goal_cost`), and the true
simulator, which can take the place of :class:`ImaginedCost` as any other :class:`CostSource` (an oracle row
of a table).

Shapes: P problems, N candidates, H horizon steps, A numbers in one action.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from planners.goal_cost import GoalCost
from planners.search import CostFunction
from worldmodels.api import History, RolloutState, WorldModel


class CostSource(Protocol):
    """Gives the cost function of P problems as they stand now. Must not consult the true environment."""

    @property
    def history_length(self) -> int:
        """How many past observations are of use."""
        ...

    @property
    def action_size(self) -> int:
        """Numbers in one planned action, A."""
        ...

    def __call__(
        self, histories: Sequence[History], goals: Sequence[Any], *, seeds: Sequence[int]
    ) -> CostFunction:
        """The function ``(P, N, H, A) -> (P, N)`` of candidates that start after these histories."""
        ...


@dataclass(frozen=True, kw_only=True)
class ImaginedCost:
    """Prices candidates by imagining them in a world model: the :class:`CostSource` of a planner that dreams.

    Attributes:
        world_model: Where to imagine. Its actions must be arrays.
        goal_cost: Distance of a prediction from a goal.
        temperature: Of the world model; 0 takes the likeliest tokens.
        chunk_rows: At most so many rollouts are stepped at once.
        step_weight_base: None prices the last prediction only; b weighs step i with b^i (see
            :func:`step_weights`).
    """

    world_model: WorldModel
    goal_cost: GoalCost
    temperature: float = 0.0
    chunk_rows: int = 1024
    step_weight_base: float | None = None

    @property
    def history_length(self) -> int:
        """That of the world model."""
        return self.world_model.history_length

    @property
    def action_size(self) -> int:
        """Numbers in one action of the world model."""
        return math.prod(_action_shape(self.world_model))

    def __call__(
        self, histories: Sequence[History], goals: Sequence[Any], *, seeds: Sequence[int]
    ) -> CostFunction:
        """Read the histories once; the returned function can be called for many sets of candidates."""
        state = self.world_model.start(histories, seeds=seeds)

        def cost(candidates: Tensor) -> Tensor:
            return imagine(
                self.world_model,
                state,
                candidates,
                self.goal_cost,
                goals,
                temperature=self.temperature,
                chunk_rows=self.chunk_rows,
                step_weight_base=self.step_weight_base,
            )

        return cost


def imagine(
    world_model: WorldModel,
    state: RolloutState,
    candidates: Tensor,
    goal_cost: GoalCost,
    goals: Sequence[Any],
    *,
    temperature: float = 0.0,
    chunk_rows: int = 1024,
    step_weight_base: float | None = None,
) -> Tensor:
    """Costs ``(P, N)`` of candidate plans, in the dtype and on the device of ``candidates``.

    Args:
        world_model: Where to imagine.
        state: P rollouts; stays valid and unchanged.
        candidates: ``(P, N, H, A)``; A numbers are reshaped to the world model's ``action_shape``.
        goal_cost: Called with the predictions of some rows and the goals they belong to.
        goals: P goals.
        temperature: Of the world model. Candidate n of a problem draws from the n-th derived seed.
        chunk_rows: At most so many rows are stepped at once, and about so many are held in memory.
        step_weight_base: None prices the last step only; b prices all steps (see :func:`step_weights`).

    Raises:
        ValueError: on sizes that do not fit each other.
    """
    action_shape = _action_shape(world_model)
    if candidates.ndim != 4 or candidates.shape[3] != math.prod(action_shape) or 0 in candidates.shape:
        raise ValueError(
            f"candidates have shape {tuple(candidates.shape)}; expected (problems, samples, horizon,"
            f" {math.prod(action_shape)}) because the world model takes actions of shape {action_shape}"
        )
    problems, samples, horizon, _ = candidates.shape
    if len(state) != problems or len(goals) != problems:
        raise ValueError(
            f"{problems} problems, but the state has {len(state)} rows and there are {len(goals)} goals"
        )
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}")
    weights = step_weights(horizon, step_weight_base)
    actions = candidates.detach().float().cpu().numpy().reshape(problems, samples, horizon, *action_shape)
    costs = torch.zeros(problems, samples, device=candidates.device, dtype=candidates.dtype)
    for rows, first, last, rollout in _chunks(state, samples, chunk_rows):
        plans = actions[rows, first:last].reshape(-1, horizon, *action_shape)
        for step, weight in enumerate(weights):
            rollout, predictions = world_model.step(
                rollout, np.ascontiguousarray(plans[:, step]), temperature=temperature
            )
            if weight:
                priced = goal_cost(predictions, goals[rows])
                costs[rows, first:last] += weight * priced.to(costs).view(-1, last - first)
    return costs


def step_weights(horizon_steps: int, base: float | None) -> list[float]:
    """Weight of each step's cost: 1 for the last and 0 before, or base^i, i = 1..H, scaled to sum 1.

    Base 2 orders plans as DINO-WM's objective "all" does; that one also counts the unchanging first frame.
    """
    if base is None:
        return [0.0] * (horizon_steps - 1) + [1.0]
    if not base > 0:
        raise ValueError(f"step_weight_base must be positive, or None for the last step only, got {base}")
    weights = [base**i for i in range(1, horizon_steps + 1)]
    return [weight / sum(weights) for weight in weights]


def _action_shape(world_model: WorldModel) -> tuple[int, ...]:
    if world_model.action_shape is None:
        raise ValueError(
            "this world model takes texts as actions; sampling planners need actions that are arrays"
        )
    return world_model.action_shape


def _chunks(
    state: RolloutState, samples: int, chunk_rows: int
) -> Iterator[tuple[slice, int, int, RolloutState]]:
    """Problems (a slice), first and last sample (exclusive), and the forked rows of these, problem by
    problem.

    Either whole problems, or a part of one problem's samples, so that rows of a goal always lie side by side.
    """
    problems = len(state)
    group = max(1, chunk_rows // samples)
    for start in range(0, problems, group):
        rows = slice(start, min(start + group, problems))
        forked = (state if group >= problems else state.select(range(*rows.indices(problems)))).fork(samples)
        if samples <= chunk_rows:
            yield rows, 0, samples, forked
            continue
        for first in range(0, samples, chunk_rows):
            last = min(first + chunk_rows, samples)
            yield rows, first, last, forked.select(range(first, last))
