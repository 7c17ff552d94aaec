"""Planners that search in any world model.

A planner (:class:`CEM`, :class:`ICEM`, :class:`MPPI`) minimises a cost function of candidate plans;
:class:`ImaginedCost` makes one from a world model and a :class:`GoalCost`; :class:`MPC` executes, looks and
plans again; :class:`MPCPolicy` is that as a policy for one environment. Where actions are texts,
:class:`TreeSearch` looks for the way to the highest predicted score and :class:`TextPlanner` follows it.
"""

from planners.cem import CEM, CEMConfig
from planners.goal_cost import (
    DinoCost,
    GoalCost,
    PerceptualCost,
    PixelCost,
    ProprioCost,
    StateCost,
    StateCostConfig,
)
from planners.icem import ICEM, ICEMConfig
from planners.mpc import MPC, MPCConfig, MPCResult
from planners.mppi import MPPI, MPPIConfig
from planners.policy import MPCPolicy
from planners.rollout import CostSource, ImaginedCost, imagine
from planners.search import CostFunction, Plan, Planner
from planners.stable_worldmodel import StableWorldModelCost
from planners.text_policy import TextPlanner
from planners.tree import TreeSearch
from planners.tree_config import TextPlan, TreeConfig

__all__ = [
    "CEM",
    "ICEM",
    "MPC",
    "MPPI",
    "CEMConfig",
    "CostFunction",
    "CostSource",
    "DinoCost",
    "GoalCost",
    "ICEMConfig",
    "ImaginedCost",
    "MPCConfig",
    "MPCPolicy",
    "MPCResult",
    "MPPIConfig",
    "PerceptualCost",
    "PixelCost",
    "Plan",
    "Planner",
    "ProprioCost",
    "StableWorldModelCost",
    "StateCost",
    "StateCostConfig",
    "TextPlan",
    "TextPlanner",
    "TreeConfig",
    "TreeSearch",
    "imagine",
]
