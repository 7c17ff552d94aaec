"""PushT as a Gymnasium environment: the truth beside which every dream is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlvr_envs.simulators.pusht import GOAL_POSE, SUBSTEP_SECONDS, SUBSTEPS, FloatArray, PushTWorld, Snapshot
from rlvr_envs.simulators.pusht_drawing import PushTDrawing
from rlvr_envs.simulators.pusht_policies import clearance, sample_states
from rlvr_envs.spaces import (
    PUSHT_FRAME_SKIP,
    PUSHT_IMAGE_PX,
    checked_action,
    checked_observation,
    checked_options,
    pusht_action_space,
    pusht_observation_space,
)
from rlvr_envs.tasks import (
    PushTGoal,
    PushTRules,
    RewardRule,
    SuccessRule,
    full_state,
    goal_parts,
    proprio,
    pusht_info,
)

Observation = dict[str, NDArray[Any]]
RESET_OPTIONS = ("state", "goal", "snapshot")
MIN_CLEARANCE_PX = (
    25.0  # random agents start this far from the block's edge, and so at least 10 px clear of it
)


@dataclass(frozen=True, kw_only=True)
class PushTSnapshot:
    """A moment of an episode; the generator of random starts is not part of it."""

    world: Snapshot
    goal: PushTGoal
    clipped_actions: int


def random_goal(generator: np.random.Generator, rules: PushTRules) -> FloatArray:
    """A goal state ``(7,)``: drawn like a start; under the coverage rule its block is on the green T."""
    state = sample_states(1, generator, min_clearance_px=MIN_CLEARANCE_PX)[0]
    if rules.success == "coverage":
        state[2:5] = GOAL_POSE
        while clearance(state[None])[0] < MIN_CLEARANCE_PX:
            state[:2] = generator.uniform(50, 450, size=2)
    return state


class PushTSimEnv(gym.Env[Observation, NDArray[Any]]):
    """PushT in the physics simulator.

    ## Description
    A round agent pushes a T-shaped block on a table of 512 x 512 px, seen from above, until both stand as in
    a goal. The physics are those of the dino_wm variant: 10 Hz control, a proportional-derivative controller
    that moves the agent about 30 % of a commanded displacement from rest, a block that keeps no velocity. The
    agent goes through walls, the block does not.

    ## Action Space
    ``Box(-1, 1, (2 * frame_skip,), float32)``: for each of ``frame_skip`` consecutive environment steps the
    displacement x, y of the agent's target from where it is, in units of 100 px. Numbers outside are clipped
    and counted. ``frame_skip=1`` gives the classic two numbers.

    ## Observation Space
    ``Dict``: ``image``, ``(image_size, image_size, 3)`` uint8 RGB, and ``proprio``, ``(4,)`` float32: the
    agent's x, y in px and velocity in px/s, both unbounded. The green T is a picture at a fixed place, (256,
    256, 45 degrees), wherever the goal is.

    ## Starting State
    Agent uniform in 50 to 450 px and clear of the block, block uniform in 100 to 400 px at any angle, all at
    rest; the goal is drawn in the same way, under ``success="coverage"`` with its block on the green T.
    Options of ``reset``:

    - ``state``: 5 or 7 numbers (agent x, y, block x, y, block angle in rad, agent velocity x, y). As
      published, one physics step of 0.01 s follows, in which the agent already moves.
    - ``goal``: 5 or 7 numbers, or ``{"state": numbers, "image": frame}``; without an image it is drawn.
    - ``snapshot``: what :meth:`snapshot` gave; continues from there exactly. It excludes the others.

    ## Rewards
    ``reward="sparse"``: 1 on success, else 0. ``"dense"``: in [-1, 0], see
    :class:`rlvr_envs.tasks.PushTRules`. ``"coverage"``: share of the goal block that is covered over 0.95, at
    most 1.

    ## Episode End
    Terminated on success, looked at after each step: ``success="state"`` wants agent and block within 20 px
    together and the block within 20 degrees (dino_wm); ``"coverage"`` wants more than 95 % of the goal block
    covered (gym-pusht). Truncated after 20 steps: for another ``frame_skip``, give ``gym.make`` another
    ``max_episode_steps``.

    ## Information
    ``state`` ``(7,)`` float64; ``goal`` uint8 frame; ``goal_state`` ``(7,)`` float64; ``goal_proprio``
    ``(4,)`` float32; ``success``; ``coverage`` of the goal state's block; ``clipped_actions``: numbers
    clipped in this episode.

    ## Arguments
    - ``frame_skip``: environment steps per step, at least 1.
    - ``image_size``: px of observed and goal frames. ``render_size``: px of rendered frames.
    - ``success``, ``reward``: see above.
    - ``render_mode``: ``"rgb_array"`` or None.

    ## References
    Chi et al. 2023, Diffusion Policy (the task); Zhou et al. 2024, DINO-WM (these rules); gym-pusht
    (coverage).

    ## Version History
    - v0: first release.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}  # noqa: RUF012  (Gymnasium's own interface)

    def __init__(
        self,
        *,
        frame_skip: int = PUSHT_FRAME_SKIP,
        image_size: int = PUSHT_IMAGE_PX,
        render_size: int = 224,
        success: SuccessRule = "state",
        reward: RewardRule = "sparse",
        render_mode: str | None = None,
    ) -> None:
        self.action_space = pusht_action_space(frame_skip=frame_skip)
        space = pusht_observation_space(image_size=image_size)
        self.observation_space: gym.Space[Any] = space
        self._image_space = space["image"]
        self.rules = PushTRules(success=success, reward=reward)
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": 1 / (SUBSTEPS * SUBSTEP_SECONDS * frame_skip)}
        self._drawing = PushTDrawing(size=image_size)
        self._render_drawing = PushTDrawing(size=render_size)
        self._world = PushTWorld()
        self._goal: PushTGoal | None = None
        self._clipped_actions = 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; see the class for the options.

        Raises:
            ValueError: Unknown options, or a state or goal of the wrong size; names it and what is expected.
        """
        super().reset(seed=seed)
        options = checked_options(options, RESET_OPTIONS)
        if "snapshot" in options:
            if len(options) > 1:
                raise ValueError(
                    f"options has {sorted(options)}; a snapshot holds state and goal, give it alone"
                )
            return self.restore(options["snapshot"])
        # Both are drawn whatever is given, so that one option does not change what the seed gives for the
        # other.
        state = sample_states(1, self.np_random, min_clearance_px=MIN_CLEARANCE_PX)[0]
        goal: Any = random_goal(self.np_random, self.rules)
        if "state" in options:
            state = full_state("options['state']", options["state"])
        goal_state, goal_image = goal_parts(options.get("goal", goal))
        if goal_image is None:
            goal_image = self._drawing.frame(goal_state)
        checked_observation("options['goal']['image']", self._image_space, goal_image)
        self._goal = PushTGoal(state=goal_state, image=goal_image)
        self._clipped_actions = 0
        self._world.reset(state)
        return self._observation(), self._judged()[1]

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Apply ``frame_skip`` displacements, one per 0.1 s.

        Raises:
            ValueError: Wrong shape, or a number that is not finite.
        """
        values, clipped = checked_action(self.action_space, action)
        self._clipped_actions += clipped
        for displacement in values.reshape(-1, 2):
            self._world.step(displacement)
        reward, info = self._judged()
        return self._observation(), reward, info["success"], False, info

    def render(self) -> NDArray[np.uint8] | None:
        """The present frame at ``render_size``, ``(render_size, render_size, 3)`` uint8."""
        return self._render_drawing.frame(self._world.state()) if self.render_mode == "rgb_array" else None

    def snapshot(self) -> PushTSnapshot:
        """This moment; ``restore`` and ``reset(options={"snapshot": ...})`` continue from it exactly."""
        return PushTSnapshot(
            world=self._world.snapshot(), goal=self._current_goal(), clipped_actions=self._clipped_actions
        )

    def restore(self, snapshot: PushTSnapshot) -> tuple[Observation, dict[str, Any]]:
        """Go back to a snapshot, of this or of another PushT; wrappers (the time limit) do not notice.

        Raises:
            ValueError: Not a snapshot of this class, or one with goal frames of another size.
        """
        if not isinstance(snapshot, PushTSnapshot):
            raise ValueError(
                f"snapshot is {type(snapshot).__name__}; give what snapshot() of a PushTSimEnv returned"
            )
        checked_observation("the snapshot's goal", self._image_space, snapshot.goal.image)
        self._goal, self._clipped_actions = snapshot.goal, snapshot.clipped_actions
        self._world.restore(snapshot.world)
        return self._observation(), self._judged()[1]

    def _current_goal(self) -> PushTGoal:
        if self._goal is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        return self._goal

    def _observation(self) -> Observation:
        state = self._world.state()
        return {"image": self._drawing.frame(state), "proprio": proprio(state)}

    def _judged(self) -> tuple[float, dict[str, Any]]:
        state, goal = self._world.state(), self._current_goal()
        judgement = self.rules.judge(state, goal.state)
        return judgement.reward, {
            **pusht_info(state, goal, judgement),
            "clipped_actions": self._clipped_actions,
        }
