"""PushT goals cut from recorded episodes, and how a try at one of them is executed and judged.

Special: the recorded actions were made in a batch of worlds, where contact runs differ in the last digits, so
the goal is what *one* world reaches when it replays them from the start state; the goal can therefore be
reached. Success is asked after every environment step and sticks; a problem that succeeded acts no more (zero
actions, which brake) but its world goes on until the budget is spent, so that "still there at the end" can be
told too.

Absent: planners. Whatever acts gets observations and hands in actions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvr_envs.simulators.pusht import FloatArray, PushTWorld, angle_difference, reached_state
from training.data import PushTData
from training.report import source_of
from training.run import to_json, write_json
from worldmodels.api import Observation
from worldmodels.episodes import split_of

BUNDLED_GOALS = Path(__file__).parent / "assets" / "pusht_goals.json"

# From when on a goal counts as one for which the block has to move: the tolerances of the success rule.
MOVED_PX, MOVED_RAD = 20.0, float(np.pi / 9)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """From one state to another.

    Attributes:
        episode: Recorded episode.
        time: Its stored frame that is the start.
        start: ``(7,)`` start state.
        goal: ``(7,)`` goal state.
    """

    episode: str
    time: int
    start: tuple[float, ...]
    goal: tuple[float, ...]

    @property
    def id(self) -> str:
        """Unique in a data set."""
        return f"{self.episode}@{self.time}"

    @property
    def moved(self) -> bool:
        """Whether start and goal differ in the block by more than the success rule tolerates."""
        shift = float(np.linalg.norm(np.subtract(self.goal[2:4], self.start[2:4])))
        return shift > MOVED_PX or float(angle_difference(self.goal[4], self.start[4])) > MOVED_RAD

    def seed(self, base: int) -> int:
        """A seed in [0, 2^62) that depends on the problem, not on its place in a list."""
        digest = hashlib.sha256(f"{base} {self.id}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 2

    def to_protocol(self) -> dict[str, Any]:
        """What a protocol records: states to a thousandth, so that another processor's last digit does not matter."""
        rounded = {name: [round(x, 3) for x in getattr(self, name)] for name in ("start", "goal")}
        return {"episode": self.episode, "time": self.time, **rounded}


@dataclass(frozen=True, kw_only=True)
class GoalSet:
    """Problems that no longer need the data they were cut from.

    Attributes:
        problems: In a fixed order; a shorter evaluation takes the first ones.
        goal_actions: Recorded world-model actions between start and goal.
        frame_skip: Environment steps per world-model action.
        action_deviation: Standard deviation of the recorded actions, which the random policy copies.
        source: What a manifest says of the data.
    """

    problems: tuple[Problem, ...]
    goal_actions: int
    frame_skip: int
    action_deviation: float
    source: Mapping[str, Any]

    @classmethod
    def choose(cls, data: PushTData, *, count: int, goal_actions: int, seed: int) -> GoalSet:
        """See ``choose_problems``."""
        (split,) = {split_of(name) for name in data.ids}
        return cls(
            problems=tuple(choose_problems(data, count=count, goal_actions=goal_actions, seed=seed)),
            goal_actions=goal_actions,
            frame_skip=data.actions.shape[-1] // 2,
            action_deviation=round(float(data.actions.std()), 4),
            source=source_of(data.store, split),
        )

    @classmethod
    def load(cls, path: Path = BUNDLED_GOALS) -> GoalSet:
        """Read a set that ``save`` wrote; by default the bundled one, cut from test episodes."""
        content = json.loads(path.read_text(encoding="utf-8"))
        problems = [
            Problem(**{**p, "start": tuple(p["start"]), "goal": tuple(p["goal"])})
            for p in content.pop("problems")
        ]
        return cls(problems=tuple(problems), **content)

    def save(self, path: Path) -> None:
        """Write the set as JSON; numbers keep every digit."""
        write_json(path, to_json(self))

    def first(self, count: int) -> GoalSet:
        """The first ``count`` problems.

        Raises:
            ValueError: There are fewer.
        """
        if count > len(self.problems):
            raise ValueError(
                f"{count} goals asked for, but the set has {len(self.problems)}; ask for fewer, or give --data to cut"
                " new ones from episodes"
            )
        return replace(self, problems=self.problems[:count])


