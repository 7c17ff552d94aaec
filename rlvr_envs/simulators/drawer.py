"""The drawer world: a gripper on a free wrist in front of a cabinet, in MuJoCo at 3 Hz.

Special: a drawer moves by contact only. The wrist is held by springs of limited force that follow a
commanded pose, so that the hand stalls at what it cannot move. All that a later step depends on is one
vector (:meth:`DrawerWorld.snapshot`), and restoring it goes on bit for bit.

Absent: an arm. A drawn one follows the wrist (``drawer_rendering``) and touches nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlvr_envs.drawer_rules import (
    CLOSED_AT_MOST_M,
    DRAWERS,
    HAND,
    MAX_GAP_M,
    OPEN_AT_LEAST_M,
    OPENINGS,
    STATE_NAMES,
    STATE_SIZE,
    TURN,
    DrawerTask,
)

GL_HELP = (
    "MuJoCo cannot draw here: there is no usable OpenGL. On Debian: apt-get install libegl1 libegl-mesa0"
    " libgl1-mesa-dri; or libosmesa6, and set MUJOCO_GL=osmesa"
)

try:
    import mujoco
except (AttributeError, ImportError) as error:
    if not os.environ.get("MUJOCO_GL"):
        raise
    # A library that is named but missing breaks the import itself.
    raise RuntimeError(f"{GL_HELP} (MUJOCO_GL={os.environ['MUJOCO_GL']}; import mujoco: {error})") from error

FloatArray: TypeAlias = NDArray[np.float64]

MODEL_FILE = Path(__file__).parent / "assets" / "drawer.xml"
SUBSTEPS = 30
# The command glides over the first 5 sixths of a step, so that the hand has nearly arrived at its end.
GLIDE_PARTS, HOLD_PARTS = 5, 1

# One step's command is limited to what a careful arm does in 1/3 s. RT-1's world_vector is in m; its typical
# size is below 0.1, while the recorded range reaches to 22.
MAX_SHIFT_M = 0.12
MAX_TURN_RAD = 0.4
# The commanded pose starts at most this far from the real one: a blocked hand does not wind up.
LEASH_M, LEASH_RAD = 0.03, 0.2

# Stops are springs: a running world can report a state this far beyond them (m, rad, m, m).
STOP_SLACK = np.repeat((0.01, 0.1, 0.05, 0.01), (3, 3, 1, 3))

PLACES = ("hand_x", "hand_y", "hand_z")
TURNS = ("hand_roll", "hand_pitch", "hand_yaw")
FINGERS = ("upper_finger", "lower_finger")
_STATE_JOINTS = (*PLACES, *TURNS, *(f"{drawer}_drawer" for drawer in DRAWERS))

# Where episodes start. All drawers stay clear of the hand: the fingertips reach 0.015 m beyond x.
START_LOW_M, START_HIGH_M = (0.16, -0.15, 0.32), (0.29, 0.15, 0.78)
START_TURN_RAD = 0.15


def load_drawer_model() -> mujoco.MjModel:
    """A fresh model; who draws it may repaint it."""
    return mujoco.MjModel.from_xml_path(str(MODEL_FILE))


def sample_state(task: DrawerTask, generator: np.random.Generator) -> FloatArray:
    """A random start ``(10,)`` of a task.

    The hand hangs in front of the cabinet, nearly level, mostly open. The task's drawer is shut or at most
    0.05 m open where it is to be opened, and 0.15 to 0.26 m open where it is to be shut; each other one is
    shut in 6 of 10 cases and else up to 0.20 m open.
    """
    state = np.zeros(STATE_SIZE)
    state[HAND] = generator.uniform(START_LOW_M, START_HIGH_M)
    state[TURN] = generator.uniform(-START_TURN_RAD, START_TURN_RAD, size=3)
    state[6] = MAX_GAP_M if generator.uniform() < 0.8 else generator.uniform(0, MAX_GAP_M)
    others = generator.uniform(0, 0.20, size=3) * (generator.uniform(size=3) < 0.4)
    state[OPENINGS] = others
    if task.opens:
        state[task.column] = generator.uniform(0, CLOSED_AT_MOST_M) * (generator.uniform() < 0.3)
    else:
        state[task.column] = generator.uniform(OPEN_AT_LEAST_M, 0.26)
    return state


class DrawerWorld:
    """One world.

    Attributes:
        model: Its own model; physics never changes it.
        data: Where it stands; ``data.xpos`` and the like fit the present state.
    """

    def __init__(self) -> None:
        self.model = load_drawer_model()
        self.data = mujoco.MjData(self.model)
        joint = {self.model.joint(i).name: i for i in range(self.model.njnt)}
        actuator = {self.model.actuator(i).name: i for i in range(self.model.nu)}
        self._state_qpos = self.model.jnt_qposadr[[joint[name] for name in _STATE_JOINTS]]
        self._finger_qpos = self.model.jnt_qposadr[[joint[name] for name in FINGERS]]
        self._pose_ctrl = np.array([actuator[name] for name in (*PLACES, *TURNS)])
        self._finger_ctrl = np.array([actuator[name] for name in FINGERS])
        ranges = self.model.jnt_range[[joint[name] for name in _STATE_JOINTS]]
        ranges = np.insert(ranges, 6, (0.0, MAX_GAP_M), axis=0)
        self._low, self._high = ranges[:, 0], ranges[:, 1]
        self._size = mujoco.mj_stateSize(self.model, mujoco.mjtState.mjSTATE_INTEGRATION)
        self.reset(np.array([0.2, 0, 0.5, 0, 0, 0, MAX_GAP_M, 0, 0, 0]))

    def checked_state(self, name: str, values: ArrayLike) -> FloatArray:
        """A state ``(10,)`` that this world can take.

        Raises:
            ValueError: Another shape, not finite, or a number outside what the joints allow; names it.
        """
        try:
            state = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} is {values!r}; expected {STATE_SIZE} numbers ({', '.join(STATE_NAMES)})"
            ) from error
        if state.shape != (STATE_SIZE,):
            raise ValueError(
                f"{name} has shape {state.shape}; expected {STATE_SIZE} numbers ({', '.join(STATE_NAMES)})"
            )
        if not np.isfinite(state).all():
            raise ValueError(
                f"{name} holds a value that is not finite: {state.tolist()}; give finite numbers"
            )
        bad = np.flatnonzero((state < self._low - STOP_SLACK) | (state > self._high + STOP_SLACK))
        if len(bad):
            i = bad[0]
            raise ValueError(
                f"{name} has {STATE_NAMES[i]} = {state[i]:g}; it must be in [{self._low[i]:g}, {self._high[i]:g}]"
            )
        return state

    def reset(self, state: FloatArray) -> None:
        """Put everything where a state ``(10,)`` says, at rest, with the command where the hand is."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[self._state_qpos] = np.delete(state, 6)
        self.data.qpos[self._finger_qpos] = state[6] / 2
        self.data.ctrl[self._pose_ctrl] = state[:6]
        self.data.ctrl[self._finger_ctrl] = state[6] / 2
        self._place()

    def step(self, shift: FloatArray, turn: FloatArray, closing: float) -> None:
        """One step of 1/3 s.

        Args:
            shift: ``(3,)``: how far the hand shall move, x, y, z in m; each clipped to 0.12.
            turn: ``(3,)``: change of roll, pitch, yaw in rad (for small ones the same as an axis-angle
                rotation in the robot's frame); each clipped to 0.4.
            closing: Change of the fingers' closedness in [-1, 1]: 1 closes an open gripper, -1 opens it.
        """
        actual = self.data.qpos[self._state_qpos[:6]]
        leash = np.repeat((LEASH_M, LEASH_RAD), 3)
        start = self.data.ctrl.copy()
        pose = np.clip(start[self._pose_ctrl], actual - leash, actual + leash)
        pose[:3] += np.clip(shift, -MAX_SHIFT_M, MAX_SHIFT_M)
        pose[3:] += np.clip(turn, -MAX_TURN_RAD, MAX_TURN_RAD)
        goal = start.copy()
        goal[self._pose_ctrl] = np.clip(pose, self._low[:6], self._high[:6])
        half_gap = start[self._finger_ctrl] - closing * MAX_GAP_M / 2
        goal[self._finger_ctrl] = np.clip(half_gap, 0, MAX_GAP_M / 2)
        parts = GLIDE_PARTS + HOLD_PARTS
        for part in range(1, parts + 1):
            self.data.ctrl[:] = start + (goal - start) * min(part / GLIDE_PARTS, 1.0)
            mujoco.mj_step(self.model, self.data, SUBSTEPS // parts)
        self._place()

    def state(self) -> FloatArray:
        """The present state, ``(10,)`` float64."""
        gap = self.data.qpos[self._finger_qpos].sum()
        return np.insert(self.data.qpos[self._state_qpos], 6, gap)

    def snapshot(self) -> FloatArray:
        """Everything that the future depends on: MuJoCo's integration state, command included."""
        values = np.empty(self._size)
        mujoco.mj_getState(self.model, self.data, values, mujoco.mjtState.mjSTATE_INTEGRATION)
        return values

    def restore(self, snapshot: FloatArray) -> None:
        """Go back to a snapshot of any drawer world.

        Raises:
            ValueError: Another size: made by another version of MuJoCo or of the model.
        """
        if np.shape(snapshot) != (self._size,):
            raise ValueError(
                f"the world's snapshot has shape {np.shape(snapshot)}; expected ({self._size},), as made by this"
                " version of MuJoCo and of the drawer model"
            )
        mujoco.mj_setState(self.model, self.data, snapshot, mujoco.mjtState.mjSTATE_INTEGRATION)
        self._place()

    def _place(self) -> None:
        """Derived positions for drawing; unlike ``mj_forward`` it leaves the solver's warm start alone."""
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)
