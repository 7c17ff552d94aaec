"""A tree search as a policy: imagine ways through a game, follow the best one while the truth agrees.

Special: what the world model got wrong is not tried again in the same state, so that a wrong prediction costs one
action and no endless loop. What an action was seen not to do is not believed of it in other states either, as long as
another way gains something: a model that is wrong once is wrong again in the next state, and a search finds every such
promise. Where no way gains anything, by prediction, what was tried least is tried, in this state and else anywhere.

Absent on purpose: a limit of steps (the environment truncates), and any look at the truth but its observations.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, replace

from planners.mpc import extended
from planners.tree import TreeSearch
from planners.tree_config import Propose, TextPlan
from worldmodels.api import History, Observation, WorldModel


@dataclass(frozen=True, kw_only=True)
class _Done:
    """What was done last."""

    before: str
    action: str
    expected: str | None  # None: no plan said what would happen


class TextPlanner:
    """Plans anew when a plan ends, after so many actions, or when something else happens than predicted.

    Args:
        search: How to plan.
        world_model: Where to imagine.
        propose: Names candidate actions.
        replan_every: So many actions of a plan are followed; None: all of them.
        max_model_steps: Predictions of an episode; when they are spent nothing is planned any more, and what was
            tried least is tried. None: without limit.

    Attributes:
        plans: The plans of this episode.

    Raises:
        ValueError: ``replan_every`` or ``max_model_steps`` is less than 1.
    """

    def __init__(
        self,
        search: TreeSearch,
        world_model: WorldModel,
        propose: Propose,
        *,
        replan_every: int | None = None,
        max_model_steps: int | None = None,
    ) -> None:
        if replan_every is not None and replan_every < 1:
            raise ValueError(
                f"replan_every must be at least 1, or None to follow whole plans, got {replan_every}"
            )
        if max_model_steps is not None and max_model_steps < 1:
            raise ValueError(f"max_model_steps must be at least 1, or None, got {max_model_steps}")
        self.search, self.world_model, self.propose = search, world_model, propose
        self.replan_every, self.max_model_steps = replan_every, max_model_steps
        self.reset(seed=0)

    @property
    def model_steps(self) -> int:
        """Predictions asked for in this episode."""
        return sum(plan.model_steps for plan in self.plans)

    @property
    def ahead(self) -> int:
        """Actions of the present plan that are not done yet."""
        return len(self._next)

    @property
    def spent(self) -> bool:
        """Whether nothing is planned any more in this episode."""
        return self._budget() < 1

    def reset(self, *, seed: int, instruction: str | None = None) -> None:
        """Start an episode; the instruction, a game's name, is what the world model is told, if it wants to know."""
        self._seed, self._instruction = seed, instruction or ""
        self.plans: list[TextPlan] = []
        self._history: History | None = None
        self._done: _Done | None = None
        self._next: deque[tuple[str, str]] = deque()  # actions, and what is predicted after each
        self._wrong: set[tuple[str, str]] = set()
        self._refuted: dict[str, set[Hashable]] = {}  # facts that an action did not bring about
        self._barren: set[str] = set()  # states from which no way gains anything; nobody searches there again
        self._tries: Counter[tuple[str, str]] = Counter()
        self._done_so_far: Counter[str] = Counter()

    def act(self, observation: Observation) -> str:
        """The next action.

        Raises:
            ValueError: The observation cannot be read, or nothing is proposed in it.
        """
        text = self.search.read(observation).text
        self._look(observation, text)
        if not self._next and text not in self._barren and not self.spent:
            self._plan(text)
        if self._next:
            action, expected = self._next.popleft()
            self._done = _Done(before=text, action=action, expected=expected)
        else:
            self._done = _Done(before=text, action=self._least_tried(text), expected=None)
        self._tries[text, self._done.action] += 1
        self._done_so_far[self._done.action] += 1
        return self._done.action

    def _look(self, observation: Observation, text: str) -> None:
        """Go on from what was seen; forget a plan that did not foresee it."""
        done, length = self._done, self.world_model.history_length
        if self._history is None or done is None:
            self._history = History(observations=(observation,), instruction=self._instruction)
            return
        self._history = extended(self._history, done.action, observation, length=length)
        if done.expected is not None and done.expected != text:
            self._wrong.add((done.before, done.action))
            promised, seen = (set(self.search.read(state).facts) for state in (done.expected, text))
            if broken := promised - seen:
                self._refuted.setdefault(done.action, set()).update(broken)
            self._next.clear()

    def _plan(self, text: str) -> None:
        plan = self._searched(self._refuted)
        if not plan.actions and self._refuted and not self.spent:
            self._refuted.clear()
            plan = self._searched(self._refuted)
        self._next.extend(list(zip(plan.actions, plan.observations, strict=True))[: self.replan_every])
        if not plan.actions:
            self._barren.add(text)

    def _searched(self, refuted: Mapping[str, Set[Hashable]]) -> TextPlan:
        assert self._history is not None
        search = replace(self.search, config=replace(self.search.config, budget_steps=self._budget()))
        plan = search.plan(
            self.world_model,
            self._history,
            self.propose,
            seed=self._seed,
            avoid=self._wrong,
            refuted=refuted,
        )
        self.plans.append(plan)
        return plan

    def _budget(self) -> int:
        """Predictions of the next search."""
        budget = self.search.config.budget_steps
        return (
            budget if self.max_model_steps is None else min(budget, self.max_model_steps - self.model_steps)
        )

    def _least_tried(self, text: str) -> str:
        actions = list(self.propose(text))
        if not actions:
            raise ValueError(f"no action is proposed in the state {text[:80]!r}; is the episode over?")
        return min(actions, key=lambda action: (self._tries[text, action], self._done_so_far[action]))
