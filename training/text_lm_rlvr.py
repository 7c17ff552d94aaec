"""GRPO of causal language models on game states: G answers to a question, read, compared with the recorded next state.

Special: the reward is a named reward on states, the same function that tables report; an answer that does not end
earns 0 from every one of them. Whoever draws the answers, their log-probabilities are those of the trained model.

Absent: the loop (``training.grpo_loop``), the rewards (``training.rewards.states``) and who draws (``text_engines``).

Shapes: P questions, G answers of each, R = P * G rows, N tokens of the longest answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from training.best_weights import BestWeights
from training.grpo_config import GRPOConfig
from training.grpo_loop import Rollout
from training.grpo_task import train_task
from training.rewards.states import StateRewardName, score_answer, state_scores
from training.run import Run
from training.text_engines import TextEngine
from training.text_questions import TextQuestion, balanced
from training.trained_weights import TrainedWeights, reference_of
from worldmodels.language.causal_lm import CausalLM
from worldmodels.language.causal_lm_world import read_ended

SELECTED_BY = "selection"
"""The validation metric that decides which weights a run ends with: the mean of ``exact`` of known and new games."""


@dataclass(frozen=True, kw_only=True)
class TextRLVRRecipe:
    """One post-training run.

    Attributes:
        grpo: Settings of the loop.
        reward: What is maximised.
        unchanged_per_100: Questions where nothing changes for every 100 where something does; None: as recorded.
        validation_games: Games that nothing is trained on.
        validation_rows: Questions of an evaluation, half of them of those games.
        max_prompt: Longer questions are left out, in tokens.
        max_new_tokens: An answer that has not ended by then is cut.
        rows_per_pass: See ``TrainedWeights``.
    """

    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    reward: StateRewardName = "exact"
    unchanged_per_100: int | None = None
    validation_games: tuple[str, ...] = ()
    validation_rows: int = 256
    max_prompt: int = 7192
    max_new_tokens: int = 4096
    rows_per_pass: int | None = None


class TextTask:
    """Questions, answers and scores over one split; the models given to it are ``TrainedWeights``.

    Args:
        lm: Encodes and decodes; its weights may change.
        questions: The split; those that are too long are left out.
        recipe: Reward, balance and lengths.
        engine: Draws answers.

    Raises:
        ValueError: No question is left.
    """

    def __init__(
        self, lm: CausalLM, questions: Sequence[TextQuestion], recipe: TextRLVRRecipe, engine: TextEngine
    ) -> None:
        self.lm, self.recipe, self.engine = lm, recipe, engine
        asked = tqdm(questions, desc="encode", unit="question", disable=None, leave=False)
        self.questions = [one for one in asked if len(lm.encode(one.prompt)) <= recipe.max_prompt]
        self.left_out = len(questions) - len(self.questions)
        if not self.questions:
            raise ValueError(
                f"none of {len(questions)} questions is left: give some, of at most {recipe.max_prompt} tokens "
                "(max_prompt)"
            )

    def sample(
        self,
        model: TrainedWeights,
        prompts: Sequence[TextQuestion],
        *,
        group_size: int,
        seeds: Sequence[int],
        temperature: float,
    ) -> Rollout:
        """G answers of every question; the temperature must be positive."""
        tokens, mask = self._answers(model, prompts, seeds, group_size, temperature)
        parts = []
        for place, prompt in enumerate(self._encoded(prompts)):  # one by one, to bound memory
            rows = slice(place * group_size, (place + 1) * group_size)
            parts.append(model.logprobs([prompt], tokens[rows], mask[rows], temperature=temperature)[0])
        return Rollout(tokens=tokens, logprobs=torch.cat(parts), mask=mask)

    def score(self, prompts: Sequence[TextQuestion], rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Rewards of the next states that the answers lead to; parts: exact, property, unread, cut."""
        scores = self._scores(prompts, rollout.tokens, rollout.mask)
        tensors = {name: torch.tensor([one[name] for one in scores]) for name in scores[0]}
        return tensors.pop("reward"), tensors

    def logprobs(
        self, model: Any, prompts: Sequence[TextQuestion], rollout: Rollout, *, temperature: float
    ) -> Any:
        """Teacher-forced log-probabilities ``(R, N)``, with entropies where the loop wants them."""
        wanted = self.recipe.grpo.entropy_coefficient > 0
        found, entropies = model.logprobs(
            self._encoded(prompts),
            rollout.tokens,
            rollout.mask,
            temperature=temperature,
            with_entropies=wanted,
        )
        return (found, entropies) if wanted else found

    def validate(self, model: TrainedWeights) -> dict[str, float]:
        """Means over greedy answers: of all, of known games, of new ones; and what selects the weights."""
        tokens, mask = self._answers(model, self.questions, range(len(self.questions)), 1, 0.0)
        scores = self._scores(self.questions, tokens, mask)
        found = {name: float(np.mean([one[name] for one in scores])) for name in scores[0]}
        new = np.array([one.game in self.recipe.validation_games for one in self.questions])
        exact = np.array([one["exact"] for one in scores])
        changed = np.array([one.changed for one in self.questions])
        groups = {"known_games": ~new, "new_games": new}
        shares = {f"exact_{name}": float(exact[rows].mean()) for name, rows in groups.items() if rows.any()}
        found[SELECTED_BY] = float(np.mean(list(shares.values())))
        for name, rows in (("changed", changed), ("unchanged", ~changed)):
            if rows.any():
                shares[f"exact_{name}"] = float(exact[rows].mean())
        return {**found, **shares}

    def _answers(
        self,
        model: TrainedWeights,
        questions: Sequence[TextQuestion],
        seeds: Sequence[int],
        group_size: int,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        return self.engine(
            model.lm,
            self._encoded(questions),
            seeds=torch.tensor(list(seeds), dtype=torch.int64),
            num_samples=group_size,
            temperature=temperature,
            max_new_tokens=self.recipe.max_new_tokens,
        )

    def _encoded(self, questions: Sequence[TextQuestion]) -> list[list[int]]:
        return [self.lm.encode(one.prompt) for one in questions]

    def _scores(
        self, questions: Sequence[TextQuestion], tokens: Tensor, mask: Tensor
    ) -> list[dict[str, float]]:
        group = len(tokens) // len(questions)
        texts = self.lm.texts(tokens, mask)
        return [self._score(questions[row // group], *said) for row, said in enumerate(texts)]

    def _score(self, question: TextQuestion, text: str, ended: bool) -> dict[str, float]:
        read = read_ended(text, ended, question.before, max_new_tokens=self.recipe.max_new_tokens).state
        own = state_scores(read, before=question.before, target=question.after)
        found = {name: own[name] for name in ("exact", "property")}
        name = self.recipe.reward
        if name in found:
            reward = found[name]
        else:
            states = {"data_state": question.data_state, "ground_truth": question.ground_truth}
            reward = score_answer(text, **states, reward=name) if ended else 0.0
        return {"reward": reward, **found, "unread": float(read is None), "cut": float(not ended)}


def validation_questions(
    questions: Sequence[TextQuestion], games: Collection[str], count: int
) -> list[TextQuestion]:
    """At most ``count`` held-out questions, evenly spread: half of games that are trained on, half of ``games``."""
    parts = [[one for one in questions if (one.game in games) is new] for new in (False, True)]
    share = count // sum(bool(part) for part in parts) if any(parts) else 0
    chosen = []
    for part in parts:
        places = np.linspace(0, len(part) - 1, min(share, len(part))).astype(int).tolist() if part else []
        chosen += [part[place] for place in places]
    return chosen


def train_text_rlvr(
    run: Run,
    lm: CausalLM,
    train: Sequence[TextQuestion],
    validation: Sequence[TextQuestion],
    recipe: TextRLVRRecipe,
    *,
    engine: TextEngine,
    seed: int,
) -> dict[str, float]:
    """Post-train ``lm`` in place, all weights that want gradients; it ends with the best of all evaluations.

    Args:
        run: Its folder; an interrupted run goes on from its newest checkpoint.
        lm: With adapters or without. As it is now, it is the reference of the KL.
        train: Questions to learn from, balanced as the recipe says.
        validation: Held-out questions; see ``validation_questions``.
        recipe: Settings; ``grpo.eval_every`` must be positive.
        engine: Draws answers.
        seed: Of data order and sampling.

    Returns:
        Validation metrics of the selected weights.

    Raises:
        ValueError: Nothing would be evaluated, or a split has no questions.
    """
    if recipe.grpo.eval_every < 1:
        raise ValueError("grpo.eval_every is 0: weights are selected by validation, so give at least 1")
    model = TrainedWeights(lm, rows_per_pass=recipe.rows_per_pass)
    chosen = [train[place] for place in balanced([one.changed for one in train], recipe.unchanged_per_100)]
    tasks = [TextTask(lm, part, recipe, engine) for part in (chosen, validation)]
    best = BestWeights(run, tasks[1].validate, SELECTED_BY)
    train_task(
        run,
        model,
        tasks[0],
        tasks[1],
        recipe.grpo,
        seed=seed,
        evaluate=best,
        reference=reference_of(model),
    )
    return best.restore(model)
