"""How likely a slot model finds the recorded answers to questions: which of them post-training can learn from.

Special: answers to a question that a model always or never gets right all earn the same, and such a group teaches
nothing; of a good model nearly all questions are so. One teacher-forced pass finds the others before any answer is
sampled.

Absent: the loop (``grpo_loop``), rewards, and any choice after post-training has begun.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from training.text_data import TextRows
from worldmodels.language.slot_model import SlotModel, padded

_AT_ONCE = 256


def chances(model: SlotModel, rows: TextRows) -> NDArray[np.float64]:
    """Probability ``(N,)`` in [0, 1] of each recorded answer at temperature 1, word for word."""
    lengths = [len(answer) for answer in rows.answers]
    order = np.argsort(lengths, kind="stable").tolist()  # answers of alike lengths are padded little
    found = np.zeros(len(rows))
    with torch.no_grad():
        for first in tqdm(range(0, len(order), _AT_ONCE), desc="chances", disable=None, leave=False):
            part = order[first : first + _AT_ONCE]
            losses = model.nll([rows.questions[n] for n in part], padded([rows.answers[n] for n in part]))
            found[part] = losses.double().sum(1).neg().exp().cpu().numpy()
    return found


def uncertain(model: SlotModel, rows: TextRows, between: tuple[float, float]) -> list[int]:
    """The numbers of the rows whose recorded answer is neither too unlikely nor too likely, in order.

    Args:
        model: Asked as it is now.
        rows: To choose from.
        between: Probabilities; the answer's lies between them.

    Raises:
        ValueError: The probabilities are none or no interval, or no row lies between them.
    """
    low, high = between
    if not 0 <= low < high <= 1:
        raise ValueError(f"chances between {low} and {high}; give two probabilities, the smaller one first")
    found = chances(model, rows)
    kept: list[int] = np.flatnonzero((found > low) & (found < high)).tolist()
    if not kept:
        raise ValueError(
            f"none of {len(rows)} answers has a chance between {low} and {high}; train the model longer, or"
            " give a wider interval"
        )
    return kept
