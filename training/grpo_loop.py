"""Group relative policy optimisation, the loop, for any sequence model and any verifiable reward.

Special: three callables say what video and text differ in (sample, score, log-probabilities); all else is
here once. A step is a pure function of (weights, optimiser state, seed, step number): data order and sampling
seeds are derived from the step, so a resumed run equals an uninterrupted one bit for bit.

Absent on purpose: a value network, learning rate schedules, and sampling of new prompts in place of
uninformative ones. The model stays in evaluation mode: dropout would make the sampled and the trained
distribution differ.

Shapes: P prompts, G samples of each, R = P * G rows (row r answers prompt r // G), N token positions.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from training.grpo import group_advantages, kl_k3, policy_loss, returns_to_go, token_mean
from training.grpo_config import GRPOConfig
from training.provenance import weights_sha256
from training.run import Run, Snapshot, flatten_optimiser, restore_optimiser

PromptT = TypeVar("PromptT")
PromptT_contra = TypeVar("PromptT_contra", contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """R sampled answers.

    Attributes:
        tokens: ``(R, N)`` int64.
        logprobs: ``(R, N)`` float32 under the sampling model at the sampling temperature, over the full
            vocabulary.
        mask: ``(R, N)`` bool, True on tokens that the model chose.
        extra: More tensors with R rows, cut together with the rest.
        opaque: Anything that ``score`` wants to see again; never cut.
    """

    tokens: Tensor
    logprobs: Tensor
    mask: Tensor
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    opaque: Any = None

    def select(self, rows: Tensor) -> Rollout:
        """The given rows, without ``opaque``."""
        return replace(
            self,
            tokens=self.tokens[rows],
            logprobs=self.logprobs[rows],
            mask=self.mask[rows],
            extra={name: tensor[rows] for name, tensor in self.extra.items()},
            opaque=None,
        )


class Sampler(Protocol[PromptT_contra]):
    """Samples G answers of every prompt; row r answers prompt r // G with ``seeds[r]``. Needs no gradient."""

    def __call__(
        self,
        model: Any,
        prompts: Sequence[PromptT_contra],
        *,
        group_size: int,
        seeds: Sequence[int],
        temperature: float,
    ) -> Rollout:
        """R = len(prompts) * group_size answers."""
        ...


class Scorer(Protocol[PromptT_contra]):
    """Rewards of a rollout, alone or with named parts ``(R,)`` for the log.

    ``(R,)``, or ``(R, F)`` with F rewards of an answer's consecutive parts of N / F tokens each, for example its
    frames; their mean is the answer's reward.
    """

    def __call__(
        self, prompts: Sequence[PromptT_contra], rollout: Rollout
    ) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Higher is better."""
        ...


class LogprobFunction(Protocol[PromptT_contra]):
    """Log-probabilities ``(R, N)`` of a rollout's tokens under a model, maybe with entropies ``(R, N)``."""

    def __call__(
        self, model: Any, prompts: Sequence[PromptT_contra], rollout: Rollout, *, temperature: float
    ) -> Tensor | tuple[Tensor, Tensor]:
        """With gradient if enabled; whatever stands at masked positions is ignored."""
        ...


