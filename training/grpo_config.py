"""Settings of GRPO, whatever is post-trained.

Absent: rewards and lengths, which are the tasks' own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """Settings of the loop; defaults are the published video recipe.

    Attributes:
        group_size: G samples of each prompt.
        prompts_per_step: P prompts sampled at each step.
        minibatches: Optimiser updates per step, on equal shares of the prompts.
        microbatch_prompts: Prompts per forward and backward pass, to bound memory; None takes a whole
            minibatch. The gradient does not depend on it.
        learning_rate: Of AdamW.
        weight_decay: Of AdamW.
        clip: Half-width of the ratio's trust interval.
        kl_coefficient: Weight of the KL to the frozen initial model; 0 keeps no reference.
        entropy_coefficient: Weight of the entropy bonus; needs ``logprobs`` to return entropies.
        max_grad_norm: Gradients are scaled down to this norm.
        credit_discount: None gives every token the advantage of its whole answer, as published. A number in 0..1, for
            scorers that reward the consecutive parts of an answer (frames): a part's tokens get the advantage of
            the discounted sum of its own and later rewards among the group's same parts.
        temperature: Of sampling, and of the log-probabilities that are trained.
        steps: Steps of the run.
        eval_every: Steps between evaluations, which also happen after the last step; 0 never evaluates.
        checkpoint_every: Steps between checkpoints.
    """

    group_size: int = 16
    prompts_per_step: int = 128
    minibatches: int = 4
    microbatch_prompts: int | None = None
    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    clip: float = 0.2
    kl_coefficient: float = 1e-3
    entropy_coefficient: float = 0.0
    max_grad_norm: float = 1.0
    credit_discount: float | None = None
    temperature: float = 1.0
    steps: int = 200
    eval_every: int = 0
    checkpoint_every: int = 20

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ValueError(
                f"group_size is {self.group_size}; a group of one has nothing to compare: use >= 2"
            )
        if self.minibatches < 1 or self.prompts_per_step % self.minibatches:
            raise ValueError(
                f"prompts_per_step {self.prompts_per_step} must be a positive multiple of minibatches"
                f" {self.minibatches}"
            )
        for name in ("prompts_per_step", "steps", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.credit_discount is not None and not 0 <= self.credit_discount <= 1:
            raise ValueError(f"credit_discount is {self.credit_discount}; use None or a number in 0..1")
        if self.microbatch_prompts is not None and self.microbatch_prompts < 1:
            raise ValueError(f"microbatch_prompts is {self.microbatch_prompts}; use None or at least 1")
        for name in ("learning_rate", "clip", "max_grad_norm", "temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive and finite")
        for name in ("weight_decay", "kl_coefficient", "entropy_coefficient", "eval_every"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be >= 0 and finite")
