"""Supervised training of one module: AdamW, warm-up, hold, decay, checkpoints, exact resume.

Special: the batch of a step is a function of (seed, step) alone, so a resumed run sees the data that an
uninterrupted one would have seen, and no generator has to be saved. Tokenizers, pose readers and maximum
likelihood all use this loop.

Absent: early stopping and test data. ``evaluate`` reads validation data and is logged, nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from training.run import Run, Snapshot, flatten_optimiser, restore_optimiser

Loss = Callable[[int, np.random.Generator], tuple[Tensor, Mapping[str, float | Tensor]]]
"""(step, generator) -> (loss, numbers to log). Draw the batch from the generator."""


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How to train.

    Attributes:
        steps: Optimiser steps.
        learning_rate: Highest learning rate of AdamW.
        weight_decay: Decoupled, on matrices only.
        warmup_steps: Linear warm-up.
        decay_from: Share of the steps after which the rate falls linearly to ``final_rate`` times the highest.
        final_rate: See above.
        max_grad_norm: Gradients are scaled down to this norm.
        log_every: Steps over which logged numbers are averaged.
        evaluate_every: Steps between evaluations.
        checkpoint_every: Steps between checkpoints: what an interruption loses at most.
    """

    steps: int
    learning_rate: float
    weight_decay: float = 1e-4
    warmup_steps: int = 100
    decay_from: float = 0.5
    final_rate: float = 0.02
    max_grad_norm: float = 1.0
    log_every: int = 50
    evaluate_every: int = 1000
    checkpoint_every: int = 500


def seeded(build: Callable[[], nn.Module], seed: int) -> Any:
    """Build a module whose initial weights are a function of ``seed``, the same on every device.

    It ends up on the default device; torch's global generator is left as it was.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Inside the fork only: torch's layers draw their weights from the global generator.
        torch.manual_seed(seed)
        module = build()
    return module.to(torch.get_default_device())


def learning_rate(step: int, config: FitConfig) -> float:
    """The learning rate of a step (counted from 0)."""
    rate = config.learning_rate * min(1.0, (step + 1) / max(config.warmup_steps, 1))
    done = step / config.steps
    if done > config.decay_from:
        left = (1 - done) / (1 - config.decay_from)
        rate *= config.final_rate + (1 - config.final_rate) * left
    return rate


def optimiser(parameters: Iterable[nn.Parameter], config: FitConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.99))


def fit(
    run: Run,
    model: nn.Module,
    loss: Loss,
    config: FitConfig,
    *,
    seed: int,
    evaluate: Callable[[], Mapping[str, float]] | None = None,
) -> None:
    """Train ``model`` in place; continue from the run's newest checkpoint if it has one.

    Raises:
        FloatingPointError: The loss is not finite; names the step.
    """
    adam = optimiser(model.parameters(), config)
    first = 0
    if (loaded := run.load()) is not None:
        first, kept = loaded
        model.load_state_dict(kept.tensors["model"])
        restore_optimiser(adam, kept.tensors["optimiser"], kept.state["optimiser"])
    pending: list[Mapping[str, float | Tensor]] = []
    started = time.perf_counter()

    def body(step: int) -> Mapping[str, Any]:
        nonlocal pending, started
        rate = learning_rate(step, config)
        for group in adam.param_groups:
            group["lr"] = rate
        model.train()
        value, numbers = loss(step, np.random.default_rng([seed, step]))
        if not torch.isfinite(value):
            raise FloatingPointError(
                f"the loss is {value.item()} at step {step}; lower learning_rate (now {config.learning_rate})"
            )
        adam.zero_grad(set_to_none=True)
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        adam.step()
        pending.append({"loss": value.detach(), "grad_norm": norm.detach(), **numbers})
        line: dict[str, Any] = {}
        if (step + 1) % config.log_every == 0 or step + 1 == config.steps:
            line = {
                key: float(np.mean([float(row[key]) for row in pending if key in row])) for key in pending[-1]
            }
            line |= {"learning_rate": rate, "seconds": time.perf_counter() - started}
            pending, started = [], time.perf_counter()
        if evaluate is not None and ((step + 1) % config.evaluate_every == 0 or step + 1 == config.steps):
            model.eval()
            with torch.no_grad():
                line |= {f"validation/{key}": value for key, value in evaluate().items()}
        return line

    def snapshot() -> Snapshot:
        tensors, state = flatten_optimiser(adam)
        return Snapshot(
            tensors={"model": model.state_dict(), "optimiser": tensors}, state={"optimiser": state}
        )

    run.loop(config.steps, body, snapshot, first=first, checkpoint_every=config.checkpoint_every)
    model.eval()