class GRPOTrainer(Generic[PromptT]):
    """Trains a model in place.

    Args:
        model: Any module that the three callables understand.
        prompts: All training prompts; indexed lazily.
        rollout: Samples answers.
        score: Scores them.
        logprobs: Recomputes their log-probabilities.
        config: Settings.
        seed: Of data order and sampling.
        evaluate: Returns validation metrics of the model, logged as ``eval/<name>``.
        reference: The frozen model of the KL, for example the same weights with the adapters switched off; None: a
            copy of the model as it is when given here.
    """

    def __init__(
        self,
        model: nn.Module,
        prompts: Sequence[PromptT],
        *,
        rollout: Sampler[PromptT],
        score: Scorer[PromptT],
        logprobs: LogprobFunction[PromptT],
        config: GRPOConfig,
        seed: int,
        evaluate: Callable[[Any], Mapping[str, float]] | None = None,
        reference: nn.Module | None = None,
    ) -> None:
        if len(prompts) == 0:
            raise ValueError("no prompts to train on: give at least one")
        if config.eval_every and evaluate is None:
            raise ValueError(
                f"eval_every is {config.eval_every} but there is no evaluate function; give one or use 0"
            )
        self.model, self.prompts, self.config, self.seed = model.eval(), prompts, config, seed
        self._rollout, self._score, self._logprobs, self._evaluate = rollout, score, logprobs, evaluate
        self.reference: nn.Module | None = None
        if config.kl_coefficient > 0:
            self.reference = (
                copy.deepcopy(model).eval().requires_grad_(False) if reference is None else reference
            )
        self._reference_hash = weights_sha256(model)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.AdamW(
            self._parameters, lr=config.learning_rate, weight_decay=config.weight_decay
        )

    def train(self, run: Run) -> None:
        """Run all steps that are left, from the run's newest checkpoint if there is one."""
        first = 0
        if (loaded := run.load()) is not None:
            first, snapshot = loaded
            self.restore(snapshot)
        run.loop(
            self.config.steps,
            self.step,
            self.snapshot,
            first=first,
            checkpoint_every=self.config.checkpoint_every,
        )

    def step(self, step: int) -> dict[str, float]:
        """Sample, score and update once; returns the step's metrics.

        Raises:
            ValueError: A callable returned wrong shapes, or something not finite; names the sample.
        """
        started = time.perf_counter()
        config, size = self.config, self.config.group_size
        prompts = [self.prompts[i] for i in self.prompt_order(step)]
        with torch.no_grad():
            rollout = self._rollout(
                self.model, prompts, group_size=size, seeds=self.seeds(step), temperature=config.temperature
            )
            sampled = time.perf_counter()
            self._check_rollout(step, rollout)
            scored = self._score(prompts, rollout)
        rewards, parts = scored if isinstance(scored, tuple) else (scored, {})
        self._check_rewards(step, rewards, rollout)
        scored_at = time.perf_counter()
        metrics = self.update(prompts, rollout, self._advantages(rewards.float(), rollout))
        groups = _of_answers(rewards.float()).view(-1, size)
        metrics |= {
            "reward_mean": float(groups.mean()),
            "reward_std": float(groups.std()),
            "reward_group_std": float(groups.std(dim=1).mean()),
            "reward_group_best": float(groups.amax(dim=1).mean()),
            "tokens": float(rollout.mask.sum()),
            **{f"reward/{name}": float(part.float().mean()) for name, part in parts.items()},
        }
        last = step + 1 == config.steps
        ended = time.perf_counter()
        if config.eval_every and self._evaluate is not None and ((step + 1) % config.eval_every == 0 or last):
            with torch.no_grad():
                metrics |= {f"eval/{name}": value for name, value in self._evaluate(self.model).items()}
        metrics |= {
            "seconds": ended - started,
            "seconds_rollout": sampled - started,
            "seconds_score": scored_at - sampled,
        }
        return metrics

    def _advantages(self, rewards: Tensor, rollout: Rollout) -> Tensor:
        """``(R,)``, or with credit to parts of answers ``(R, N)``."""
        size, discount = self.config.group_size, self.config.credit_discount
        if discount is None:
            return group_advantages(_of_answers(rewards), group_size=size)
        if rewards.ndim == 1:
            raise ValueError(
                "credit_discount needs rewards of the parts of an answer, (R, F); or set it to None"
            )
        parts = [group_advantages(part, group_size=size) for part in returns_to_go(rewards, discount).T]
        return torch.stack(parts, 1).repeat_interleave(rollout.tokens.shape[1] // len(parts), 1)

    def update(self, prompts: Sequence[PromptT], rollout: Rollout, advantages: Tensor) -> dict[str, float]:
        """The optimiser updates on scored answers, one per minibatch; advantages are ``(R,)`` or ``(R, N)``.

        Groups of equal rewards carry no policy gradient and are left out of the computation, KL included;
        their tokens still count in the mean. A minibatch without any informative group changes nothing.
        """
        config, device = self.config, rollout.tokens.device
        informative = advantages.view(len(prompts), -1).ne(0).any(dim=1).cpu()
        sums = _Sums()
        for minibatch in torch.arange(len(prompts), device="cpu").chunk(config.minibatches):
            kept = minibatch[informative[minibatch]]
            if len(kept) == 0:
                continue
            total_tokens = rollout.mask[self._rows(minibatch, device)].sum().clamp(min=1)
            self.optimiser.zero_grad(set_to_none=True)
            for part in kept.split(config.microbatch_prompts or len(kept)):
                rows = self._rows(part, device)
                loss = self._loss(
                    [prompts[i] for i in part.tolist()],
                    rollout.select(rows),
                    advantages[rows],
                    total_tokens,
                    sums,
                )
                loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self._parameters, config.max_grad_norm)
            if not torch.isfinite(norm):
                raise ValueError(
                    f"the gradient norm is {float(norm)}: lower learning_rate, or look for a broken input"
                )
            self.optimiser.step()
            sums.add_update(float(norm))
        return {"informative_groups": float(informative.float().mean()), **sums.means()}

    def _loss(
        self,
        prompts: Sequence[PromptT],
        rollout: Rollout,
        advantages: Tensor,
        total_tokens: Tensor,
        sums: _Sums,
    ) -> Tensor:
        config, mask = self.config, rollout.mask.bool()
        result = self._logprobs(self.model, prompts, rollout, temperature=config.temperature)
        logprobs, entropies = result if isinstance(result, tuple) else (result, None)
        if logprobs.shape != mask.shape:
            raise ValueError(f"logprobs returned {tuple(logprobs.shape)} for tokens {tuple(mask.shape)}")
        # In float32 from here on: under autocast a ratio of bfloat16 log-probabilities is mostly rounding.
        logprobs, old = logprobs.float().where(mask, 0.0), rollout.logprobs.float().where(mask, 0.0)
        policy = policy_loss(logprobs, old, advantages, mask, clip=config.clip, total_tokens=total_tokens)
        loss = policy.loss
        observed = {"clip_fraction": policy.clip_fraction * total_tokens}
        observed["logprob_gap"] = (logprobs.detach() - old).abs().sum()
        if self.reference is not None:
            with torch.no_grad():
                answer = self._logprobs(self.reference, prompts, rollout, temperature=config.temperature)
                reference = (answer[0] if isinstance(answer, tuple) else answer).float().where(mask, 0.0)
            divergence = token_mean(kl_k3(logprobs, reference), mask, total_tokens)
            loss = loss + config.kl_coefficient * divergence
            observed["kl"] = divergence.detach() * total_tokens
        if entropies is not None:
            spread = token_mean(entropies.float(), mask, total_tokens)
            loss = loss - config.entropy_coefficient * spread
        elif config.entropy_coefficient > 0:
            raise ValueError("entropy_coefficient > 0 needs logprobs to return (logprobs, entropies)")
        else:  # minus the log-probability of a sampled token is an unbiased estimate of the entropy
            spread = token_mean(-logprobs, mask, total_tokens)
        observed["entropy"] = spread.detach() * total_tokens
        sums.add_tokens(int(mask.sum()), observed)
        return loss

    def _rows(self, prompts: Tensor, device: torch.device) -> Tensor:
        size = self.config.group_size
        return (prompts[:, None] * size + torch.arange(size, device="cpu")).flatten().to(device)

    def _check_rollout(self, step: int, rollout: Rollout) -> None:
        rows = self.config.prompts_per_step * self.config.group_size
        shapes = [tuple(tensor.shape) for tensor in (rollout.tokens, rollout.logprobs, rollout.mask)]
        if len(set(shapes)) != 1 or len(shapes[0]) != 2 or shapes[0][0] != rows:
            raise ValueError(
                f"rollout returned tokens, logprobs and mask of shapes {shapes}; all must be (R, N) with"
                f" R = {rows}"
            )
        finite = (rollout.logprobs.isfinite() | ~rollout.mask.bool()).all(dim=1)
        if not finite.all():
            row = int((~finite).nonzero()[0])
            raise ValueError(f"{self._name(step, row)} has a log-probability that is not finite")

    def _check_rewards(self, step: int, rewards: Tensor, rollout: Rollout) -> None:
        rows, length = rollout.tokens.shape
        parts = rewards.shape[1] if rewards.ndim == 2 else 1
        if rewards.ndim not in (1, 2) or len(rewards) != rows or parts < 1 or length % parts:
            raise ValueError(
                f"score returned {tuple(rewards.shape)}; give one reward per sample, ({rows},), or ({rows}, F) with"
                f" F equal parts of {length} tokens"
            )
        if not (finite := _of_answers(rewards).isfinite()).all():
            row = int((~finite).nonzero()[0])
            raise ValueError(
                f"{self._name(step, row)} has the reward {float(_of_answers(rewards)[row])}; it must be finite"
            )

    def _name(self, step: int, row: int) -> str:
        prompt, sample = divmod(row, self.config.group_size)
        return f"step {step}: sample {row} (prompt {self.prompt_order(step)[prompt]}, its sample {sample})"

    def prompt_order(self, step: int) -> list[int]:
        """Indices of the P prompts of a step: consecutive places in one shuffle of the data per epoch."""
        count, batch = len(self.prompts), self.config.prompts_per_step
        places = range(step * batch, (step + 1) * batch)
        epochs = {
            epoch: np.random.default_rng([self.seed, epoch, 0]).permutation(count)
            for epoch in {place // count for place in places}
        }
        return [int(epochs[place // count][place % count]) for place in places]

    def seeds(self, step: int) -> list[int]:
        """R sampling seeds of a step, in [0, 2^63)."""
        rows = self.config.prompts_per_step * self.config.group_size
        state = np.random.SeedSequence([self.seed, step, 1]).generate_state(rows, np.uint64)
        return [int(seed) for seed in state >> np.uint64(1)]

    def snapshot(self) -> Snapshot:
        """Everything that :meth:`restore` needs."""
        tensors, extra = flatten_optimiser(self.optimiser)
        return Snapshot(
            tensors={"model": self.model.state_dict(), "optimiser": tensors},
            state={"optimiser": extra, "reference_sha256": self._reference_hash},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot. The trainer must have been made with the same initial model.

        Raises:
            ValueError: The initial model, which is the KL reference, is another one.
        """
        if snapshot.state["reference_sha256"] != self._reference_hash:
            raise ValueError(
                "this run was started from other weights than the model given now, and those are the KL"
                " reference: give the original model"
            )
        self.model.load_state_dict(snapshot.tensors["model"])
        restore_optimiser(self.optimiser, snapshot.tensors["optimiser"], snapshot.state["optimiser"])


def _of_answers(rewards: Tensor) -> Tensor:
    """``(R,)`` of ``(R,)`` or ``(R, F)``."""
    return rewards.mean(1) if rewards.ndim == 2 else rewards


class _Sums:
    """Token and update means of one step, gathered over micro-batches."""

    def __init__(self) -> None:
        self._tokens, self._norms = 0, []  # type: int, list[float]
        self._values: dict[str, Tensor] = {}

    def add_tokens(self, tokens: int, sums: Mapping[str, Tensor]) -> None:
        self._tokens += tokens
        for name, value in sums.items():
            self._values[name] = self._values.get(name, torch.zeros_like(value)) + value

    def add_update(self, norm: float) -> None:
        self._norms.append(norm)

    def means(self) -> dict[str, float]:
        means = {name: float(value) / max(1, self._tokens) for name, value in self._values.items()}
        if self._norms:
            means["grad_norm"] = sum(self._norms) / len(self._norms)
        return {**means, "updates": float(len(self._norms)), "trained_tokens": float(self._tokens)}
