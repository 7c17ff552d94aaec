"""Rewards on predicted images: how close H predicted frames are to the recorded ones.

Special: the metrics are the ones of the published evaluation, and *the metric in a table is the reward
function*. Targets are given once per question and shared by its G samples, so their perceptual features are computed
once.

Absent on purpose: the perceptual network itself (``worldmodels.nets.perceptual``), any reward of the task, and
observations of an environment (``rewards.frame_observations``).

Shapes: R rows = P questions x G samples, H frames, images ``(3, h, w)`` float in 0..1. Row r answers question
r // G.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from training.rewards.image_metrics import mae, mse, psnr, ssim

# Mean over H frames, the last frame only, or weights discount^t normalised to sum 1.
Reduction = Literal["mean", "last", "discount"]


class PerceptualDistance(Protocol):
    """What :func:`frame_scores` needs of ``worldmodels.nets.perceptual.Perceptual``."""

    def features(self, images: Tensor) -> list[Tensor]:
        """Features of T targets."""
        ...

    def distance_to(self, target_features: list[Tensor], images: Tensor) -> Tensor:
        """``(T * G,)`` distances; image b is compared with target b // G."""
        ...


@dataclass(frozen=True, kw_only=True)
class FrameRewardConfig:
    """Weights of the parts. Losses enter negatively: reward = psnr and ssim parts minus all others.

    The defaults are the published video reward, -(L1 + LPIPS), averaged over frames.

    Attributes:
        mae: Weight of the mean absolute error (L1).
        mse: Weight of the mean squared error.
        psnr: Weight of the peak signal-to-noise ratio (dB; higher is better).
        ssim: Weight of the structural similarity (higher is better).
        lpips: Weight of the perceptual distance.
        proprio: Weight of the mean squared error of proprioception, after division by ``proprio_scale``.
        proprio_scale: One divisor per proprioceptive dimension, in its own unit (usually the data's std).
        repetition: Weight of the rate of consecutive predicted frames that are equal at 8 bits.
        reduction: How H frames become one number.
        discount: Per-frame factor of ``reduction="discount"`` (0.9 in the published code).
    """

    mae: float = 1.0
    mse: float = 0.0
    psnr: float = 0.0
    ssim: float = 0.0
    lpips: float = 1.0
    proprio: float = 0.0
    proprio_scale: tuple[float, ...] | None = None
    repetition: float = 0.0
    reduction: Reduction = "mean"
    discount: float = 0.9

    def __post_init__(self) -> None:
        weights = {name: getattr(self, name) for name in (*_IMAGE_METRICS, "lpips", "proprio", "repetition")}
        if bad := {name: weight for name, weight in weights.items() if not 0 <= weight < float("inf")}:
            raise ValueError(f"frame reward weights must be finite and >= 0 (signs are built in): got {bad}")
        if not any(weights.values()):
            raise ValueError("all frame reward weights are 0: every reward would be 0; set at least one")
        if self.reduction not in ("mean", "last", "discount"):
            raise ValueError(f"reduction is {self.reduction!r}; choose 'mean', 'last' or 'discount'")
        if not 0 < self.discount <= 1:
            raise ValueError(f"discount is {self.discount}; it must lie in (0, 1]")
        if self.proprio > 0 and not self.proprio_scale:
            raise ValueError(
                "proprio > 0 needs proprio_scale, one divisor per dimension (for example the data's std)"
            )
        if self.proprio_scale is not None and not all(
            0 < scale < float("inf") for scale in self.proprio_scale
        ):
            raise ValueError(
                f"proprio_scale is {self.proprio_scale}; every entry must be positive and finite"
            )


_IMAGE_METRICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mae": mae,
    "mse": mse,
    "psnr": psnr,
    "ssim": ssim,
}
_HIGHER_IS_BETTER = ("psnr", "ssim")
_PERCEPTUAL_CHUNK = 64  # images per forward pass: more is not faster on a CPU and costs memory


