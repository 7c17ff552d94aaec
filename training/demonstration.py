"""Plans a few PushT goals in a world model, executes them in the simulator, and shows truth and dream side by
side.

Special: needs nothing but the package: starts and goals are made by the simulator from a seed. The planner
gets frames and what the agent feels, also of the goal, looks again after every planned action (half a
second), and never asks the simulator what would happen. For the film the world model then dreams all executed
actions in one go, from the first frame on.

Absent: statistics; ``training.plan`` has the table with many goals and its trivial and oracle rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from planners import MPC, MPCResult
from rlvr_envs.simulators.pusht import FloatArray, PushTWorld
from rlvr_envs.simulators.pusht_drawing import PushTDrawing
from rlvr_envs.simulators.pusht_policies import BatchPusher, sample_states
from rlvr_envs.spaces import PUSHT_FRAME_SKIP, PUSHT_IMAGE_PX
from rlvr_envs.tasks import proprio
from training.goals import Attempt, Problem
from training.pictures import Frame, grid, side_by_side
from worldmodels.api import History, Observation, WorldModel

GOAL_ACTIONS = 5  # goals are 25 environment steps away, as in the planning evaluation
EDGE_PX = 20.0  # agent and block of a goal stay this far inside the arena
_MAX_APPROACH_ACTIONS = 5


def make_problems(count: int, *, seed: int) -> list[Problem]:
    """Goals that one world reached by 25 steps of scripted pushing; the block has to move in three of four at least."""
    generator = np.random.default_rng([seed, 2])
    problems: list[Problem] = []
    still = 0
    while len(problems) < count:
        world, pusher = PushTWorld(), BatchPusher(1, generator)
        world.set_state(sample_states(1, generator)[0])

        def push(actions: int, world: PushTWorld = world, pusher: BatchPusher = pusher) -> FloatArray:
            for _ in range(PUSHT_FRAME_SKIP * actions):
                world.step(pusher.act(world.state()[None])[0])
            return world.state()

        start = push(int(generator.integers(1, _MAX_APPROACH_ACTIONS + 1)))
        goal = push(GOAL_ACTIONS)
        problem = Problem(
            episode=f"demo-{seed}-{len(problems)}",
            time=0,
            start=tuple(start.tolist()),
            goal=tuple(goal.tolist()),
        )
        inside = bool(((goal[:4] > EDGE_PX) & (goal[:4] < 512 - EDGE_PX)).all())
        if inside and (problem.moved or still < count // 4):
            still += not problem.moved
            problems.append(problem)
    return problems


def observer() -> Callable[[FloatArray], Observation]:
    """State -> observation of the bundled models: a 64 px frame and proprioception."""
    drawing = PushTDrawing(size=PUSHT_IMAGE_PX)
    return lambda state: {"image": drawing.frame(state), "proprio": proprio(state)}


def execute(
    mpc: MPC,
    problems: Sequence[Problem],
    goals: Sequence[Any],
    *,
    seed: int,
    progress: Callable[[int], object],
) -> tuple[list[Attempt], MPCResult]:
    """Control one true world per problem until its goal is reached or the budget is spent.

    Args:
        mpc: Plans.
        problems: Starts and goals.
        goals: The goals as the planner's cost takes them.
        seed: Of the search.
        progress: Called with the number of actions that were just executed.
    """
    budget = mpc.config.budget_env_steps
    attempts = [Attempt(problem, observe=observer(), budget_env_steps=budget) for problem in problems]

    def act(rows: Sequence[int], actions: NDArray[np.floating[Any]]) -> tuple[list[Observation], list[bool]]:
        for row, action in zip(rows, actions, strict=True):
            attempts[row].act(action)
        progress(len(rows))
        return [attempts[row].observation() for row in rows], [attempts[row].done for row in rows]

    first = [attempt.observation() for attempt in attempts]
    return attempts, mpc.run(first, goals, act, seeds=[problem.seed(seed) for problem in problems])


@dataclass(frozen=True, kw_only=True)
class Film:
    """One problem's frames, from the start on: what happened, what was dreamt, what was wanted.

    Attributes:
        truth: Frames ``(S, S, 3)`` uint8 of the simulator.
        dream: Frames of the world model under the same actions, which saw the first one only.
        goal: The goal's frame.
        block_error_px: How far the dreamt block is from the true one at the end.
    """

    truth: list[Frame]
    dream: list[Frame]
    goal: Frame
    block_error_px: float

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.truth)

    def page(self, step: int) -> Image.Image:
        """Truth, dream and goal side by side; after the end the last frames stay."""
        step = min(step, len(self) - 1)
        captions = [f"truth, action {step}", "dream", "goal"]
        return side_by_side([self.truth[step], self.dream[step], self.goal], captions)

    def strip(self) -> Image.Image:
        """The whole film as a picture: truth above, dream below, the goal at the right."""
        names = [str(step) for step in range(len(self))]
        truth = side_by_side([*self.truth, self.goal], [f"truth {names[0]}", *names[1:], "goal"])
        dream = side_by_side([*self.dream, self.goal], [f"dream {names[0]}", *names[1:], "goal"])
        return grid([truth, dream], columns=1)


def film(world_model: WorldModel, problem: Problem, actions: NDArray[np.floating[Any]], *, seed: int) -> Film:
    """Play actions ``(T, A)`` in a true world and in a dream (at temperature 0) that begin alike."""
    observe, world = observer(), PushTWorld()
    world.set_state(problem.start)
    first = observe(world.state())
    truth, dream = [first["image"]], [first["image"]]
    dreamt_block = np.asarray(problem.start[2:4])
    rollout = world_model.start([History(observations=(first,))], seeds=[problem.seed(seed)])
    for action in actions:
        for part in np.asarray(action, dtype=np.float64).reshape(-1, 2):
            world.step(part)
        truth.append(observe(world.state())["image"])
        rollout, predictions = world_model.step(rollout, action[None].astype(np.float32), temperature=0.0)
        seen, states = predictions[0].observation, predictions.states()
        dream.append(dream[-1] if seen is None else seen["image"])
        dreamt_block = np.full(2, np.nan) if states is None else states[0, 2:4]
    return Film(
        truth=truth,
        dream=dream,
        goal=observe(np.asarray(problem.goal))["image"],
        block_error_px=float(np.linalg.norm(dreamt_block - world.state()[2:4])),
    )
