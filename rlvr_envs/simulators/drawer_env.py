"""The drawer world as a Gymnasium environment: the truth beside which RT-1's dreams are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlvr_envs.drawer_rules import (
    CONTROL_HZ,
    TASKS,
    DrawerTask,
    checked_reward_rule,
    drawer_reward,
    drawer_task,
    succeeded,
)
from rlvr_envs.simulators.drawer import DrawerWorld, FloatArray, sample_state
from rlvr_envs.simulators.drawer_rendering import DrawerCamera, Look, sample_look
from rlvr_envs.spaces import (
    RT1_HEIGHT_PX,
    RT1_WIDTH_PX,
    checked_action,
    checked_options,
    frame_observation_space,
    rt1_action_space,
)
from worldmodels.video.rt1_actions import RT1_PARTS, is_terminal

Frame = NDArray[np.uint8]
RESET_OPTIONS = ("task", "state", "snapshot")
CLOSING = RT1_PARTS["gripper_closedness_action"].start
TURN_DELTA, SHIFT = RT1_PARTS["rotation_delta"], RT1_PARTS["world_vector"]


@dataclass(frozen=True, kw_only=True)
class DrawerSnapshot:
    """A moment of an episode; the generator of random starts is not part of it."""

    world: FloatArray
    task: str
    look: Look
    clipped_actions: int


def act_in(world: DrawerWorld, action: NDArray[Any]) -> None:
    """Carry out RT-1's action ``(13,)`` in a world; the base stands still."""
    values = np.asarray(action, dtype=np.float64)
    world.step(values[SHIFT], values[TURN_DELTA], float(values[CLOSING]))


