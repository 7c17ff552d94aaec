"""Trains the per-frame FSQ tokenizer: L1 + perceptual + adversarial, as the released RT-1 tokenizers were.

Special: two optimisers in one resumable step; the discriminator joins at a fixed step (Appendix of the paper:
weights 1, 1, 0.1, from step 10,000 on, AdamW 5e-4, batch 16). The batch of a step is a function of (seed,
step).

Absent: the compressive tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.fit import FitConfig, learning_rate, optimiser, seeded
from training.run import Run, Snapshot, flatten_optimiser, restore_optimiser
from worldmodels.nets.discriminator import PatchDiscriminator, discriminator_loss, generator_loss
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.frame_tokenizer import FrameTokenizer, FrameTokenizerConfig

Batch = Callable[[np.random.Generator, int], Tensor]
"""(generator, count) -> frames ``(count, 3, H, W)`` in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class FrameTokenizerRecipe:
    """One training run; the defaults are the published single-step tokenizer.

    Attributes:
        tokenizer: Sizes.
        fit: Optimisation of both networks.
        batch: Frames per step.
        l1_weight, perceptual_weight, adversarial_weight: Weights of the three losses.
        adversarial_from: First step at which the discriminator trains and counts.
        discriminator_layers, discriminator_width: Its size.
        image_size: Side of the frames (the smaller one).
    """

    tokenizer: FrameTokenizerConfig = field(default_factory=FrameTokenizerConfig)
    fit: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=500_000, learning_rate=5e-4, decay_from=1.0, warmup_steps=1000
        )
    )
    batch: int = 16
    l1_weight: float = 1.0
    perceptual_weight: float = 1.0
    adversarial_weight: float = 0.1
    adversarial_from: int = 10_000
    discriminator_layers: int = 6
    discriminator_width: int = 64
    image_size: int = 256


def train_frame_tokenizer(
    run: Run,
    frames: Batch,
    recipe: FrameTokenizerRecipe,
    *,
    seed: int,
    perceptual: Perceptual | None,
    evaluate: Callable[[FrameTokenizer], Mapping[str, float]] | None = None,
) -> FrameTokenizer:
    """Train a tokenizer; an interrupted run goes on from its newest checkpoint.

    Args:
        run: The run folder.
        frames: Draws training frames.
        recipe: Settings.
        seed: Of weights and batches.
        perceptual: Needed where ``recipe.perceptual_weight`` is positive.
        evaluate: Validation metrics of the model, logged.

    Raises:
        ValueError: No perceptual metric although its weight is positive.
        FloatingPointError: A loss is not finite; names the step.
    """
    if recipe.perceptual_weight > 0 and perceptual is None:
        raise ValueError("perceptual_weight > 0 needs perceptual=Perceptual('vgg' or 'alex'); or set it to 0")
    model = FrameTokenizer(recipe.tokenizer, seed=seed)
    judge: PatchDiscriminator = seeded(
        lambda: PatchDiscriminator(
            layers=recipe.discriminator_layers, width=recipe.discriminator_width, image_size=recipe.image_size
        ),
        seed,
    )
    modules = {"model": model, "judge": judge}
    optimisers = {name: optimiser(module.parameters(), recipe.fit) for name, module in modules.items()}
    first = 0
    if (loaded := run.load()) is not None:
        first, snapshot = loaded
        for name, module in modules.items():
            module.load_state_dict(snapshot.tensors[name])
            restore_optimiser(
                optimisers[name], snapshot.tensors[f"{name}_optimiser"], snapshot.state[f"{name}_optimiser"]
            )

    def update(name: str, loss: Tensor, step: int) -> Tensor:
        if not torch.isfinite(loss):
            raise FloatingPointError(
                f"the {name} loss is {loss.item()} at step {step}; lower learning_rate (now "
                f"{recipe.fit.learning_rate})"
            )
        optimisers[name].zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(modules[name].parameters(), recipe.fit.max_grad_norm)
        for group in optimisers[name].param_groups:
            group["lr"] = learning_rate(step, recipe.fit)
        optimisers[name].step()
        return norm

    def body(step: int) -> Mapping[str, Any]:
        target = frames(np.random.default_rng([seed, step]), recipe.batch)
        model.train()
        decoded, _ = model(target)
        l1 = (decoded - target).abs().mean()
        total = recipe.l1_weight * l1
        line: dict[str, Any] = {"l1": float(l1)}
        if recipe.perceptual_weight > 0 and perceptual is not None:
            lpips = perceptual.distance(decoded, target).mean()
            total = total + recipe.perceptual_weight * lpips
            line["lpips"] = float(lpips)
        adversarial = recipe.adversarial_weight > 0 and step >= recipe.adversarial_from
        if adversarial:
            judge.requires_grad_(False)
            fooled = generator_loss(judge(decoded))
            judge.requires_grad_(True)
            total = total + recipe.adversarial_weight * fooled
            line["generator"] = float(fooled)
        line["grad_norm"] = float(update("model", total, step))
        if adversarial:
            loss = discriminator_loss(judge(target), judge(decoded.detach()))
            update("judge", loss, step)
            line["discriminator"] = float(loss)
        if evaluate is not None and (
            (step + 1) % recipe.fit.evaluate_every == 0 or step + 1 == recipe.fit.steps
        ):
            model.eval()
            with torch.no_grad():
                line |= {f"validation/{key}": value for key, value in evaluate(model).items()}
        return line

    def snapshot_now() -> Snapshot:
        tensors: dict[str, Mapping[str, Tensor]] = {name: m.state_dict() for name, m in modules.items()}
        state: dict[str, Any] = {}
        for name, adam in optimisers.items():
            tensors[f"{name}_optimiser"], state[f"{name}_optimiser"] = flatten_optimiser(adam)
        return Snapshot(tensors=tensors, state=state)

    run.loop(recipe.fit.steps, body, snapshot_now, first=first, checkpoint_every=recipe.fit.checkpoint_every)
    return model.eval()
