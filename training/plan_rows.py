"""The rows of the planning table: who acts, in which model it plans, and what it knows of start and goal.

Special: one frozen ``PlanRow`` says everything about a row, so it can be hashed, sent to another process and
listed. The diagnosis rows swap the truth in for one part at a time: "poses read by" a model is the true
dynamics with the model's eyes, "true goal" is the learned dynamics with the goal's true state, "larger
search" leaves only the model and the cost to blame.

Absent: how goals are chosen and judged (``training.goals``) and the table (``training.plan``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from planners import (
    CEMConfig,
    CostSource,
    DinoCost,
    GoalCost,
    ImaginedCost,
    PerceptualCost,
    PixelCost,
    StateCost,
    StateCostConfig,
)
from planners.rollout import step_weights
from planners.search import CostFunction
from rlvr_envs.simulators.pusht import FloatArray
from rlvr_envs.simulators.pusht_batch import PushTBatch
from worldmodels.api import History, Observation, WorldModel
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.object_world import FramePredictions, ObjectWorldModel

# Small trials on PushT: 128 samples x 10 iterations, best 10 % (feasible on two cores); all actions are in [-1, 1].
SEARCH = CEMConfig(
    num_samples=128, num_elites=13, iterations=10, sigma=0.25, action_low=-1.0, action_high=1.0
)
# The published planner's numbers (DINO-WM): 300 samples, 30 elites, 30 iterations.
LARGER_SEARCH = replace(SEARCH, num_samples=300, num_elites=30, iterations=30)


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One row.

    Attributes:
        dynamics: Who acts: a random policy, nobody, or a planner in the true simulator or in a world model.
        model: Name of the world model. With the simulator: whose tokenizer reads start and goal (None: true states).
        true_goal: A world model gets the goal's true state instead of reading it from the goal's frame.
        cost: Distance from the goal: of states, or of frames (then a world model is needed).
        search: The planner.
        state_cost: Weights of the distance of states.
        step_weight_base: None prices the last step only; see ``planners.rollout.step_weights``.
        held: Plan one environment action per model step, and hold it, instead of one for each environment step.
    """

    dynamics: Literal["random", "stay", "simulator", "model"]
    model: str | None = None
    true_goal: bool = False
    cost: Literal["state", "pixels", "lpips", "dino"] = "state"
    search: CEMConfig = SEARCH
    state_cost: StateCostConfig = field(default_factory=StateCostConfig)
    step_weight_base: float | None = None
    held: bool = False


def standard_rows(models: Sequence[str], *, search: CEMConfig = SEARCH) -> dict[str, PlanRow]:
    """The rows that are always printed: trivial policies, the oracle, and every world model."""
    return {
        "random policy": PlanRow(dynamics="random"),
        "stay": PlanRow(dynamics="stay"),
        "oracle": PlanRow(dynamics="simulator", search=search),
        **{name: PlanRow(dynamics="model", model=name, search=search) for name in models},
    }


