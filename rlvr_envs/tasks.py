"""What a PushT episode is about: its goal, when it is reached, and what reward that brings (pure numpy).

Special: truth and dream use these same functions, on a state that the simulator knows or that the world model
reads from its own prediction, so a score does not depend on who computed it.

A state is 7 numbers: agent x, y; block x, y; block angle; agent velocity x, y (px of a 512 px arena, rad,
px/s). Where five numbers are given, the agent is at rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlvr_envs.block_shapes import FloatArray, coverage

ARENA_PX = 512.0
GOAL_POSE = (256.0, 256.0, float(np.pi / 4))  # where the green goal picture is drawn
STATE_SIZE = 7
PROPRIO = (0, 1, 5, 6)  # which numbers of a state the agent feels: its own position and velocity

POSITION_TOLERANCE_PX = 20.0
ANGLE_TOLERANCE_RAD = float(np.pi / 9)
COVERAGE_THRESHOLD = 0.95

SuccessRule = Literal["state", "coverage"]
RewardRule = Literal["sparse", "dense", "coverage"]


def check_finite(name: str, values: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """``values`` as float64 of that shape.

    Raises:
        ValueError: Wrong shape or a value that is not finite; names both.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds a value that is not finite: {array.tolist()}; give finite numbers")
    return array


def full_state(name: str, values: ArrayLike) -> FloatArray:
    """A state ``(7,)`` from 7 numbers, or from 5 for an agent at rest.

    Raises:
        ValueError: Another number of values, or one that is not finite; says what is expected.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is {values!r}; expected 5 or 7 numbers") from error
    if array.shape not in ((5,), (STATE_SIZE,)):
        raise ValueError(
            f"{name} has shape {array.shape}; expected 5 numbers (agent x, y, block x, y, block angle) or 7"
            " (those and the agent's velocity x, y)"
        )
    return check_finite(name, np.concatenate([array, np.zeros(STATE_SIZE - len(array))]), (STATE_SIZE,))


def angle_difference(a: ArrayLike, b: ArrayLike) -> FloatArray:
    """Smallest absolute difference of two angles in rad, in [0, pi], for any number of turns in either."""
    difference = np.abs(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)) % (2 * np.pi)
    return np.minimum(difference, 2 * np.pi - difference)


def reached_state(state: ArrayLike, goal: ArrayLike) -> NDArray[np.bool_]:
    """dino_wm's success rule: agent *and* block within 20 px together, the block's angle within 20 degrees.

    The distance is the norm over the four position numbers; both bounds are strict; velocities do not count.
    The published rule subtracts angles of more than one turn wrongly and then accepts any; here they are
    wrapped.

    Args:
        state: ``(..., >=5)`` state vectors.
        goal: ``(..., >=5)`` goal states.

    Returns:
        ``(...)`` booleans.
    """
    state, goal = np.asarray(state, dtype=np.float64), np.asarray(goal, dtype=np.float64)
    near = np.linalg.norm(state[..., :4] - goal[..., :4], axis=-1) < POSITION_TOLERANCE_PX
    turned = angle_difference(state[..., 4], goal[..., 4]) < ANGLE_TOLERANCE_RAD
    return near & turned


def covered_goal(state: ArrayLike, goal_pose: ArrayLike = GOAL_POSE) -> bool:
    """gym-pusht's success rule: more than 95 % of the block lies in the goal area, wherever the agent is."""
    values = np.asarray(state, dtype=np.float64)
    return coverage(values[2:5], goal_pose) > COVERAGE_THRESHOLD


@dataclass(frozen=True, kw_only=True)
class PushTGoal:
    """What to reach.

    Attributes:
        state: ``(7,)`` float64.
        image: ``(S, S, 3)`` uint8, the frame of that state.
    """

    state: FloatArray
    image: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the rules say of one state. ``coverage`` is NaN where the block's pose is not known."""

    success: bool
    reward: float
    coverage: float


@dataclass(frozen=True, kw_only=True)
class PushTRules:
    """When a goal is reached and what a step earns.

    Attributes:
        success: ``"state"`` is ``reached_state`` (the agent has to be in place too), ``"coverage"`` is
            ``covered_goal`` with the goal state's block pose.
        reward: ``"sparse"`` is 1 on success, else 0. ``"dense"`` lies in [-1, 0]:
            -(min(d / 512 px, 1) + angle / pi) / 2 with d the distance of ``reached_state`` over the four
            position numbers. ``"coverage"`` lies in [0, 1]: min(coverage / 0.95, 1), as in gym-pusht.

    Raises:
        ValueError: Unknown rule; lists what exists.
    """

    success: SuccessRule = "state"
    reward: RewardRule = "sparse"

    def __post_init__(self) -> None:
        """Refuse unknown rules."""
        for name, value, known in (
            ("success", self.success, get_args(SuccessRule)),
            ("reward", self.reward, get_args(RewardRule)),
        ):
            if value not in known:
                raise ValueError(f"unknown {name} rule {value!r}; choose one of {', '.join(known)}")

    def judge(self, state: FloatArray, goal: FloatArray) -> Judgement:
        """Judge a state ``(7,)``. Where it holds NaN nothing is reached and the reward is its least value."""
        if not np.isfinite(state[:5]).all():
            return Judgement(success=False, reward=-1.0 if self.reward == "dense" else 0.0, coverage=np.nan)
        covered = coverage(state[2:5], goal[2:5])
        success = covered > COVERAGE_THRESHOLD if self.success == "coverage" else reached_state(state, goal)
        if self.reward == "sparse":
            reward = float(success)
        elif self.reward == "coverage":
            reward = min(covered / COVERAGE_THRESHOLD, 1.0)
        else:
            distance = float(np.linalg.norm(state[:4] - goal[:4]))
            turn = float(angle_difference(state[4], goal[4]))
            reward = -(min(distance / ARENA_PX, 1.0) + turn / np.pi) / 2
        return Judgement(success=bool(success), reward=reward, coverage=covered)


def proprio(state: FloatArray) -> NDArray[np.float32]:
    """What the agent feels in a state: its position and velocity, ``(4,)`` float32."""
    return state[list(PROPRIO)].astype(np.float32)


def goal_parts(goal: Any) -> tuple[FloatArray, Any]:
    """State ``(7,)`` and image or None of a goal: a state vector, or ``{"state": ..., "image": ...}``.

    Raises:
        ValueError: An unknown key, no state, or a state of the wrong size.
    """
    if not isinstance(goal, Mapping):
        return full_state("options['goal']", goal), None
    unknown = set(goal) - {"state", "image"}
    if unknown or "state" not in goal:
        raise ValueError(
            f"options['goal'] has the keys {sorted(goal)}; expected 'state' (5 or 7 numbers), maybe 'image'"
        )
    return full_state("options['goal']['state']", goal["state"]), goal.get("image")


def pusht_info(state: FloatArray, goal: PushTGoal, judgement: Judgement) -> dict[str, Any]:
    """The part of ``info`` that truth and dream share. No key of it is one of the observation's."""
    return {
        "state": state.copy(),
        "goal": goal.image.copy(),
        "goal_state": goal.state.copy(),
        "goal_proprio": proprio(goal.state),
        "success": judgement.success,
        "coverage": judgement.coverage,
    }