class DrawerSimEnv(gym.Env[Frame, NDArray[Any]]):
    """Open and close the drawers of a cabinet, in the physics simulator.

    ## Description
    A gripper on a robot arm stands before a cabinet with three drawers and follows RT-1's commands at 3 Hz.
    A drawer moves only when the gripper pulls its handle or pushes against it; the hand stalls at what it
    cannot move. The camera looks over the robot's shoulder. x points from the robot to the cabinet, y to its
    left, z up.

    ## Action Space
    ``Box`` of 13 float32 in the ranges of RT-1's data, see :func:`rlvr_envs.spaces.rt1_action_space`:

    - 0-2, base displacement and turn: ignored, the base stands still.
    - 3, gripper: above 0 closes, below 0 opens, 0 holds; 1 closes an open gripper in one step.
    - 4-6, rotation: change of roll, pitch and yaw in rad, each clipped to 0.4 a step.
    - 7-9, terminate: the episode ends where they round to 1, 0, 0; that action is still carried out.
    - 10-12, world vector: displacement of the hand in m, each clipped to 0.12 a step (0.36 m/s).

    The hand stays within x 0.10 to 0.70 m, y +-0.30 m, z 0.08 to 0.85 m. Numbers outside the space are
    clipped to it and counted.

    ## Observation Space
    ``Box``: the RGB frame, ``(height, width, 3)`` uint8, 64 x 80 by default. The instruction is in ``info``
    and in :attr:`instruction`.

    ## Starting State
    Drawn from the seed: the hand before the cabinet; the task's drawer shut or at most 0.05 m open
    (opening), or 0.15 to 0.26 m open (closing); the others shut or up to 0.20 m open; camera, lamp and
    colours. Options of ``reset``:

    - ``task``: one of the six, or its instruction.
    - ``state``: the 10 numbers of ``info["state"]``; everything starts at rest.
    - ``snapshot``: what :meth:`snapshot` gave; continues from there exactly. It excludes the others.

    ## Rewards
    ``reward="sparse"``: 1 in every step in which the task is fulfilled, else 0. ``"dense"``: in [-1, 0], see
    :func:`rlvr_envs.drawer_rules.drawer_reward`.

    ## Episode End
    Terminated by the action's own flag alone, as in RT-1; success does not end an episode. Truncated after
    112 steps. Success is judged after each step: at least 0.15 m open, or at most 0.05 m open, SIMPLER's
    bounds.

    ## Information
    ``instruction``; ``task``; ``state`` ``(10,)`` float64: hand x, y, z in m, roll, pitch, yaw in rad, gap
    between the fingers in m, openings of top, middle and bottom drawer in m; ``success``;
    ``clipped_actions``: numbers clipped in this episode.

    ## Arguments
    - ``task``: ``"open_top_drawer"`` and so on; None: a random one for every episode.
    - ``image_size``: (height, width) in px of observations; ``render_size`` of rendered frames.
    - ``reward``: see above.
    - ``render_mode``: ``"rgb_array"`` or None.

    The first frame makes an OpenGL context, which does not survive a fork: make asynchronous vector
    environments before, or with ``context="spawn"``.

    ## References
    Brohan et al. 2022, RT-1 (actions, instructions); Li et al. 2024, SIMPLER (the tasks and their bounds).

    ## Version History
    - v0: first release.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": CONTROL_HZ}  # noqa: RUF012  (Gymnasium's interface)

    def __init__(
        self,
        *,
        task: str | None = None,
        image_size: Sequence[int] = (RT1_HEIGHT_PX, RT1_WIDTH_PX),
        render_size: Sequence[int] = (256, 320),
        reward: str = "sparse",
        render_mode: str | None = None,
    ) -> None:
        self.action_space = rt1_action_space()
        self._image_size = _checked_size("image_size", image_size)
        self._render_size = _checked_size("render_size", render_size)
        self.observation_space: gym.Space[Any] = frame_observation_space(*self._image_size)
        self._fixed_task = None if task is None else drawer_task(task)
        self._reward_rule = checked_reward_rule(reward)
        self.render_mode = render_mode
        self._world = DrawerWorld()
        # By frame size, made when first needed: a process that forks must not have an OpenGL context yet.
        self._cameras: dict[tuple[int, int], DrawerCamera] = {}
        self._task: DrawerTask | None = None
        self._look = Look()
        self._clipped_actions = 0

    @property
    def instruction(self) -> str:
        """The present episode's instruction, for example ``"open middle drawer"``."""
        return self._current_task().instruction

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Start an episode; see the class for the options.

        Raises:
            ValueError: Unknown options or task, or a state of the wrong size or out of reach.
            RuntimeError: No usable OpenGL; names the Debian packages.
        """
        super().reset(seed=seed)
        options = checked_options(options, RESET_OPTIONS)
        if "snapshot" in options:
            if len(options) > 1:
                raise ValueError(
                    f"options has {sorted(options)}; a snapshot holds task and state, give it alone"
                )
            return self.restore(options["snapshot"])
        # All is drawn whatever is given, so that one option does not change what the seed gives for the rest.
        task = list(TASKS.values())[int(self.np_random.integers(len(TASKS)))]
        look = sample_look(self.np_random)
        if "task" in options:
            task = drawer_task(options["task"])
        elif self._fixed_task is not None:
            task = self._fixed_task
        state = sample_state(task, self.np_random)
        if "state" in options:
            state = self._world.checked_state("options['state']", options["state"])
        self._task, self._look, self._clipped_actions = task, look, 0
        self._world.reset(state)
        return self._frame(self._image_size), self._judged()[1]

    def step(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Carry out one action of 1/3 s.

        Raises:
            ValueError: Wrong shape, or a number that is not finite.
        """
        self._current_task()
        values, clipped = checked_action(self.action_space, action)
        self._clipped_actions += clipped
        act_in(self._world, values)
        reward, info = self._judged()
        return self._frame(self._image_size), reward, is_terminal(values), False, info

    def render(self) -> Frame | None:
        """The present frame at ``render_size``, ``(height, width, 3)`` uint8."""
        if self.render_mode != "rgb_array":
            return None
        self._current_task()
        return self._frame(self._render_size)

    def close(self) -> None:
        """Give the OpenGL contexts back."""
        for camera in self._cameras.values():
            camera.close()
        self._cameras.clear()

    def snapshot(self) -> DrawerSnapshot:
        """This moment; ``restore`` and ``reset(options={"snapshot": ...})`` continue from it exactly."""
        return DrawerSnapshot(
            world=self._world.snapshot(),
            task=self._current_task().name,
            look=self._look,
            clipped_actions=self._clipped_actions,
        )

    def restore(self, snapshot: DrawerSnapshot) -> tuple[Frame, dict[str, Any]]:
        """Go back to a snapshot, of this or of another drawer world; wrappers (the time limit) do not notice.

        Raises:
            ValueError: Not a snapshot of this class, or made by another version of MuJoCo.
        """
        if not isinstance(snapshot, DrawerSnapshot):
            raise ValueError(
                f"snapshot is {type(snapshot).__name__}; give what snapshot() of a DrawerSimEnv returned"
            )
        self._world.restore(snapshot.world)
        self._task, self._look = drawer_task(snapshot.task), snapshot.look
        self._clipped_actions = snapshot.clipped_actions
        return self._frame(self._image_size), self._judged()[1]

    def _current_task(self) -> DrawerTask:
        if self._task is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        return self._task

    def _frame(self, size: tuple[int, int]) -> Frame:
        if size not in self._cameras:
            self._cameras[size] = DrawerCamera(self._world.model, height=size[0], width=size[1])
        return self._cameras[size].frame(self._world.data, self._look)

    def _judged(self) -> tuple[float, dict[str, Any]]:
        state, task = self._world.state(), self._current_task()
        return drawer_reward(state, task, self._reward_rule), {
            "instruction": task.instruction,
            "task": task.name,
            "state": state,
            "success": bool(succeeded(state, task)),
            "clipped_actions": self._clipped_actions,
        }


def _checked_size(name: str, size: Sequence[int]) -> tuple[int, int]:
    """Height and width in px.

    Raises:
        ValueError: Not two positive whole numbers.
    """
    if isinstance(size, int | str) or len(size) != 2:
        raise ValueError(f"{name} is {size!r}; expected (height, width) in px")
    try:
        height, width, _ = frame_observation_space(size[0], size[1]).shape
    except ValueError as error:
        raise ValueError(f"{name} is {size!r}: {error}") from error
    return height, width
