"""Maximum likelihood of slot models, and how often their answers are exactly right.

Special: the loss is on answers only, over words and pointers together; evaluation reads the answers and compares
states, so a rightly worded wrong state earns nothing.

Absent: data (``text_data``), tables (``textgame_evaluate``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from training.fit import FitConfig, fit
from training.run import Run
from training.text_data import LengthBatches, TextRows
from worldmodels.checkpoints import load
from worldmodels.language.answers import Answer
from worldmodels.language.compact_answers import read_compact
from worldmodels.language.slot_model import SlotModel, padded
from worldmodels.language.slot_world import SlotWorldModel

_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class SlotRecipe:
    """One training run.

    Attributes:
        fit: Optimisation.
        batch: Rows per step.
        hidden_size, intermediate_size, num_heads, encoder_layers, decoder_layers: Sizes of a fresh network.
        max_answer: Longer answers are not trained on.
        validation_rows: Rows of an evaluation.
    """

    fit: FitConfig = field(
        default_factory=lambda: FitConfig(
            steps=4000, learning_rate=1.5e-3, decay_from=0.3, evaluate_every=1000, checkpoint_every=250
        )
    )
    batch: int = 64
    hidden_size: int = 128
    intermediate_size: int = 320
    num_heads: int = 4
    encoder_layers: int = 4
    decoder_layers: int = 2
    max_answer: int = 192
    validation_rows: int = 512


def slot_world(name: str) -> SlotWorldModel:
    """A bundled model or a checkpoint's folder as the kind of world model that recipes of text games train.

    Raises:
        ValueError: It is another kind.
    """
    world = load(name)
    if not isinstance(world, SlotWorldModel):
        raise ValueError(f"{name!r} is a {type(world).__name__}; give the checkpoint of a SlotWorldModel")
    return world


def train_slots(
    run: Run, model: SlotModel, train: TextRows, validation: TextRows, recipe: SlotRecipe, *, seed: int
) -> None:
    """Train ``model`` in place; an interrupted run goes on from its newest checkpoint."""
    batches = LengthBatches([len(answer) for answer in train.answers], batch=recipe.batch, seed=seed)

    def loss(step: int, generator: np.random.Generator) -> tuple[Tensor, dict[str, float | Tensor]]:
        rows = batches.rows(step)
        losses = model.nll(
            [train.questions[row] for row in rows], padded([train.answers[row] for row in rows])
        )
        count = sum(len(train.answers[row]) for row in rows)
        return losses.sum() / count, {"rows": float(len(rows))}

    def evaluate() -> dict[str, float]:
        return exact_shares(model, validation, count=recipe.validation_rows)

    fit(run, model, loss, recipe.fit, seed=seed, evaluate=evaluate)


def answers_to(
    model: SlotModel, rows: TextRows, numbers: Sequence[int], *, temperature: float, seed: int = 0
) -> list[Answer]:
    """What the model says to some rows; row number n draws with seed (seed, n)."""
    found: list[Answer] = []
    for first in range(0, len(numbers), _AT_ONCE):
        part = numbers[first : first + _AT_ONCE]
        seeds = torch.tensor([seed * 1_000_003 + number for number in part], dtype=torch.int64)
        said = model.answer([rows.questions[n] for n in part], seeds=seeds, temperature=temperature)
        found += [
            read_compact(tokens, rows.rows[n].before, model.vocabulary)
            for tokens, n in zip(said.tokens.tolist(), part, strict=True)
        ]
    return found


def exact_shares(model: SlotModel, rows: TextRows, *, count: int) -> dict[str, float]:
    """Shares of exactly right next states among evenly spread rows, greedy and at temperature 1.

    Raises:
        ValueError: There are no rows.
    """
    if not len(rows):
        raise ValueError("there are no validation rows; give more transitions, or shorter ones")
    numbers = np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int).tolist()
    changed = np.array([rows.rows[n].after != rows.rows[n].before for n in numbers])
    found: dict[str, float] = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        said = answers_to(model, rows, numbers, temperature=temperature)
        right = np.array([a.state == rows.rows[n].after for a, n in zip(said, numbers, strict=True)])
        found[f"{name}_exact"] = float(right.mean())
        for part, chosen in (("changed", changed), ("unchanged", ~changed)):
            if chosen.any():
                found[f"{name}_exact_{part}"] = float(right[chosen].mean())
        found[f"{name}_unread"] = float(np.mean([a.state is None for a in said]))
    return found
