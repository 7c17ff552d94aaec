"""The RT-1 drawer world inside a world model: spaces, tasks and rules of the truth, frames of the dream.

Special: works with any frame world model, at the size of frames that its protocol names. Success and reward
come from the state that the world model reads from its own frames; a model without a reader (the released
ones) leaves them unknown. First frames are bundled, or taken from a folder of recorded episodes.

No simulator is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import worldmodels
from rlvr_envs.contexts import load_drawer_starts
from rlvr_envs.drawer_rules import (
    CONTROL_HZ,
    HORIZON_STEPS,
    STATE_SIZE,
    TASKS,
    DrawerTask,
    RewardRule,
    checked_reward_rule,
    drawer_reward,
    drawer_task,
    succeeded,
)
from rlvr_envs.learned import LearnedEnv, LearnedVectorEnv
from rlvr_envs.moments import Outcome, Start, history_option
from rlvr_envs.spaces import (
    RT1_HEIGHT_PX,
    RT1_WIDTH_PX,
    frame_observation_space,
    rt1_action_space,
)
from worldmodels.api import History, Observation, Prediction, WorldModel
from worldmodels.video.rt1_actions import is_terminal

MAX_RECORDED_STARTS = 1000  # first frames read from a folder of episodes
RENDER_HEIGHT_PX = 256


@dataclass(frozen=True, kw_only=True)
class DrawerGoal:
    """What an episode is about: its task, or an instruction that is none of the six (recorded episodes have others)."""

    task: DrawerTask | None
    instruction: str


@dataclass(frozen=True, kw_only=True)
class FirstFrame:
    """Where an episode may begin."""

    frame: NDArray[np.uint8]
    goal: DrawerGoal
    state: NDArray[np.float64] | None = None


class DrawerDreamEnv(LearnedEnv):
    """A dream that says what it is asked to do."""

    @property
    def instruction(self) -> str:
        """The present episode's instruction, for example ``"open middle drawer"``."""
        goal: DrawerGoal = self.snapshot().moment.goal
        return goal.instruction


def rt1_drawer(
    *,
    world_model: WorldModel | str | Path,
    tokenizer: str | Path | None = None,
    episodes: str | Path | None = None,
    task: str | None = None,
    reward: str = "sparse",
    temperature: float = 1.0,
    render_mode: str | None = None,
) -> DrawerDreamEnv:
    """Open and close the drawers of a cabinet, inside a world model.

    ## Description
    A gripper on a robot arm stands before a cabinet with three drawers, follows RT-1's commands at 3 Hz, and
    all of it is imagined: each next frame is sampled from a world model. With the bundled model the truth is
    ``RLVRWorld/RT1-Drawer-Sim-v0``; the released RT-1 models dream of the robot data that they were trained
    on.

    ## Action Space
    ``Box`` of 13 float32 in the ranges of RT-1's data, see :func:`rlvr_envs.spaces.rt1_action_space`. Numbers
    outside are clipped and counted. The bundled models know smaller ranges, between the extremes of their data, and
    take a number beyond for the nearest they know. That is not counted, because it is what happens in truth: the
    simulator's arm follows at most 0.12 m and 0.4 rad a step, less than what the models know, and its base never moves.

    ## Observation Space
    ``Box``: the RGB frame, ``(height, width, 3)`` uint8, at the size that the world model was trained on: 64
    x 80 for the bundled ones, 256 x 320 for the released ones.

    ## Starting State
    One of the bundled first frames of the simulator, or of the recorded episodes in ``episodes``. Options of
    ``reset``:

    - ``task``: one of the six, or its instruction; only frames of this task begin then.
    - ``observation``: a first frame, for example one of the simulator's.
    - ``history``: a ``worldmodels.api.History`` of several frames and the actions between them.
    - ``state``: with one of the two, the true state (10 numbers) it shows.
    - ``snapshot``: what :meth:`LearnedEnv.snapshot` gave; goes back to that moment. It excludes the others.

    ## Rewards
    As in the simulator, on the state that the world model reads from its own frame: ``"sparse"`` 1 while the
    task is fulfilled, ``"dense"`` in [-1, 0]. Where no state can be read, or the instruction is none of the
    six tasks, the least reward.

    ## Episode End
    Terminated by the action's own flag alone (``terminate_episode`` rounds to 1, 0, 0). Truncated after 112
    steps, 16 rounds of 7 frames as in the published evaluation.

    ## Information
    ``instruction``; ``task``, "" where the instruction is none of the six; ``state`` ``(10,)`` float64 as
    read from the frame (NaN where it is not known); ``success``, False where it is not known;
    ``clipped_actions``, how many numbers were outside the action space so far; ``prediction_error``: why the last
    observation was kept, "" if it was not.

    ## Arguments
    - ``world_model``: a bundled name, a folder, a hub id, or any ``worldmodels.api.WorldModel``.
    - ``tokenizer``: with a released transformer, the tokenizer that belongs to it.
    - ``episodes``: a folder of recorded episodes whose first frames begin the dreams. Frames of other proportions
      get black bars, as before RT-1 itself; actions are not read and may have any number of dimensions.
    - ``task``: a fixed task; None: whatever the first frame belongs to.
    - ``reward``, ``temperature``: see above; 0 takes the likeliest tokens.
    - ``render_mode``: ``"rgb_array"`` (256 px high, small frames with every pixel repeated) or None.

    ## References
    Wu et al. 2025, RLVR-World; Brohan et al. 2022, RT-1; Li et al. 2024, SIMPLER.

    ## Version History
    - v0: first release.
    """
    model = _loaded(world_model, tokenizer)
    return DrawerDreamEnv(
        model,
        _task(model, episodes, task, reward),
        temperature=temperature,
        render_mode=render_mode,
    )


