"""Settings and result of a tree search over texts, see ``planners.tree``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Propose: TypeAlias = Callable[[str], Sequence[str]]
"""The canonical text of a state -> the actions worth trying there, in a fixed order; none where nothing is."""

TreeOrder = Literal["novelty", "score", "depth"]


@dataclass(frozen=True, kw_only=True)
class TreeConfig:
    """Settings of ``planners.tree.TreeSearch``.

    Attributes:
        order: Which states come first. ``"depth"``: the shallowest (breadth-first); ``"score"``: those with the
            highest score, then the shallowest; ``"novelty"``: those with the highest score, then the newest (see
            ``width``), then the shallowest.
        width: What is new, among states of the same score: 1, a fact that was not seen before; 2, after those
            also two facts that were not seen together.
        budget_steps: At most so many predictions, counted per state and action.
        batch_rows: At most so many are asked in one call of the world model.
        max_depth: No plan is longer.
        temperature: Of the world model; 0 takes the likeliest tokens.
        doubt: A way that the world model itself finds less likely is not followed further, in [0, 1).
        postpone: An action that seems to lead nowhere new (``planners.locality``) is asked as if its state's novelty
            were so many ranks worse; 0 asks all actions of a state at once. Without effect in other orders.
        sure: The search ends at a victory that is at least so likely, times the share of the budget that is left: a
            less likely one may yet give way to another, but the later it is the less is to be hoped for. In [0, 1].

    Raises:
        ValueError: a setting is out of its range.
    """

    order: TreeOrder = "novelty"
    width: int = 2
    budget_steps: int = 10_000
    batch_rows: int = 64
    max_depth: int = 40
    temperature: float = 0.0
    postpone: int = 2
    doubt: float = 0.05
    sure: float = 0.8

    def __post_init__(self) -> None:
        if self.order not in get_args(TreeOrder):
            raise ValueError(f"TreeConfig.order is {self.order!r}; choose one of {list(get_args(TreeOrder))}")
        if self.width not in (1, 2):
            raise ValueError(f"TreeConfig.width must be 1 or 2, got {self.width}")
        for name in ("budget_steps", "batch_rows", "max_depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"TreeConfig.{name} must be at least 1, got {getattr(self, name)}")
        if self.postpone < 0:
            raise ValueError(f"TreeConfig.postpone must be at least 0, got {self.postpone}")
        if not self.temperature >= 0:
            raise ValueError(f"TreeConfig.temperature must be at least 0, got {self.temperature}")
        if not (0 <= self.doubt < 1 and 0 <= self.sure <= 1):
            raise ValueError(
                f"TreeConfig.doubt must be in [0, 1) and sure in [0, 1], got {self.doubt} and {self.sure}"
            )


@dataclass(frozen=True, kw_only=True)
class TextPlan:
    """What a search found.

    Attributes:
        actions: What to do; empty where no way gains anything, by prediction.
        observations: The canonical text predicted after each action.
        score: Predicted score gained, the sum of predicted rewards.
        won: Whether the last predicted state is a victory.
        terminated: Whether the episode ends there, by prediction.
        probability: How likely the world model finds the whole way.
        model_steps: Predictions asked for, each for one state and action.
        expanded: States whose actions were asked for.
        states: Different states seen, the first included.
        errors: Predictions that could not be read; nothing is tried after them.
    """

    actions: tuple[str, ...]
    observations: tuple[str, ...]
    score: float
    won: bool
    terminated: bool
    probability: float
    model_steps: int
    expanded: int
    states: int
    errors: int
