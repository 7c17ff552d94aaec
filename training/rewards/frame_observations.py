"""The reward on predicted images for predictions and observations as world models and environments give them.

Special: predictions without an observation count as the worst frame.

Absent on purpose: the arithmetic (``rewards.frames``), which the trainer calls without this detour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.rewards.frames import FrameRewardConfig, PerceptualDistance, frame_scores
from worldmodels.api import Observation, Prediction, Score, Transition


class FrameReward:
    """:func:`frame_scores` as a ``worldmodels.api.VerifiableReward``.

    Observations are an image ``(H, W, 3)``, uint8 or float in 0..1, or a dict with ``"image"`` and, where
    ``config.proprio`` is positive, ``"proprio"`` ``(D,)``. Consecutive transitions whose ``targets`` are one
    object (the samples of a group) share the work on their target. A prediction without an observation counts
    as the worst frame; the part ``"undecoded"`` is the share of those among the H frames.

    Args:
        config: Weights.
        perceptual: Needed where ``config.lpips`` is positive.
        device: Where the images are compared.
    """

    def __init__(
        self,
        config: FrameRewardConfig,
        *,
        perceptual: PerceptualDistance | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if config.lpips > 0 and perceptual is None:
            raise ValueError("config.lpips > 0 needs perceptual=Perceptual('alex' or 'vgg'); or set lpips=0")
        self.config, self.perceptual, self.device = config, perceptual, device

    def __call__(
        self, predictions: Sequence[Sequence[Prediction]], transitions: Sequence[Transition]
    ) -> list[Score]:
        """One score per transition, parts unweighted. See ``worldmodels.api.VerifiableReward``.

        Raises:
            ValueError: A target is missing, counts or image sizes differ, or a score is not finite.
        """
        if len(predictions) != len(transitions):
            raise ValueError(
                f"{len(predictions)} predictions for {len(transitions)} transitions: give one each"
            )
        by_horizon: dict[int, list[int]] = {}
        for row, (answers, transition) in enumerate(zip(predictions, transitions, strict=True)):
            if transition.targets is None or not len(answers) == len(transition.targets) > 0:
                known = "no targets" if transition.targets is None else f"{len(transition.targets)} targets"
                raise ValueError(
                    f"sample {row} has {len(answers)} predictions and {known}: give H >= 1 of each"
                )
            by_horizon.setdefault(len(answers), []).append(row)
        scores: dict[int, Score] = {}
        for rows in by_horizon.values():
            answers_of = [predictions[row] for row in rows]
            targets_of = [transitions[row].targets or () for row in rows]
            scores.update(zip(rows, self._equal_horizons(answers_of, targets_of), strict=True))
        return [scores[row] for row in range(len(transitions))]

    def _equal_horizons(
        self, predictions: Sequence[Sequence[Prediction]], targets: Sequence[Sequence[Observation]]
    ) -> list[Score]:
        questions = targets[:: _uniform_run_length(targets)]
        target_images = np.stack([np.stack([_image(o) for o in row]) for row in questions])
        nothing = np.zeros_like(target_images[0, 0])
        answers = [[p.observation for p in row] for row in predictions]
        images = np.stack([np.stack([nothing if o is None else _image(o) for o in row]) for row in answers])
        predicted_proprio = target_proprio = None
        if self.config.proprio > 0:
            zeros = np.zeros(len(self.config.proprio_scale or ()), np.float32)
            target_proprio = self._tensor([[_proprio(o) for o in row] for row in questions])
            predicted_proprio = self._tensor(
                [[zeros if o is None else _proprio(o) for o in row] for row in answers]
            )
        decoded = torch.tensor([[o is not None for o in row] for row in answers], device=self.device)
        rewards, parts = frame_scores(
            self._tensor(images).movedim(-1, -3),
            self._tensor(target_images).movedim(-1, -3),
            config=self.config,
            perceptual=self.perceptual,
            predicted_proprio=predicted_proprio,
            target_proprio=target_proprio,
            decoded=decoded,
        )
        parts = {**parts, "undecoded": (~decoded).float().mean(dim=1)}
        return [
            Score(value=float(reward), parts={name: float(part[row]) for name, part in parts.items()})
            for row, reward in enumerate(rewards.mean(1))
        ]

    def _tensor(self, values: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(self.device)


def _uniform_run_length(targets: Sequence[Sequence[Observation]]) -> int:
    """G, if the rows come in runs of G that hold the same object; else 1."""
    starts = [row for row in range(len(targets)) if row == 0 or targets[row] is not targets[row - 1]]
    lengths = set(np.diff([*starts, len(targets)]).tolist())
    return lengths.pop() if len(lengths) == 1 else 1


def _image(observation: Observation) -> NDArray[np.float32]:
    image = np.asarray(observation["image"] if isinstance(observation, Mapping) else observation)
    if image.ndim != 3 or image.shape[-1] != 3:
        raise ValueError(f"an image observation is {image.shape} {image.dtype}; frame rewards take (H, W, 3)")
    return image.astype(np.float32) / np.float32(255) if image.dtype == np.uint8 else image.astype(np.float32)


def _proprio(observation: Observation) -> NDArray[np.float32]:
    if not isinstance(observation, Mapping) or "proprio" not in observation:
        raise ValueError(
            'config.proprio > 0 needs dict observations with a "proprio" entry; or set proprio=0'
        )
    return np.asarray(observation["proprio"], dtype=np.float32)
