"""What is measured of predicted drawer frames: pictures by the reward's own metrics, and what readers see in them.

Special: gripper and drawers are read from the predicted frame by a reader that was trained on true frames and
is part of no reward; *following* is the error of the action that an inverse-dynamics reader finds between two
predicted frames. All is kept per case and frame, so that tables can average as they like.

Absent: tables and models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlvr_envs.drawer_rules import HAND, OPENINGS
from training.data import to_float
from training.frame_rollouts import FrameAnswers, FrameCases
from training.rewards.frames import FrameRewardConfig, frame_scores
from training.rows import Floats
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.rt1_actions import RT1_PARTS
from worldmodels.video.state_reader import StateReader

# Every part is wanted, none weighed.
_PICTURE = FrameRewardConfig(mae=1.0, mse=1.0, psnr=1.0, ssim=1.0, lpips=1.0)
_AT_ONCE = 256
MOVED_M = 0.02  # from when on a drawer or the gripper counts as moved since the present frame


def drawer_moved(cases: FrameCases) -> NDArray[np.bool_]:
    """``(N, H)``: whether a drawer has moved since the present frame."""
    openings = cases.states[:, :, OPENINGS]
    return np.asarray((np.abs(openings[:, 1:] - openings[:, :1]) > MOVED_M).any(axis=-1))


def gripper_moved(cases: FrameCases) -> NDArray[np.bool_]:
    """``(N, H)``: whether the gripper has moved since the present frame."""
    hand = cases.states[:, :, HAND]
    return np.asarray(np.linalg.norm(hand[:, 1:] - hand[:, :1], axis=-1) > MOVED_M)


@dataclass(frozen=True)
class DrawerInstruments:
    """What measures answers.

    Attributes:
        reader: State of a frame.
        inverse: Action between two frames.
        perceptual: LPIPS.
    """

    reader: StateReader
    inverse: StateReader
    perceptual: Perceptual

    def measure(self, answers: FrameAnswers, cases: FrameCases) -> dict[str, Floats]:
        """Each metric ``(N, H)``.

        ``gripper_cm`` and ``drawer_mm``: distance of what is read from the truth (drawers: mean of three).
        ``following_cm``: distance of the recovered from the commanded displacement. ``repetition``: whether a
        frame equals the predicted one before it. ``read_x`` ... ``read_bottom``: the readings themselves.
        """
        shape = answers.frames.shape[:2]
        predicted, target = (to_float(x).flatten(0, 1) for x in (answers.frames, cases.future))
        parts = [
            frame_scores(p[:, None], t[:, None], config=_PICTURE, perceptual=self.perceptual)[1]
            for p, t in zip(predicted.split(_AT_ONCE), target.split(_AT_ONCE), strict=True)
        ]
        values = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        metrics = {name: value.double().numpy().reshape(shape) for name, value in values.items()}
        read = self.read(predicted).reshape(*shape, -1)
        truth = cases.states[:, 1:]
        metrics["gripper_cm"] = 100 * np.linalg.norm(read[..., HAND] - truth[..., HAND], axis=-1)
        metrics["drawer_mm"] = 1000 * np.abs(read[..., OPENINGS] - truth[..., OPENINGS]).mean(axis=-1)
        metrics["following_cm"] = self.following(answers.frames, cases)
        same = (answers.frames[:, 1:] == answers.frames[:, :-1]).all(axis=(2, 3, 4))
        metrics["repetition"] = np.pad(same.astype(np.float64), ((0, 0), (1, 0)))
        for column, name in enumerate(self.reader.config.names):
            metrics[f"read_{name}"] = read[..., column]
        return metrics

    @torch.no_grad()
    def read(self, frames: Tensor) -> Floats:
        """States ``(B, 10)`` that frames ``(B, 3, h, w)`` show."""
        found: Floats = torch.cat([self.reader(part) for part in frames.split(_AT_ONCE)]).double().numpy()
        return found

    @torch.no_grad()
    def following(self, frames: NDArray[np.uint8], cases: FrameCases) -> Floats:
        """``(N, H)`` cm between the displacement found between two frames and the one that was commanded."""
        chain = np.concatenate([cases.present[:, None], frames], axis=1)
        pairs = np.stack([chain[:, :-1], chain[:, 1:]], axis=2)
        flat = pairs.reshape(-1, *pairs.shape[2:])
        found = [self.inverse(to_float(flat[i : i + _AT_ONCE])) for i in range(0, len(flat), _AT_ONCE)]
        columns = [i for i, name in enumerate(self.inverse.config.names) if name.startswith("shift")]
        shift = torch.cat(found)[:, columns].double().numpy().reshape(*frames.shape[:2], 3)
        wanted = cases.actions[:, :, RT1_PARTS["world_vector"]]
        distance: Floats = 100 * np.linalg.norm(shift - wanted, axis=-1)
        return distance