@torch.no_grad()
def frame_scores(
    predicted: Tensor,
    targets: Tensor,
    *,
    config: FrameRewardConfig,
    perceptual: PerceptualDistance | None = None,
    predicted_proprio: Tensor | None = None,
    target_proprio: Tensor | None = None,
    decoded: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Rewards of R = P * G sampled futures, G per question.

    Args:
        predicted: ``(R, H, 3, h, w)`` float; clamped to 0..1, as the published reward does.
        targets: ``(P, H, 3, h, w)`` float in 0..1. P = R compares row by row.
        config: Weights; only parts with a positive weight are computed.
        perceptual: Needed where ``config.lpips`` is positive.
        predicted_proprio: ``(R, H, D)``; needed where ``config.proprio`` is positive.
        target_proprio: ``(P, H, D)``.
        decoded: ``(R, H)`` bool, False where the model's answer was no frame at all. Such a frame counts as
            the worst possible one: error 1 in MAE, MSE, LPIPS and proprioception, 0 dB, SSIM 0.

    Returns:
        Rewards ``(R, H)`` float32, whose mean over H is the reward of a future, and the unweighted parts ``(R,)`` by
        name, each reduced over frames. A frame's reward holds its share in the reduction, and H / (H - 1) of the
        repetition penalty if it repeats the frame before.

    Raises:
        ValueError: Shapes or ranges do not fit, something needed is missing, or a reward is not finite.
    """
    group = _group_size(predicted, targets)
    if not (targets.min() >= 0 and targets.max() <= 1):
        raise ValueError(
            f"targets lie in {targets.min():.4g}..{targets.max():.4g}; give finite floats in 0..1"
            " (divide uint8 by 255)"
        )
    predicted = predicted.float().clamp(0, 1)
    targets = targets.float()
    horizon = predicted.shape[1]
    per_frame: dict[str, Tensor] = {}
    if any(getattr(config, name) > 0 for name in _IMAGE_METRICS):
        flat, flat_target = predicted.flatten(0, 1), targets.repeat_interleave(group, dim=0).flatten(0, 1)
        for name, metric in _IMAGE_METRICS.items():
            if getattr(config, name) > 0:
                per_frame[name] = metric(flat, flat_target).view(-1, horizon)
    if config.lpips > 0:
        if perceptual is None:
            raise ValueError("config.lpips > 0 needs perceptual=Perceptual('alex' or 'vgg'); or set lpips=0")
        per_frame["lpips"] = _grouped_lpips(perceptual, predicted, targets, group)
    if config.proprio > 0:
        per_frame["proprio"] = _proprio_error(
            config, predicted_proprio, target_proprio, per_row=(len(predicted), group)
        )
    if decoded is not None:
        for name, values in per_frame.items():
            per_frame[name] = values.where(decoded, 0.0 if name in _HIGHER_IS_BETTER else 1.0)
    weights = _frame_weights(config, horizon).to(predicted)
    parts = {name: values @ weights for name, values in per_frame.items()}
    rewards = torch.zeros(predicted.shape[:2], device=predicted.device)
    for name, values in per_frame.items():
        sign = 1.0 if name in _HIGHER_IS_BETTER else -1.0
        rewards += sign * getattr(config, name) * values * weights * horizon
    if config.repetition > 0:
        parts["repetition"] = repetition_rate(predicted)
        rewards[:, 1:] -= config.repetition * _repeats(predicted) * horizon / max(1, horizon - 1)
    if not (finite := rewards.isfinite().all(1)).all():
        row = int((~finite).nonzero()[0])
        named = {name: float(part[row]) for name, part in parts.items()}
        raise ValueError(f"the reward of sample {row} is {float(rewards[row].mean())} (parts {named})")
    return rewards, parts


def repetition_rate(frames: Tensor) -> Tensor:
    """``(R,)`` share of consecutive pairs of ``(R, H, 3, h, w)`` frames equal at 8 bits; 0 if H = 1."""
    repeats = _repeats(frames)
    return repeats.mean(dim=1) if repeats.shape[1] else torch.zeros(len(frames), device=frames.device)


def _repeats(frames: Tensor) -> Tensor:
    """``(R, H - 1)``, 1 where a frame equals the one before."""
    levels = (frames * 255).round()
    return (levels[:, 1:] == levels[:, :-1]).flatten(2).all(dim=2).float()


def _group_size(predicted: Tensor, targets: Tensor) -> int:
    if predicted.ndim != 5 or targets.ndim != 5 or predicted.shape[1:] != targets.shape[1:]:
        raise ValueError(
            f"predicted {tuple(predicted.shape)} and targets {tuple(targets.shape)} must be"
            " (R, H, 3, h, w) and (P, H, 3, h, w) with equal H, h, w"
        )
    if len(targets) == 0 or len(predicted) % len(targets) or predicted.shape[1] == 0:
        raise ValueError(
            f"{len(predicted)} rows cannot be shared out over {len(targets)} targets: give R = P * G"
        )
    return len(predicted) // len(targets)


def _frame_weights(config: FrameRewardConfig, horizon: int) -> Tensor:
    if config.reduction == "last":
        weights = torch.zeros(horizon)
        weights[-1] = 1.0
    elif config.reduction == "discount":
        weights = config.discount ** torch.arange(horizon, dtype=torch.float32)
    else:
        weights = torch.ones(horizon)
    return weights / weights.sum()


def _grouped_lpips(perceptual: PerceptualDistance, predicted: Tensor, targets: Tensor, group: int) -> Tensor:
    """``(R, H)``. Images are reordered so that the G samples of one target frame are neighbours."""
    questions, horizon = targets.shape[:2]
    samples = predicted.unflatten(0, (questions, group)).transpose(1, 2).flatten(0, 2)  # (P * H * G, 3, h, w)
    flat_targets = targets.flatten(0, 1)
    step = max(1, _PERCEPTUAL_CHUNK // group)
    distances = []
    for start in range(0, len(flat_targets), step):
        chunk = flat_targets[start : start + step]
        images = samples[start * group : (start + len(chunk)) * group]
        distances.append(perceptual.distance_to(perceptual.features(chunk), images).float())
    return torch.cat(distances).view(questions, horizon, group).transpose(1, 2).reshape(-1, horizon)


def _proprio_error(
    config: FrameRewardConfig, predicted: Tensor | None, target: Tensor | None, *, per_row: tuple[int, int]
) -> Tensor:
    """``(R, H)`` mean squared error in units of ``proprio_scale``."""
    if predicted is None or target is None or config.proprio_scale is None:
        raise ValueError("config.proprio > 0 needs predicted and target proprioception; or set proprio=0")
    rows, group = per_row
    dimensions = len(config.proprio_scale)
    if len(predicted) != rows or len(target) * group != rows or predicted.shape[1:] != target.shape[1:]:
        raise ValueError(
            f"proprioception {tuple(predicted.shape)} against {tuple(target.shape)} for {rows} rows"
        )
    if predicted.shape[-1] != dimensions:
        raise ValueError(
            f"proprioception has {predicted.shape[-1]} dimensions, proprio_scale has {dimensions}"
        )
    scale = torch.tensor(config.proprio_scale, device=predicted.device)
    difference = (predicted.float() - target.float().repeat_interleave(group, dim=0)) / scale
    return difference.square().mean(dim=-1)
