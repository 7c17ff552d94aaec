"""What a task must offer to be trained by GRPO, and the two things that every video task does with it.

Special: ``train_task`` and ``validation_answers`` are the only places that know both the loop and a task; PushT,
multi-step and single-step models differ in their questions, nothing else.

Absent: the loop (``training.grpo_loop``) and any particular question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from training.grpo_config import GRPOConfig
from training.grpo_loop import GRPOTrainer, Rollout
from training.run import Run

PromptT = TypeVar("PromptT")


class GRPOTask(Protocol[PromptT]):
    """Questions, answers and scores over one split; see ``training.grpo_loop`` for the three callables."""

    questions: list[PromptT]

    def sample(
        self,
        model: Any,
        prompts: Sequence[PromptT],
        *,
        group_size: int,
        seeds: Sequence[int],
        temperature: float,
    ) -> Rollout:
        """G answers of every question."""
        ...

    def score(self, prompts: Sequence[PromptT], rollout: Rollout) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Rewards ``(R,)``, or of an answer's parts ``(R, F)``; and what they are made of, by name ``(R,)``."""
        ...

    def logprobs(
        self, model: Any, prompts: Sequence[PromptT], rollout: Rollout, *, temperature: float
    ) -> Tensor:
        """Teacher-forced log-probabilities of the answers' tokens."""
        ...

    def validate(self, model: Any) -> Mapping[str, float]:
        """Metrics of a model on this split."""
        ...


def train_task(
    run: Run,
    model: nn.Module,
    train: GRPOTask[PromptT],
    validation: GRPOTask[PromptT],
    config: GRPOConfig,
    *,
    seed: int,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    reference: nn.Module | None = None,
) -> None:
    """Post-train ``model`` in place; an interrupted run goes on from its newest checkpoint.

    Args:
        run: Its folder.
        model: Trained in place.
        train: Questions to learn from.
        validation: Questions of the evaluation.
        config: Settings of the loop.
        seed: Of data order and sampling.
        evaluate: Takes the place of ``validation.validate``, for example ``training.best_weights.BestWeights``.
        reference: See ``training.grpo_loop.GRPOTrainer``.
    """
    trainer = GRPOTrainer(
        model,
        train.questions,
        rollout=train.sample,
        score=train.score,
        logprobs=train.logprobs,
        config=config,
        seed=seed,
        evaluate=evaluate or validation.validate,
        reference=reference,
    )
    trainer.train(run)


def validation_answers(
    task: GRPOTask[PromptT], model: Any, *, count: int
) -> Iterator[tuple[str, list[PromptT], Rollout, dict[str, float]]]:
    """Answers at temperature 1 and greedy to evenly spread questions, with fixed seeds.

    Yields:
        ``"sampled"`` or ``"greedy"``, the questions, one answer of each, and the means of reward and parts, named
        ``<mode>_reward`` and ``<mode>_<part>``.
    """
    step = max(1, len(task.questions) // count)
    asked = task.questions[::step][:count]
    for name, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        rollout = task.sample(model, asked, group_size=1, seeds=range(len(asked)), temperature=temperature)
        rewards, parts = task.score(asked, rollout)
        means = {
            f"{name}_reward": float(rewards.mean()),
            **{f"{name}_{key}": float(part.mean()) for key, part in parts.items()},
        }
        yield name, asked, rollout, means