def rt1_drawer_vector(
    *,
    world_model: WorldModel | str | Path,
    num_envs: int,
    max_episode_steps: int | None = HORIZON_STEPS,
    tokenizer: str | Path | None = None,
    episodes: str | Path | None = None,
    task: str | None = None,
    reward: str = "sparse",
    temperature: float = 1.0,
    render_mode: str | None = None,
) -> LearnedVectorEnv:
    """``num_envs`` drawer dreams stepped as one batch; for the rest see :func:`rt1_drawer`."""
    model = _loaded(world_model, tokenizer)
    return LearnedVectorEnv(
        model,
        _task(model, episodes, task, reward),
        num_envs=num_envs,
        max_episode_steps=max_episode_steps,
        temperature=temperature,
        render_mode=render_mode,
    )


def _loaded(world_model: WorldModel | str | Path, tokenizer: str | Path | None) -> WorldModel:
    if isinstance(world_model, str | Path):
        return worldmodels.load(world_model, tokenizer=tokenizer)
    if tokenizer is not None:
        raise ValueError(
            "tokenizer is given, but world_model is an object that has its own; give one of them"
        )
    return world_model


def _task(model: WorldModel, episodes: str | Path | None, task: str | None, reward: str) -> DrawerDreamTask:
    protocol = getattr(model, "protocol", {})
    found = protocol.get("image_size", (RT1_HEIGHT_PX, RT1_WIDTH_PX))
    if not isinstance(found, list | tuple) or len(found) != 2:
        raise ValueError(
            f"the world model was trained for image_size = {found!r} of {protocol.get('environment', 'another world')};"
            " a drawer dream needs a model of RT-1's frames, whose image_size is height and width in px"
        )
    size = (int(found[0]), int(found[1]))
    return DrawerDreamTask(
        starts=bundled_first_frames(size) if episodes is None else recorded_first_frames(episodes, size),
        image_size=size,
        fixed=None if task is None else drawer_task(task),
        reward=checked_reward_rule(reward),
    )


def bundled_first_frames(image_size: tuple[int, int]) -> list[FirstFrame]:
    """The simulator's, bundled with the package.

    Raises:
        ValueError: The world model wants frames of another size; only recorded episodes can have them.
    """
    starts = load_drawer_starts()
    if starts.images.shape[1:3] != image_size:
        raise ValueError(
            f"the world model dreams in frames of {image_size[0]}x{image_size[1]} px, and the bundled first frames"
            f" have {starts.images.shape[1]}x{starts.images.shape[2]}; give episodes='folder' with recorded episodes"
        )
    names = list(TASKS)
    return [
        FirstFrame(frame=frame, goal=_goal(TASKS[names[task]]), state=state)
        for frame, state, task in zip(starts.images, starts.states, starts.tasks, strict=True)
    ]


def recorded_first_frames(folder: str | Path, image_size: tuple[int, int]) -> list[FirstFrame]:
    """The first frames of at most 1,000 recorded episodes, in any format that ``worldmodels.outside`` knows.

    Frames of another size are scaled to ``image_size``; where their proportions differ, black bars fill the rest.
    Nothing else of an episode is read: its actions may have any number of dimensions.
    """
    from worldmodels.outside import first_frames

    frames, instructions = first_frames(folder, image_size=image_size, limit=MAX_RECORDED_STARTS)
    found = []
    for frame, instruction in zip(frames, instructions, strict=True):
        key = instruction.strip().lower().replace(" ", "_")
        goal = _goal(TASKS[key]) if key in TASKS else DrawerGoal(task=None, instruction=instruction)
        found.append(FirstFrame(frame=frame, goal=goal))
    return found


