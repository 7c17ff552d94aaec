"""Who answers in the PushT prediction table: trivial rows, the tokenizer's floor, world models.

Special: an answer is what an environment would return, 8-bit frames; a window's draws depend on its number in
the whole list and a seed, not on what else is computed.

Absent: metrics and tables (``training.evaluate``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from training.windows import Windows
from worldmodels.api import WorldModel
from worldmodels.sampling import derive
from worldmodels.video.object_world import FramePredictions, ObjectWorldModel


@dataclass(frozen=True)
class Answers:
    """What a row predicts for N windows.

    Attributes:
        image: ``(N, H, h, w, 3)`` uint8.
        proprio: ``(N, H, 4)``.
        states: ``(N, H, 7)`` as the row itself sees them.
        tokens: Generated tokens.
    """

    image: NDArray[np.uint8]
    proprio: NDArray[np.float32]
    states: NDArray[np.float64]
    tokens: int = 0


Predictor = Callable[[Windows, Sequence[int]], Answers]
"""Windows, and their numbers in the whole list (for seeds) -> answers."""


def copy_last(windows: Windows, _: Sequence[int]) -> Answers:
    """Nothing changes after the last history frame."""
    now, count = windows.history - 1, windows.horizon
    return Answers(
        np.repeat(windows.images(now, 1), count, axis=1),
        np.repeat(windows.proprio(now, 1), count, axis=1),
        np.repeat(windows.states(now, 1), count, axis=1),
    )


def recorded(windows: Windows, _: Sequence[int]) -> Answers:
    """The truth: what remains is the error of the pose reader."""
    where = (windows.history, windows.horizon)
    return Answers(windows.images(*where), windows.proprio(*where), windows.states(*where))


def tokenizer_floor(model: ObjectWorldModel) -> Predictor:
    """The true tokens, decoded: what a perfect model on this tokenizer would give."""

    def predict(windows: Windows, _: Sequence[int]) -> Answers:
        where = (windows.history, windows.horizon)
        images, proprio = windows.images(*where), windows.proprio(*where)
        shape = images.shape[:2]
        tokens = model.encode([{"image": images[i], "proprio": proprio[i]} for i in np.ndindex(shape)])
        decoded = FramePredictions(model.tokenizer, model.dynamics, tokens, torch.zeros(tokens.shape))
        seen = decoded.observations()
        return Answers(
            seen["image"].reshape(images.shape),
            seen["proprio"].reshape(proprio.shape),
            decoded.states().astype(np.float64).reshape(*shape, -1),
        )

    return predict


def rollout(model: ObjectWorldModel, *, seed: int, temperature: float) -> Predictor:
    """A world model from its histories; a window's draws depend on its number and ``seed`` only."""
    world = cast(WorldModel, model)

    def predict(windows: Windows, numbers: Sequence[int]) -> Answers:
        state = world.start(windows.histories(), seeds=window_seeds(seed, numbers))
        actions = windows.actions(windows.history - 1, windows.horizon)
        seen, states = [], []
        for step in range(windows.horizon):
            state, predictions = world.step(state, actions[:, step], temperature=temperature)
            seen.append(predictions.observations())
            states.append(predictions.states())
        return Answers(
            np.stack([o["image"] for o in seen], axis=1),
            np.stack([o["proprio"] for o in seen], axis=1),
            np.stack(cast(Any, states), axis=1).astype(np.float64),
            len(windows) * windows.horizon * model.dynamics.layout.slots,
        )

    return predict


def window_seeds(seed: int, numbers: Sequence[int]) -> list[int]:
    """Seeds of the windows with these numbers."""
    seeds: list[int] = derive(torch.tensor(seed), torch.tensor(list(numbers)) + 1).tolist()
    return seeds
