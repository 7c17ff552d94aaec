"""Errors and similarities of images, as the published evaluation has them.

Absent on purpose: LPIPS (``worldmodels.nets.perceptual``), and what a model is rewarded for (``rewards.frames``).

Shapes: B images ``(B, 3, H, W)`` float in 0..1.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


def mae(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error of ``(B, 3, H, W)`` images in 0..1, as ``(B,)`` in 0..1."""
    return (predicted - target).abs().mean(dim=(1, 2, 3))


def mse(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of ``(B, 3, H, W)`` images in 0..1, as ``(B,)`` in 0..1."""
    return (predicted - target).square().mean(dim=(1, 2, 3))


def psnr(predicted: Tensor, target: Tensor) -> Tensor:
    """10 log10(1 / (MSE + 1e-8)) of ``(B, 3, H, W)`` images in 0..1, as ``(B,)`` dB; equal images give 80."""
    return -10.0 * torch.log10(mse(predicted, target) + 1e-8)


def ssim(predicted: Tensor, target: Tensor) -> Tensor:
    """Structural similarity (Wang et al. 2004) of ``(B, 3, H, W)`` images in 0..1, as ``(B,)`` in -1..1.

    Gaussian window of 11 pixels with sigma 1.5, no padding, k1 = 0.01 and k2 = 0.03, population variances,
    mean over channels and positions. Not clamped.
    """
    if min(predicted.shape[2:]) < _SSIM_WINDOW:
        raise ValueError(
            f"SSIM needs images of at least 11 x 11 pixels; these are {tuple(predicted.shape[2:])}"
        )
    batch = len(predicted)
    moments = torch.cat([predicted, target, predicted * predicted, target * target, predicted * target])
    # A separable blur of all five moments at once as two banded matrix products: 22 times faster on a CPU
    # than convolutions of single channels.
    down, across = (_blur_matrix(size).to(moments) for size in predicted.shape[2:])
    mean_x, mean_y, xx, yy, xy = (down @ moments @ across.T).unflatten(0, (5, batch))
    c1, c2 = 0.01**2, 0.03**2
    variance_x, variance_y, covariance = xx - mean_x**2, yy - mean_y**2, xy - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    contrast = (2 * covariance + c2) / (variance_x + variance_y + c2)
    return (luminance * contrast).mean(dim=(1, 2, 3))


_SSIM_WINDOW = 11


@cache
def _blur_matrix(size: int) -> Tensor:
    """``(size - 10, size)``: row i is the normalised Gaussian window over places i .. i + 10."""
    offsets = torch.arange(_SSIM_WINDOW, dtype=torch.float32) - _SSIM_WINDOW // 2
    weights = torch.exp(-offsets.square() / (2 * 1.5**2))
    places = size - _SSIM_WINDOW + 1
    return torch.stack([F.pad(weights / weights.sum(), (i, places - 1 - i)) for i in range(places)])
