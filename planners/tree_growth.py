"""The tree of a search over texts while it grows: states to ask about, and what was predicted of them.

Special: see ``planners.tree``, which says what is searched and in which order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby

from planners.locality import Effect, Facts, promising
from planners.novelty import Novelty, ReadText, TextReading
from planners.tree_config import Propose, TextPlan, TreeConfig
from worldmodels.api import Observation, Prediction, Predictions, RolloutState


@dataclass(eq=False, kw_only=True)
class Node:
    """A state and the likeliest way to it.

    Attributes:
        reading: What is seen in it.
        terminated: Whether the episode ends there, by prediction.
        score, probability, depth: Of the whole way.
        edges: What was predicted from here: next node, action, reward and probability.
        facts: Numbers that stand for its facts.
        rollout, row: Where the world model goes on from, as long as anything is left to try.
        actions: What is left to try; None: nobody has asked yet.
        later: What is to be tried after those, when the state's turn comes again.
        effects: What actions did here, by prediction, or else did in the state before.
        place: Score, rank and depth with which it waits for its turn.
    """

    reading: TextReading
    terminated: bool = False
    score: float = 0.0
    probability: float = 0.0
    depth: int = 0
    parent: Node | None = None
    action: str = ""
    edges: list[tuple[Node, str, float, float]] = field(default_factory=list)
    facts: tuple[int, ...] = ()
    rollout: RolloutState | None = None
    row: int = 0
    actions: list[str] | None = None
    later: list[str] = field(default_factory=list)
    effects: dict[str, Effect] = field(default_factory=dict)
    place: tuple[float, int, int] = (0.0, 0, 0)

    def lead(self, other: Node, action: str, reward: float, probability: float) -> None:
        """To another node; it, and all that comes after, is on this way if that is the likeliest.

        A way never becomes likelier by coming back, so there are no circles.
        """
        self.edges.append((other, action, reward, probability))
        moved = [(self, self.edges[-1])]
        for node, (later, action, reward, probability) in moved:
            if node.probability * probability > later.probability:
                later.parent, later.action, later.depth = node, action, node.depth + 1
                later.score, later.probability = node.score + reward, node.probability * probability
                moved += [(later, edge) for edge in later.edges]

    def value(self) -> tuple[float, bool, int]:
        """More is better: points that may be expected, a victory being worth one more."""
        return self.probability * (self.score + self.reading.won), not self.terminated, -self.depth


class Tree:
    """The tree while it grows."""

    def __init__(
        self,
        config: TreeConfig,
        read: ReadText,
        propose: Propose,
        avoid: Collection[tuple[str, str]],
        refuted: Mapping[str, Set[Hashable]],
    ) -> None:
        self._config, self._read, self._propose = config, read, propose
        self._avoid, self._refuted = avoid, refuted
        self._novelty: dict[float, Novelty] = {}  # by score: after each point everything is new again
        self._numbers: dict[Hashable, int] = {}  # of facts
        self._nodes: list[Node] = []
        self._known: dict[str, Node] = {}  # by canonical text
        self._facts: set[Facts] = set()  # of all of these
        self._open: list[tuple[float, int, int, int, Node]] = []  # a heap
        self._steps = self._expanded = self._entered = self._errors = 0

    def plant(self, observation: Observation, rollout: RolloutState) -> None:
        """The root."""
        reading = self._read(observation)
        root = Node(reading=reading, terminated=reading.won, probability=1.0, rollout=rollout)
        self._nodes.append(root)
        self._known[reading.text] = root
        self._facts.add(frozenset(reading.facts))
        if not reading.won:
            self._enter(root)

    def next_pairs(self) -> list[tuple[Node, str]]:
        """States and actions to predict together; none after a victory, or when nothing is left to try."""
        pairs: list[tuple[Node, str]] = []
        enough = self._config.sure * (1 - self._steps / self._config.budget_steps)
        done = any(node.reading.won and node.probability >= enough for node in self._nodes)
        room = 0 if done else min(self._config.batch_rows, self._config.budget_steps - self._steps)
        while self._open and len(pairs) < room:
            node = self._open[0][-1]
            if node.actions is None:
                node.actions, node.later = self._in_turn(node, self._candidates(node))
                self._expanded += 1
            free = room - len(pairs)
            pairs += [(node, action) for action in node.actions[:free]]
            node.actions = node.actions[free:]
            if not node.actions:
                heapq.heappop(self._open)
                if node.later:
                    node.actions, node.later = node.later, []
                    self._wait(node, postponed=True)
        return pairs

    def grow(self, pairs: Sequence[tuple[Node, str]], after: RolloutState, predictions: Predictions) -> None:
        """Add the new states among the predictions."""
        self._steps += len(pairs)
        entering: list[tuple[int, Node]] = []
        for row, (parent, action) in enumerate(pairs):
            prediction = predictions[row]
            reading = self._reading(prediction)
            if reading is None or self._is_refuted(parent, action, reading):
                continue
            node = self._known.get(reading.text)
            if node is None:
                node = Node(reading=reading, terminated=prediction.terminated or reading.won)
                self._nodes.append(node)
                self._known[reading.text] = node
                self._facts.add(frozenset(reading.facts))
            parent.effects[action] = Effect.between(parent.reading, reading)
            # A state that is believed later only because its parent is stays unsearched: its rollout was not kept.
            doubted = node.probability <= self._config.doubt
            parent.lead(node, action, _reward(prediction), prediction.probability)
            believed = doubted and node.probability > self._config.doubt
            if believed and not node.terminated and node.depth < self._config.max_depth:
                entering.append((row, node))
        kept = after.select([row for row, _ in entering]) if entering else None
        for place, (_, node) in enumerate(entering):
            node.rollout, node.row = kept, place
            self._enter(node)
        for parent, _ in pairs:
            if not parent.actions:
                parent.rollout, parent.facts = None, ()

    def plan(self) -> TextPlan:
        """The way to the best state."""
        best = max(self._nodes, key=Node.value)  # the first of equals
        way: list[Node] = []
        node: Node | None = best
        while node is not None and node.parent is not None:
            way.insert(0, node)
            node = node.parent
        return TextPlan(
            actions=tuple(node.action for node in way),
            observations=tuple(node.reading.text for node in way),
            score=best.score,
            won=best.reading.won,
            terminated=best.terminated,
            probability=best.probability,
            model_steps=self._steps,
            expanded=self._expanded,
            states=len(self._known),
            errors=self._errors,
        )

    def _candidates(self, node: Node) -> list[str]:
        """Proposed actions, each once."""
        actions = self._propose(node.reading.text)
        if isinstance(actions, str) or not all(isinstance(action, str) for action in actions):
            raise ValueError(f"propose returned {str(actions)[:80]!r}; it must return a sequence of texts")
        return [action for action in dict.fromkeys(actions) if (node.reading.text, action) not in self._avoid]

    def _in_turn(self, node: Node, actions: list[str]) -> tuple[list[str], list[str]]:
        """Actions to ask now, and later."""
        before = node.parent
        if before is None or self._config.order != "novelty" or not self._config.postpone:
            return actions, []
        node.effects = {action: before.effects[action] for action in actions if action in before.effects}
        first = promising(actions, before.reading, node.reading, node.effects, self._facts)
        asked = set(first)
        return first, [action for action in actions if action not in asked]

    def _is_refuted(self, parent: Node, action: str, reading: TextReading) -> bool:
        """Whether the action is said to have done what it does not do."""
        facts = self._refuted.get(action)
        claimed = facts & set(reading.facts) if facts else set()
        return bool(claimed) and not claimed <= set(parent.reading.facts)

    def _reading(self, prediction: Prediction) -> TextReading | None:
        """What is predicted, or None if it cannot be read."""
        observation = prediction.observation
        if isinstance(observation, str) and observation in self._known:  # most are; reading takes time
            return self._known[observation].reading
        try:
            if (
                observation is None
                or prediction.error is not None
                or not math.isfinite(prediction.reward or 0)
            ):
                raise ValueError(prediction.error)
            return self._read(observation)
        except ValueError:
            self._errors += 1
            return None

    def _enter(self, node: Node) -> None:
        """Make a state wait for its turn."""
        order = self._config.order
        rank = 0
        if order == "novelty":
            number = self._numbers
            node.facts = tuple(number.setdefault(fact, len(number)) for fact in node.reading.facts)
            parent = node.parent
            known = parent.facts if parent is not None and parent.score == node.score else ()
            novelty = self._novelty.setdefault(node.score, Novelty(width=self._config.width))
            rank = novelty.rank(node.facts, known)
        # An unlikely point draws nobody into its neighbourhood.
        score = 0.0 if order == "depth" else -float(round(node.probability * node.score))
        node.place = (score, rank, node.depth)
        self._wait(node)

    def _wait(self, node: Node, *, postponed: bool = False) -> None:
        score, rank, depth = node.place
        rank += self._config.postpone if postponed else 0
        heapq.heappush(self._open, (score, rank, depth, self._entered, node))
        self._entered += 1


def _reward(prediction: Prediction) -> float:
    if prediction.reward is None:
        raise ValueError("this world model predicts no rewards, and a tree search looks for nothing else")
    return prediction.reward


def rows_of(nodes: Sequence[Node]) -> RolloutState:
    """The rollouts of these nodes as one batch."""
    parts = []
    for _, group in groupby(nodes, key=lambda node: id(node.rollout)):
        members = list(group)
        assert members[0].rollout is not None
        parts.append(members[0].rollout.select([node.row for node in members]))
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.append(part)
    return rows
