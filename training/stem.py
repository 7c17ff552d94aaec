"""Trains the stem of the dynamics alone: where agent and object go next, by regression.

Special: under the summed likelihood of all tokens the stem's own error hardly counts (gradients are clipped
to one norm), and it learned slowly; alone, with large batches of single transitions, it needs minutes.
Maximum likelihood then starts from it. Inputs are poses *read from tokens*, as at run time; targets are the
simulator's states.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.data import tensor_of
from training.fit import FitConfig, fit
from training.mle import TokenData
from training.run import Run
from worldmodels.video.object_dynamics import ObjectDynamics
from worldmodels.video.slots import PROPRIO_SIZE

MOVED_PX = 10.0


@dataclass(frozen=True, kw_only=True)
class StemRecipe:
    """One training run of the stem.

    Attributes:
        fit: Optimisation.
        batch: Transitions per step.
        code_weight: Weight of the map from poses to codes.
    """

    fit: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=5000, learning_rate=2e-3, decay_from=0.3, evaluate_every=500, warmup_steps=50
        )
    )
    batch: int = 512
    code_weight: float = 0.1


def train_stem(
    run: Run,
    dynamics: ObjectDynamics,
    train: TokenData,
    validation: TokenData,
    recipe: StemRecipe,
    *,
    seed: int,
) -> None:
    """Train ``dynamics.stem`` in place; an interrupted run goes on from its newest checkpoint.

    Raises:
        ValueError: The dynamics has no stem.
    """
    if not dynamics.config.use_stem:
        raise ValueError("this dynamics has no stem (use_stem is False); train it by maximum likelihood only")
    layout = dynamics.layout
    near, fast = 1 / layout.reach_px, 1 / layout.speed_px
    scale = torch.tensor([near, near, fast, fast, near, near, 1.0, 1.0])
    transitions = train.actions.shape[1]

    def predict(data: TokenData, rows: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        tokens = data.tokens[rows, times]
        _, _, moved = dynamics.stem(
            layout.values(tokens), layout.proprio(tokens), data.actions[rows, times], data.poses[rows, times]
        )
        return moved, torch.cat([data.proprio[rows, times + 1], data.true_poses[rows, times + 1]], 1)

    def loss(step: int, generator: np.random.Generator) -> tuple[Tensor, dict[str, float | Tensor]]:
        rows = tensor_of(generator.integers(0, len(train), recipe.batch))
        times = tensor_of(generator.integers(0, transitions, recipe.batch))
        moved, truth = predict(train, rows, times)
        motion = F.smooth_l1_loss(moved * scale, truth * scale, beta=0.05)
        codes = layout.code_digits_of(train.tokens[rows, times, PROPRIO_SIZE:]).float()
        means = dynamics.stem.code_means(train.poses[rows, times])
        mapped = ((means - codes) / layout.code_middle).square().mean()
        return motion + recipe.code_weight * mapped, {"motion": motion.detach(), "code_map": mapped.detach()}

    def evaluate() -> dict[str, float]:
        rows, times = (tensor_of(a.ravel()) for a in np.mgrid[: len(validation), :transitions])
        moved, truth = predict(validation, rows, times)
        before = validation.true_poses[rows, times]
        moves = (truth[:, 4:6] - before[:, :2]).norm(dim=-1) > MOVED_PX
        error = (moved[:, 4:6] - truth[:, 4:6]).norm(dim=-1)
        copied = (before[:, :2] - truth[:, 4:6]).norm(dim=-1)
        cases = {"moved_px": error[moves], "still_px": error[~moves], "copy_moved_px": copied[moves]}
        results = {name: float(values.mean()) for name, values in cases.items() if len(values)}
        return results | {"agent_px": float((moved[:, :2] - truth[:, :2]).norm(dim=-1).mean())}

    stem: nn.Module = dynamics.stem
    fit(run, stem, loss, recipe.fit, seed=seed, evaluate=evaluate)