def diagnosis_rows(models: Sequence[str], *, search: CEMConfig = SEARCH) -> dict[str, PlanRow]:
    """Further rows, asked for by name: one part swapped at a time, other searches and other costs."""
    rows: dict[str, PlanRow] = {}
    plain = standard_rows(models, search=search)
    for name in ("oracle", *models):
        row = plain[name]
        rows |= {
            f"{name}, larger search": replace(row, search=LARGER_SEARCH),
            f"{name}, 3 restarts": replace(row, search=replace(search, restarts=3)),
            f"{name}, kept elites": replace(row, search=replace(search, keep_elites=search.num_elites // 2)),
            f"{name}, all steps": replace(row, step_weight_base=2.0),
            f"{name}, light agent": replace(row, state_cost=StateCostConfig(agent_weight=0.3)),
            f"{name}, held actions": replace(row, held=True),
        }
    for name in models:
        rows |= {
            f"oracle, poses read by {name}": replace(plain["oracle"], model=name),
            f"{name}, true goal": replace(plain[name], true_goal=True),
            f"{name}, pixels": replace(plain[name], cost="pixels"),
            f"{name}, LPIPS": replace(plain[name], cost="lpips"),
            f"{name}, DINOv2": replace(plain[name], cost="dino"),
        }
    return rows


def cost_source(row: PlanRow, models: Mapping[str, ObjectWorldModel], *, frame_skip: int) -> CostSource:
    """What the planner of a row prices candidates with."""
    source: CostSource
    if row.dynamics == "simulator":
        if row.cost != "state":
            raise ValueError(f"the simulator imagines states, so its cost must be 'state', not {row.cost!r}")
        read = true_state if row.model is None else reader_of(models[row.model])
        source = SimulatorCost(StateCost(row.state_cost), read, row.step_weight_base, frame_skip)
    else:
        assert row.model is not None
        # One problem's samples at a time: every model call has one size whatever else is planned.
        source = ImaginedCost(
            world_model=cast(WorldModel, models[row.model]),
            goal_cost=_goal_cost(row),
            chunk_rows=row.search.num_samples * row.search.restarts,
            step_weight_base=row.step_weight_base,
        )
    return HeldActions(source, frame_skip) if row.held else source


def _goal_cost(row: PlanRow) -> GoalCost:
    if row.cost == "pixels":
        return PixelCost()
    if row.cost == "lpips":
        return PerceptualCost(Perceptual("alex"))
    if row.cost == "dino":
        return DinoCost()
    return StateCost(row.state_cost)


def true_state(observation: Observation) -> FloatArray:
    """The state in an observation that holds it: the oracle's eyes."""
    return np.asarray(observation["state"], dtype=np.float64)


def reader_of(model: ObjectWorldModel) -> Callable[[Observation], FloatArray]:
    """What a world model's tokenizer makes of a frame and proprioception: the model's eyes."""

    def read(observation: Observation) -> FloatArray:
        tokens = model.encode([observation])
        seen = FramePredictions(model.tokenizer, model.dynamics, tokens, torch.zeros(tokens.shape))
        return seen.states()[0].astype(np.float64)

    return read


class _States:
    """Predictions that know nothing but states."""

    def __init__(self, states: FloatArray) -> None:
        self._states = states

    def states(self) -> FloatArray:
        return self._states


class SimulatorCost:
    """The true simulator in the place of a world model: a ``planners.CostSource`` for the oracle rows.

    Every problem and every call gets worlds of its own: a space that is used again still holds the contacts of the last
    rollout, which would make a plan depend on what was planned before.

    Args:
        goal_cost: Distance of states.
        read: Observation -> state to plan from.
        step_weight_base: See ``planners.rollout.step_weights``.
        frame_skip: Environment actions in one planned action.
    """

    history_length = 1

    def __init__(
        self,
        goal_cost: StateCost,
        read: Callable[[Observation], FloatArray],
        step_weight_base: float | None,
        frame_skip: int,
    ) -> None:
        self._goal_cost, self._read, self._base = goal_cost, read, step_weight_base
        self.action_size = 2 * frame_skip

    def __call__(
        self, histories: Sequence[History], goals: Sequence[Any], *, seeds: Sequence[int]
    ) -> CostFunction:
        """See ``planners.CostSource``; the simulator draws nothing, so seeds do not matter."""
        starts = [self._read(history.observations[-1]) for history in histories]

        def cost(candidates: Tensor) -> Tensor:
            return torch.stack([self._price(*of) for of in zip(starts, goals, candidates, strict=True)])

        return cost

    def _price(self, start: FloatArray, goal: Any, plans: Tensor) -> Tensor:
        """``(N,)`` costs of the plans ``(N, H, A)`` of one problem."""
        samples, horizon, _ = plans.shape
        worlds = PushTBatch(samples)
        worlds.set_states(np.repeat(start[None], samples, axis=0))
        actions = plans.double().numpy().reshape(samples, horizon, -1, 2)
        total = torch.zeros(samples, dtype=plans.dtype)
        for step, weight in enumerate(step_weights(horizon, self._base)):
            for part in range(actions.shape[2]):
                worlds.step(np.ascontiguousarray(actions[:, step, part]))
            if weight:
                total += weight * self._goal_cost(_States(worlds.states()), [goal]).to(total)  # type: ignore[arg-type]
        return total


class HeldActions:
    """Plans two numbers per model step and repeats them for each environment step: a smaller search.

    Args:
        source: Prices whole actions.
        repeats: Environment steps per model step.
    """

    def __init__(self, source: CostSource, repeats: int) -> None:
        self._source, self._repeats = source, repeats
        self.history_length = source.history_length
        self.action_size = source.action_size // repeats

    def __call__(
        self, histories: Sequence[History], goals: Sequence[Any], *, seeds: Sequence[int]
    ) -> CostFunction:
        """See ``planners.CostSource``."""
        whole = [
            History(observations=h.observations, actions=[np.tile(a, self._repeats) for a in h.actions])
            for h in histories
        ]
        cost = self._source(whole, goals, seeds=seeds)
        return lambda candidates: cost(candidates.repeat(1, 1, 1, self._repeats))
