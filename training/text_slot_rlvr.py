"""GRPO of slot models on game states: G answers to a question, read, compared with the recorded next state.

Special: the reward is a named reward on states, the same function that tables report; questions may be drawn with
another share of changed ones than the data have, which is the balance that the paper leaves open.

Absent: the loop (``training.grpo_loop``) and the rewards (``training.rewards.states``).

Shapes: P questions, G answers of each, R = P * G rows, N tokens of the longest answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from training.grpo_config import GRPOConfig
from training.grpo_loop import Rollout
from training.rewards.states import StateRewardName, state_scores
from training.text_data import TextRows
from training.text_questions import balanced as balanced_places
from training.text_slots import exact_shares
from worldmodels.language.compact_answers import read_compact
from worldmodels.language.slot_model import SlotModel

SELECTED_BY = "sampled_exact"
"""The validation metric that decides which weights a run ends with: right next states at temperature 1."""


@dataclass(frozen=True, kw_only=True)
class SlotRLVRRecipe:
    """One post-training run.

    Attributes:
        grpo: Settings of the loop.
        reward: ``exact`` (binary) or ``property`` (F1 of changes).
        chance: Of the questions only those whose recorded answer the base model gives with a probability between
            these, see ``text_chance``; None: all. The recipe chooses, not the task.
        unchanged_per_100: Questions where nothing changes for every 100 where something does; None: as recorded.
        validation_rows: Rows of an evaluation.
    """

    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    reward: StateRewardName = "exact"
    chance: tuple[float, float] | None = None
    unchanged_per_100: int | None = None
    validation_rows: int = 512


class SlotTask:
    """Questions, answers and scores over one split; a question is a row number.

    Args:
        model: Reads and writes; its weights may change.
        rows: The split.
        recipe: Reward and balance.
    """

    def __init__(self, model: SlotModel, rows: TextRows, recipe: SlotRLVRRecipe) -> None:
        if recipe.reward not in ("exact", "property"):
            raise ValueError(
                f"reward is {recipe.reward!r}; slot models are post-trained on 'exact' or 'property'"
            )
        self.rows, self.recipe, self.vocabulary = rows, recipe, model.vocabulary
        self.questions = balanced(rows, recipe.unchanged_per_100)

    def sample(
        self,
        model: Any,
        prompts: Sequence[int],
        *,
        group_size: int,
        seeds: Sequence[int],
        temperature: float,
    ) -> Rollout:
        """G answers of every question."""
        said = model.answer(
            [self.rows.questions[row] for row in prompts],
            seeds=torch.tensor(list(seeds), dtype=torch.int64),
            num_samples=group_size,
            temperature=temperature,
        )
        return Rollout(tokens=said.tokens, logprobs=said.logprobs, mask=said.mask)

    def score(self, prompts: Sequence[int], rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Rewards of the next states that the answers lead to."""
        group = len(rollout.tokens) // len(prompts)
        parts: dict[str, list[float]] = {"exact": [], "property": [], "unread": []}
        for number, tokens in enumerate(rollout.tokens.tolist()):
            row = self.rows.rows[prompts[number // group]]
            state = read_compact(tokens, row.before, self.vocabulary).state
            scores = state_scores(state, before=row.before, target=row.after)
            parts["exact"].append(scores["exact"])
            parts["property"].append(scores["property"])
            parts["unread"].append(float(state is None))
        tensors = {name: torch.tensor(values) for name, values in parts.items()}
        return tensors[self.recipe.reward], tensors

    def logprobs(self, model: Any, prompts: Sequence[int], rollout: Rollout, *, temperature: float) -> Tensor:
        """Teacher-forced log-probabilities ``(R, N)``."""
        if temperature != 1.0:
            raise ValueError(f"temperature is {temperature}; this task trains at temperature 1")
        losses: Tensor = model.nll(
            [self.rows.questions[row] for row in prompts],
            rollout.tokens,
            num_samples=len(rollout.tokens) // len(prompts),
        )
        return -losses

    def validate(self, model: SlotModel) -> dict[str, float]:
        """Exactly right next states, greedy and sampled, changed and unchanged."""
        return exact_shares(model, self.rows, count=self.recipe.validation_rows)


def balanced(rows: TextRows, unchanged_per_100: int | None) -> list[int]:
    """Row numbers with so many unchanged rows for every 100 changed ones, spread evenly over the data."""
    return balanced_places([row.after != row.before for row in rows.rows], unchanged_per_100)
