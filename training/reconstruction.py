"""Trains a tokenizer to give back what it was shown: L1 + perceptual + adversarial, as the released ones were.

Special: two optimisers in one resumable step; the discriminator joins at a fixed step. What the tokenizer is,
and what it is shown, is one callable; the batch of a step is a function of (seed, step).

Absent: adaptive weights of the losses, and any particular tokenizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from training.fit import FitConfig, learning_rate, optimiser, seeded
from training.run import Run, Snapshot, flatten_optimiser, restore_optimiser
from worldmodels.nets.bfloat16 import autocast
from worldmodels.nets.discriminator import PatchDiscriminator, discriminator_loss, generator_loss
from worldmodels.nets.perceptual import Perceptual


@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstruction:
    """A batch that went through the tokenizer.

    Attributes:
        decoded, target: Decoded and true frames, ``(B, 3, H, W)``.
        weights: Of the pixels in the L1 loss, ``(B, 1, H, W)``, or None for equal ones.
    """

    decoded: Tensor
    target: Tensor
    weights: Tensor | None = None


Reconstruct = Callable[[np.random.Generator], Reconstruction]
"""Draws a batch and passes it through the tokenizer."""


@dataclass(frozen=True, kw_only=True)
class ReconstructionConfig:
    """Losses and optimisation; the defaults are the published single-step tokenizer.

    Attributes:
        fit: Optimisation of both networks.
        l1_weight, perceptual_weight, adversarial_weight: Weights of the three losses.
        perceptual_frames: Frames of a batch that the perceptual loss looks at, the first ones; None: all.
        adversarial_from: First step at which the discriminator trains and counts.
        discriminator_layers, discriminator_width: Its size.
        autocast: Whether the tokenizer computes in bfloat16, where the device has it.
    """

    fit: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=500_000, learning_rate=5e-4, decay_from=1.0, warmup_steps=1000
        )
    )
    l1_weight: float = 1.0
    perceptual_weight: float = 1.0
    perceptual_frames: int | None = None
    adversarial_weight: float = 0.1
    adversarial_from: int = 10_000
    discriminator_layers: int = 6
    discriminator_width: int = 64
    autocast: bool = False


class _Networks:
    """The tokenizer and, where it is asked for, the discriminator, each with its optimiser."""

    def __init__(self, model: nn.Module, config: ReconstructionConfig, *, seed: int, image_side: int) -> None:
        self.config = config
        self.modules: dict[str, nn.Module] = {"model": model}
        self.judge: PatchDiscriminator | None = None
        if config.adversarial_weight > 0:
            layers, width = config.discriminator_layers, config.discriminator_width
            self.judge = seeded(
                lambda: PatchDiscriminator(layers=layers, width=width, image_size=image_side), seed
            )
            self.modules["judge"] = self.judge
        self.optimisers = {
            name: optimiser(module.parameters(), config.fit) for name, module in self.modules.items()
        }

    def restore(self, kept: Snapshot) -> None:
        """Go back to a checkpoint."""
        for name, module in self.modules.items():
            module.load_state_dict(kept.tensors[name])
            restore_optimiser(
                self.optimisers[name], kept.tensors[f"{name}_optimiser"], kept.state[f"{name}_optimiser"]
            )

    def snapshot(self) -> Snapshot:
        """What a checkpoint holds."""
        tensors: dict[str, Mapping[str, Tensor]] = {
            name: module.state_dict() for name, module in self.modules.items()
        }
        state: dict[str, Any] = {}
        for name, adam in self.optimisers.items():
            tensors[f"{name}_optimiser"], state[f"{name}_optimiser"] = flatten_optimiser(adam)
        return Snapshot(tensors=tensors, state=state)

    def update(self, name: str, loss: Tensor, step: int) -> float:
        """One step of one of them; the norm of its gradient."""
        rate = self.config.fit.learning_rate
        if not torch.isfinite(loss):
            raise FloatingPointError(
                f"the {name} loss is {loss.item()} at step {step}; lower learning_rate (now {rate})"
            )
        self.optimisers[name].zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.modules[name].parameters(), self.config.fit.max_grad_norm)
        for group in self.optimisers[name].param_groups:
            group["lr"] = learning_rate(step, self.config.fit)
        self.optimisers[name].step()
        return float(norm)

    def step(self, step: int, batch: Reconstruction, perceptual: Perceptual | None) -> dict[str, Any]:
        """Losses and updates of one batch; what to log."""
        config = self.config
        decoded, target, weights = batch.decoded.float(), batch.target, batch.weights
        errors = (decoded - target).abs()
        l1 = errors.mean()
        total = config.l1_weight * (l1 if weights is None else (errors * (weights / weights.mean())).mean())
        line: dict[str, Any] = {"l1": float(l1.detach())}
        if config.perceptual_weight > 0 and perceptual is not None:
            some = slice(0, config.perceptual_frames)
            with autocast(decoded.device, config.autocast):
                lpips = perceptual.distance(decoded[some], target[some]).mean()
            total = total + config.perceptual_weight * lpips
            line["lpips"] = float(lpips.detach())
        judge = self.judge if step >= config.adversarial_from else None
        if judge is not None:
            judge.requires_grad_(False)
            fooled = generator_loss(judge(decoded))
            judge.requires_grad_(True)
            total = total + config.adversarial_weight * fooled
            line["generator"] = float(fooled.detach())
        line["grad_norm"] = self.update("model", total, step)
        if judge is not None:
            loss = discriminator_loss(judge(target), judge(decoded.detach()))
            self.update("judge", loss, step)
            line["discriminator"] = float(loss.detach())
        return line


def train_reconstruction(
    run: Run,
    model: nn.Module,
    reconstruct: Reconstruct,
    config: ReconstructionConfig,
    *,
    seed: int,
    image_side: int,
    perceptual: Perceptual | None,
    evaluate: Callable[[], Mapping[str, float]] | None = None,
) -> None:
    """Train ``model`` in place; an interrupted run goes on from its newest checkpoint.

    Args:
        run: The run folder.
        model: The tokenizer, which ``reconstruct`` uses.
        reconstruct: Draws and passes a batch.
        config: Settings.
        seed: Of the discriminator's weights and of the batches.
        image_side: The smaller side of the frames, px.
        perceptual: Needed where ``config.perceptual_weight`` is positive.
        evaluate: Validation metrics, logged.

    Raises:
        ValueError: No perceptual metric although its weight is positive.
        FloatingPointError: A loss is not finite; names the step.
    """
    if config.perceptual_weight > 0 and perceptual is None:
        raise ValueError("perceptual_weight > 0 needs perceptual=Perceptual('vgg' or 'alex'); or set it to 0")
    networks = _Networks(model, config, seed=seed, image_side=image_side)
    first = 0
    if (loaded := run.load()) is not None:
        first, kept = loaded
        networks.restore(kept)
    every, steps = config.fit.evaluate_every, config.fit.steps
    device = next(model.parameters()).device

    def body(step: int) -> Mapping[str, Any]:
        began = time.perf_counter()
        model.train()
        with autocast(device, config.autocast):
            batch = reconstruct(np.random.default_rng([seed, step]))
        line = networks.step(step, batch, perceptual) | {"seconds": time.perf_counter() - began}
        if evaluate is not None and ((step + 1) % every == 0 or step + 1 == steps):
            model.eval()
            with torch.no_grad():
                line |= {f"validation/{key}": value for key, value in evaluate().items()}
        return line

    run.loop(steps, body, networks.snapshot, first=first, checkpoint_every=config.fit.checkpoint_every)
    model.eval()
