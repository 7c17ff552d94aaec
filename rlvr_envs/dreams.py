"""The learned environments: which task each id dreams of. No simulator is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvr_envs.contexts import load_pusht_starts
from rlvr_envs.learned import LearnedEnv, LearnedVectorEnv
from rlvr_envs.moments import Outcome, Start, history_option
from rlvr_envs.spaces import (
    PUSHT_FRAME_SKIP,
    PUSHT_IMAGE_PX,
    checked_observation,
    pusht_action_space,
    pusht_observation_space,
)
from rlvr_envs.tasks import (
    STATE_SIZE,
    FloatArray,
    PushTGoal,
    PushTRules,
    RewardRule,
    SuccessRule,
    full_state,
    goal_parts,
    proprio,
    pusht_info,
)
from worldmodels.api import History, Observation, Prediction, WorldModel

RENDER_PX = 224
ENVIRONMENT_STEPS_PER_SECOND = 10


def pusht(
    *,
    world_model: WorldModel | str | Path,
    frame_skip: int = PUSHT_FRAME_SKIP,
    success: SuccessRule = "state",
    reward: RewardRule = "sparse",
    temperature: float = 1.0,
    render_mode: str | None = None,
) -> LearnedEnv:
    """PushT inside a world model.

    ## Description
    A round agent pushes a T-shaped block until both stand as in a goal, but the table is imagined: each next
    frame and each next position of the agent is sampled from a world model that was trained on the simulator.
    Spaces, goals, rewards and ends are those of the simulator, ``RLVRWorld/PushT-Sim-v0``.

    ## Action Space
    ``Box(-1, 1, (2 * frame_skip,), float32)``: for each of ``frame_skip`` consecutive environment steps the
    displacement x, y of the agent's target, in units of 100 px. Numbers outside are clipped and counted.

    ## Observation Space
    ``Dict``: ``image``, ``(64, 64, 3)`` uint8 RGB, and ``proprio``, ``(4,)`` float32: the agent's x, y in px
    and velocity in px/s.

    ## Starting State
    One of 256 bundled frames of the simulator's random starts, with another of them as the goal (under
    ``success="coverage"``: a frame with the block on the green T). Options of ``reset``:

    - ``observation``: a first observation, for example one of the simulator's.
    - ``history``: a ``worldmodels.api.History`` of several observations and the actions between them.
    - ``state``: with one of the two, the true state (5 or 7 numbers) it shows. Alone it is refused, since
      only the simulator can draw it.
    - ``goal``: ``{"state": 5 or 7 numbers, "image": frame}``; the image is needed for the same reason.
    - ``snapshot``: what :meth:`LearnedEnv.snapshot` gave; goes back to that moment. It excludes the others.

    ## Rewards
    As in the simulator, on the state that the world model reads from its own prediction. Where it cannot read
    one, the least reward.

    ## Episode End
    Terminated on success as in the simulator, judged like the reward. Truncated after 20 steps.

    ## Information
    ``state`` ``(7,)`` float64, the world model's own reading (at reset the true state, where it is known),
    with NaN for what is unknown; ``goal``, ``goal_state``, ``goal_proprio``, ``success``, ``coverage``,
    ``clipped_actions`` as in the simulator; ``prediction_error``: why the last observation was kept, "" if it
    was not.

    ## Arguments
    - ``world_model``: a bundled name, a folder, a hub id, or any ``worldmodels.api.WorldModel``.
    - ``frame_skip``: environment steps per step; must be what the world model was trained with.
    - ``success``, ``reward``: as in the simulator.
    - ``temperature``: of the world model's draws; 0 takes the likeliest tokens.
    - ``render_mode``: ``"rgb_array"`` (224 px, every pixel of the dream repeated) or None.

    ## References
    Wu et al. 2025, RLVR-World; Zhou et al. 2024, DINO-WM; Chi et al. 2023, Diffusion Policy.

    ## Version History
    - v0: first release.
    """
    task = PushTTask(frame_skip=frame_skip, rules=PushTRules(success=success, reward=reward))
    return LearnedEnv(world_model, task, temperature=temperature, render_mode=render_mode)


def pusht_vector(
    *,
    world_model: WorldModel | str | Path,
    num_envs: int,
    max_episode_steps: int | None = None,
    frame_skip: int = PUSHT_FRAME_SKIP,
    success: SuccessRule = "state",
    reward: RewardRule = "sparse",
    temperature: float = 1.0,
    render_mode: str | None = None,
) -> LearnedVectorEnv:
    """``num_envs`` dreams of PushT stepped as one batch; for the rest see :func:`pusht`."""
    return LearnedVectorEnv(
        world_model,
        PushTTask(frame_skip=frame_skip, rules=PushTRules(success=success, reward=reward)),
        num_envs=num_envs,
        max_episode_steps=max_episode_steps,
        temperature=temperature,
        render_mode=render_mode,
    )


class PushTTask:
    """The PushT of :mod:`rlvr_envs.tasks` as a task of dreams.

    Args:
        frame_skip: Environment steps per step.
        rules: Success and reward.
    """

    option_names = ("observation", "history", "state", "goal")

    def __init__(self, *, frame_skip: int, rules: PushTRules) -> None:
        self.observation_space = pusht_observation_space()
        self.action_space = pusht_action_space(frame_skip=frame_skip)
        self.protocol = {"environment": "PushT", "frame_skip": frame_skip, "image_size": PUSHT_IMAGE_PX}
        self.render_fps = ENVIRONMENT_STEPS_PER_SECOND / frame_skip
        self.render_mode = "rgb_array"
        self.rules = rules

    def start(self, generator: np.random.Generator, options: Mapping[str, Any]) -> Start:
        """A bundled start and goal, or those of the options.

        Raises:
            ValueError: A state or a goal without its image, or something of the wrong shape.
        """
        # Both are drawn whatever is given, so that one option does not change what the seed gives for the
        # other.
        starts = load_pusht_starts()
        first, second = generator.choice(len(starts.states), size=2, replace=False)
        covered = generator.integers(len(starts.covered_states))
        if self.rules.success == "coverage":
            goal = PushTGoal(state=starts.covered_states[covered], image=starts.covered_images[covered])
        else:
            goal = PushTGoal(state=starts.states[second], image=starts.images[second])
        if "goal" in options:
            goal = self._goal(options["goal"])
        history = history_option(options, self.observation_space, self.action_space)
        state = starts.states[first]
        if history is None:
            if "state" in options:
                raise ValueError(
                    "options['state'] alone cannot start a dream: only the simulator can draw it. Give"
                    " options['observation'] too, for example what RLVRWorld/PushT-Sim-v0 returns from"
                    " reset(options={'state': ...})"
                )
            observation = {"image": starts.images[first].copy(), "proprio": proprio(state)}
            return Start(history=History(observations=(observation,)), goal=goal, reading=state)
        reading = full_state("options['state']", options["state"]) if "state" in options else None
        return Start(history=history, goal=goal, reading=reading)

    def judge(
        self,
        goal: PushTGoal,
        prediction: Prediction,
        reading: NDArray[Any] | None,
        previous: Observation | None,
    ) -> Outcome:
        """Judge by the rules on the world model's reading: 7 numbers, or 5 and the predicted velocity."""
        state = _state(reading, prediction.observation)
        judgement = self.rules.judge(state, goal.state)
        return Outcome(
            reward=judgement.reward,
            terminated=judgement.success or prediction.terminated,
            info=pusht_info(state, goal, judgement),
        )

    def ends(self, action: Any) -> bool:
        """No action of PushT ends an episode."""
        return False

    def picture(self, observation: Observation) -> NDArray[np.uint8]:
        """The observed frame at 224 px, every pixel repeated so that nothing is made up."""
        image = observation["image"]
        index = np.arange(RENDER_PX) * len(image) // RENDER_PX
        return np.ascontiguousarray(image[index][:, index])

    def _goal(self, option: Any) -> PushTGoal:
        state, image = goal_parts(option)
        if image is None:
            raise ValueError(
                "options['goal'] has no image, and a dream cannot draw one: give {'state': ..., 'image': ...}"
                " with, for example, goal_state and goal from the info of RLVRWorld/PushT-Sim-v0"
            )
        checked_observation("options['goal']['image']", self.observation_space["image"], image)
        return PushTGoal(state=state, image=image)


def _state(reading: NDArray[Any] | None, observation: Observation) -> FloatArray:
    """The state ``(7,)`` of a reading of 7 numbers, of 5, or of none (then NaN for the block)."""
    felt = np.asarray(observation["proprio"], dtype=np.float64)
    if reading is None:
        return np.array([*felt[:2], np.nan, np.nan, np.nan, *felt[2:]])
    state = np.asarray(reading, dtype=np.float64)
    if state.shape == (STATE_SIZE - 2,):
        state = np.concatenate([state, felt[2:]])
    if state.shape != (STATE_SIZE,):
        raise ValueError(f"the world model reads states of shape {state.shape}; PushT needs 7 numbers, or 5")
    return state
