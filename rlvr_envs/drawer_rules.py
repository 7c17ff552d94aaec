"""What a drawer episode is about: tasks, instructions, success and rewards (pure numpy).

Special: truth and dream use these same functions, on a state that the simulator knows or that a reader finds
in a predicted frame, so a score does not depend on who computed it.

A state is 10 numbers, :data:`STATE_NAMES`: the hand's place (the point between the fingertips) in m, its
roll, pitch and yaw in rad, the gap between the fingers in m, and how far each drawer is open in m. x points
from the robot to the cabinet, y to the robot's left, z up.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
RewardRule = Literal["sparse", "dense"]

DRAWERS = ("top", "middle", "bottom")
STATE_NAMES = ("x", "y", "z", "roll", "pitch", "yaw", "gap", *DRAWERS)
STATE_SIZE = len(STATE_NAMES)
HAND, TURN, GAP, OPENINGS = slice(0, 3), slice(3, 6), 6, slice(7, 10)

# Both as in SIMPLER (Li et al. 2024; simpler-env/ManiSkill2_real2sim, envs/custom_scenes/open_drawer_in_scene.py),
# bounds included. Its episodes end after 113 steps, ours after the published world model's 112.
OPEN_AT_LEAST_M = 0.15
CLOSED_AT_MOST_M = 0.05
TRAVEL_M = 0.28  # a drawer's longest opening; our choice
MAX_GAP_M = 0.10  # between the fingers
HORIZON_STEPS = 112
CONTROL_HZ = 3  # as RT-1's data and SIMPLER

# Middle of each handle's bar with its drawer closed.
HANDLE_X_M = 0.635
HANDLE_HEIGHTS_M = {"top": 0.60, "middle": 0.39, "bottom": 0.18}
REACH_M = 0.5  # from this distance to the handle on, the dense reward is at its least


@dataclass(frozen=True, kw_only=True)
class DrawerTask:
    """One of the six tasks.

    Attributes:
        name: For example ``"open_middle_drawer"``.
        drawer: ``"top"``, ``"middle"`` or ``"bottom"``.
        opens: True: pull it open; False: push it shut.
    """

    name: str
    drawer: str
    opens: bool

    @property
    def instruction(self) -> str:
        """RT-1's wording, for example ``"open middle drawer"``."""
        return self.name.replace("_", " ")

    @property
    def column(self) -> int:
        """Which number of a state is this drawer's opening."""
        return OPENINGS.start + DRAWERS.index(self.drawer)


TASKS: dict[str, DrawerTask] = {
    task.name: task
    for verb in ("open", "close")
    for task in (
        DrawerTask(name=f"{verb}_{drawer}_drawer", drawer=drawer, opens=verb == "open") for drawer in DRAWERS
    )
}


def drawer_task(name: str) -> DrawerTask:
    """The task of that name; an instruction ("open top drawer") will do as well.

    Raises:
        ValueError: No such task; lists all and suggests the nearest.
    """
    key = name.strip().lower().replace(" ", "_") if isinstance(name, str) else name
    if key in TASKS:
        return TASKS[key]
    near = difflib.get_close_matches(str(key), TASKS, n=1, cutoff=0.5)
    hint = f" did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown task {name!r};{hint} the tasks are {', '.join(TASKS)}")


def checked_reward_rule(rule: str) -> RewardRule:
    """The rule itself.

    Raises:
        ValueError: Unknown; lists what exists.
    """
    for known in get_args(RewardRule):
        if rule == known:
            return known
    raise ValueError(f"unknown reward rule {rule!r}; choose one of {', '.join(get_args(RewardRule))}")


def handle_position(state: ArrayLike, drawer: str) -> FloatArray:
    """Middle of the drawer's handle in m, ``(..., 3)``, in states ``(..., 10)``."""
    values = np.asarray(state, dtype=np.float64)
    place = np.zeros((*values.shape[:-1], 3))
    place[..., 0] = HANDLE_X_M - values[..., OPENINGS.start + DRAWERS.index(drawer)]
    place[..., 2] = HANDLE_HEIGHTS_M[drawer]
    return place


def succeeded(state: ArrayLike, task: DrawerTask) -> NDArray[np.bool_]:
    """Whether the task's drawer is where it should be, ``(...)`` booleans for states ``(..., 10)``.

    At least 0.15 m open, or at most 0.05 m open; where the hand is does not count. NaN is no success.
    """
    opening = np.asarray(state, dtype=np.float64)[..., task.column]
    return np.asarray(opening >= OPEN_AT_LEAST_M if task.opens else opening <= CLOSED_AT_MOST_M)


def drawer_reward(state: ArrayLike, task: DrawerTask, rule: RewardRule) -> float:
    """Reward of one state ``(10,)``.

    ``"sparse"``: 1 on success, else 0. ``"dense"``: in [-1, 0], 0 on success, else
    -(s + min(d / 0.5 m, 1)) / 2 with s the share of the way that the drawer has yet to go (between fully shut
    and 0.15 m, or between fully open and 0.05 m) and d the hand's distance to the handle. A state with NaN
    where it counts earns the least.
    """
    values = np.asarray(state, dtype=np.float64)
    success = bool(succeeded(values, task))
    if rule == "sparse":
        return float(success)
    if success:
        return 0.0
    opening = values[task.column]
    if task.opens:
        left = (OPEN_AT_LEAST_M - opening) / OPEN_AT_LEAST_M
    else:
        left = (opening - CLOSED_AT_MOST_M) / (TRAVEL_M - CLOSED_AT_MOST_M)
    distance = float(np.linalg.norm(values[HAND] - handle_position(values, task.drawer))) / REACH_M
    reward = -(min(max(left, 0.0), 1.0) + min(distance, 1.0)) / 2
    return reward if np.isfinite(left + distance) else -1.0