def _goal(task: DrawerTask) -> DrawerGoal:
    return DrawerGoal(task=task, instruction=task.instruction)


class DrawerDreamTask:
    """The tasks of :mod:`rlvr_envs.drawer_rules` as a task of dreams.

    Args:
        starts: Where episodes may begin.
        image_size: Height and width of frames, px.
        fixed: The only task, or None.
        reward: See ``drawer_rules.drawer_reward``.
    """

    option_names = ("task", "observation", "history", "state")

    def __init__(
        self,
        *,
        starts: Sequence[FirstFrame],
        image_size: tuple[int, int],
        fixed: DrawerTask | None,
        reward: RewardRule,
    ) -> None:
        self.observation_space = frame_observation_space(*image_size)
        self.action_space = rt1_action_space()
        self.protocol = {"image_size": list(image_size)}
        self.render_fps = float(CONTROL_HZ)
        self.render_mode = "rgb_array"
        self._starts, self._fixed, self._reward = starts, fixed, reward

    def start(self, generator: np.random.Generator, options: Mapping[str, Any]) -> Start:
        """A recorded first frame, or what the options show.

        Raises:
            ValueError: No start of the task, a frame of another size, or a state without the frame that shows it.
        """
        wanted = drawer_task(options["task"]) if "task" in options else self._fixed
        history = history_option(options, self.observation_space, self.action_space)
        # Drawn whatever is given, so that one option does not change what the seed gives for the rest.
        draw = generator.random()
        if history is not None:
            goal = _goal(wanted) if wanted is not None else self._starts[int(draw * len(self._starts))].goal
            return Start(history=history, goal=goal, reading=_checked_state(options.get("state")))
        if "state" in options:
            raise ValueError(
                "options['state'] alone cannot start a dream: only the simulator can draw it. Give"
                " options['observation'] too, for example what RLVRWorld/RT1-Drawer-Sim-v0 returns from"
                " reset(options={'state': ...})"
            )
        fitting = [start for start in self._starts if wanted is None or start.goal.task == wanted]
        if not fitting:
            raise ValueError(
                f"no first frame belongs to {wanted.name if wanted else 'any task'!r}; its instruction would be"
                f" {wanted.instruction if wanted else ''!r}: give episodes of it, or options['observation']"
            )
        chosen = fitting[int(draw * len(fitting))]
        return Start(
            history=History(observations=(chosen.frame.copy(),)), goal=chosen.goal, reading=chosen.state
        )

    def judge(
        self,
        goal: DrawerGoal,
        prediction: Prediction,
        reading: NDArray[Any] | None,
        previous: Observation | None,
    ) -> Outcome:
        """Judge by the rules, on what the world model reads from its own frame."""
        state = np.full(STATE_SIZE, np.nan) if reading is None else np.array(reading, dtype=np.float64)
        if state.shape != (STATE_SIZE,):
            raise ValueError(
                f"the world model reads states of shape {state.shape}; the drawer world needs ({STATE_SIZE},)"
            )
        task = goal.task
        least = 0.0 if self._reward == "sparse" else -1.0
        return Outcome(
            reward=least if task is None else drawer_reward(state, task, self._reward),
            terminated=prediction.terminated,
            info={
                "instruction": goal.instruction,
                "task": "" if task is None else task.name,
                "state": state,
                "success": task is not None and bool(succeeded(state, task)),
            },
        )

    def ends(self, action: Any) -> bool:
        """RT-1's own flag."""
        return is_terminal(action)

    def picture(self, observation: Observation) -> NDArray[np.uint8]:
        """The frame, small ones enlarged by whole pixels to at most 256 px, so that nothing is made up."""
        frame: NDArray[np.uint8] = np.asarray(observation)
        times = max(1, RENDER_HEIGHT_PX // len(frame))
        return np.ascontiguousarray(frame.repeat(times, axis=0).repeat(times, axis=1))


def _checked_state(state: Any) -> NDArray[np.float64] | None:
    if state is None:
        return None
    values = np.asarray(state, dtype=np.float64)
    if values.shape != (STATE_SIZE,) or not np.isfinite(values).all():
        raise ValueError(
            f"options['state'] has shape {values.shape}; expected {STATE_SIZE} finite numbers, as in info['state']"
        )
    return values