def choose_problems(data: PushTData, *, count: int, goal_actions: int, seed: int) -> list[Problem]:
    """``count`` segments of ``goal_actions`` recorded actions, one per episode, as problems.

    Raises:
        ValueError: Fewer episodes than problems, or episodes that are too short.
    """
    times = data.actions.shape[1] - goal_actions + 1
    if count > len(data) or times < 1:
        raise ValueError(
            f"{count} goals {goal_actions} actions away need as many episodes that long, but there are {len(data)} of"
            f" {data.actions.shape[1]} actions; ask for fewer goals or collect more episodes"
        )
    generator = np.random.default_rng([seed, 1])
    rows = generator.permutation(len(data))[:count]
    starts = generator.integers(0, times, size=count)
    world, problems = PushTWorld(), []
    for row, time in zip(rows.tolist(), starts.tolist(), strict=True):
        start = data.states[row, time]
        world.set_state(start)
        for action in data.actions[row, time : time + goal_actions].reshape(-1, 2):
            world.step(action)
        problems.append(
            Problem(
                episode=data.ids[row],
                time=time,
                start=tuple(start.tolist()),
                goal=tuple(world.state().tolist()),
            )
        )
    return problems


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a try ended.

    Attributes:
        success: Whether the goal was reached at any step.
        success_step: The first environment step at which it was, or None.
        success_at_end: Whether it is reached when the budget is spent.
        block_px, angle_deg, agent_px: Distances from the goal when it was reached, else at the end.
    """

    success: bool
    success_step: int | None
    success_at_end: bool
    block_px: float
    angle_deg: float
    agent_px: float


class Attempt:
    """One try at a problem in one true world.

    Args:
        problem: Start and goal.
        observe: State -> what the planner gets to see.
        budget_env_steps: Steps of the whole try.
    """

    def __init__(
        self, problem: Problem, *, observe: Callable[[FloatArray], Observation], budget_env_steps: int
    ) -> None:
        self.problem = problem
        self._observe, self._budget = observe, budget_env_steps
        self._world = PushTWorld()
        self._world.set_state(problem.start)
        self._steps = 0
        self._reached: tuple[int, FloatArray] | None = None

    @property
    def done(self) -> bool:
        """Whether the goal was reached or the budget is spent."""
        return self._reached is not None or self._steps >= self._budget

    def observation(self) -> Observation:
        """What the planner sees now."""
        return self._observe(self._world.state())

    def act(self, action: NDArray[np.floating[Any]]) -> None:
        """Execute one planned action: as many environment actions of two numbers as it holds."""
        for part in np.asarray(action, dtype=np.float64).reshape(-1, 2):
            if self.done:
                return
            state = self._world.step(part)
            self._steps += 1
            if reached_state(state, self.problem.goal):
                self._reached = (self._steps, state)

    def outcome(self) -> Outcome:
        """Spend the rest of the budget without acting, and judge."""
        for _ in range(self._steps, self._budget):
            self._world.step((0.0, 0.0))
        self._steps = self._budget
        last = self._world.state()
        step, state = (None, last) if self._reached is None else self._reached
        goal = np.asarray(self.problem.goal)
        return Outcome(
            success=self._reached is not None,
            success_step=step,
            success_at_end=bool(reached_state(last, goal)),
            block_px=float(np.linalg.norm(state[2:4] - goal[2:4])),
            angle_deg=float(np.degrees(angle_difference(state[4], goal[4]))),
            agent_px=float(np.linalg.norm(state[:2] - goal[:2])),
        )
