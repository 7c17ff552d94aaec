"""iCEM: the cross-entropy method with coloured noise, kept elites and momentum (Pinneri et al. 2020).

Special: coloured noise is white noise through a fixed H x H matrix (circular filtering, the same
distribution as shaping the spectrum), so it is reproducible from the same seeds as plain CEM. Kept elites
cost no model evaluations.

Absent on purpose: the shrinking population and the elites shifted between environment steps of the paper
(MPC's warm start carries the plan over).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from planners.cem import fit_elites
from planners.search import (
    Bound,
    CostFunction,
    Gaussian,
    Noise,
    Plan,
    check_settings,
    normal_noise,
    search,
)


@dataclass(frozen=True, kw_only=True)
class ICEMConfig:
    """Settings of :class:`ICEM`; those not listed here mean the same as in :class:`planners.CEMConfig`.

    Attributes:
        noise_exponent: The noise has power ~ 1 / frequency^exponent over the horizon: 0 is white, 2 is
            smooth.
        momentum: Share of the old mean and sigma that is kept at each refit, in [0, 1).
    """

    num_samples: int = 300
    num_elites: int = 30
    iterations: int = 30
    sigma: float = 1.0
    noise_exponent: float = 2.0
    momentum: float = 0.1
    restarts: int = 1
    keep_elites: int = 5
    execute: Literal["best", "mean"] = "best"
    action_low: Bound = None
    action_high: Bound = None

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"ICEMConfig.momentum must be in [0, 1), got {self.momentum}")


@dataclass(frozen=True)
class ICEM:
    """iCEM for many problems at once.

    Attributes:
        config: Settings.
        device: Where candidates live; give the device of the cost function.
        dtype: Floating type of the search.
    """

    config: ICEMConfig = field(default_factory=ICEMConfig)
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float32

    def plan(
        self,
        cost: CostFunction,
        *,
        horizon_steps: int,
        action_size: int,
        seeds: Sequence[int],
        initial: Tensor | None = None,
        noise: Noise | None = None,
    ) -> Plan:
        """Plan for ``P = len(seeds)`` problems; arguments as in :func:`planners.search.search`.

        Noise that is handed in is taken as it is, not coloured.
        """
        momentum = self.config.momentum

        def refit(elites: Tensor, _: Tensor, old: Gaussian) -> Gaussian:
            new = fit_elites(elites, old)
            return Gaussian(*(momentum * o + (1 - momentum) * n for o, n in zip(old, new, strict=True)))

        if noise is None:
            shape = (horizon_steps, action_size)
            white = normal_noise(
                seeds, settings=self.config, shape=shape, device=self.device, dtype=self.dtype
            )
            noise = colour(white, self.config.noise_exponent, horizon_steps)

        return search(
            cost,
            settings=self.config,
            refit=refit,
            horizon_steps=horizon_steps,
            action_size=action_size,
            seeds=seeds,
            initial=initial,
            device=self.device,
            dtype=self.dtype,
            noise=noise,
        )


def colour(noise: Noise, exponent: float, horizon_steps: int) -> Noise:
    """Correlate white noise over the horizon (axis 2) so that its power falls as 1 / frequency^exponent.

    Every number stays standard normal by itself. The zero frequency gets the power of the lowest other one.
    """
    if exponent == 0 or horizon_steps == 1:
        return noise
    frequencies = torch.fft.rfftfreq(horizon_steps, dtype=torch.float64).clamp(min=1 / horizon_steps)
    impulse = torch.fft.irfft(frequencies ** (-exponent / 2), n=horizon_steps)
    impulse = impulse / impulse.norm()  # unit variance
    steps = torch.arange(horizon_steps)
    matrix = impulse[
        (steps[:, None] - steps) % horizon_steps
    ]  # (H, H): coloured[t] = sum_s matrix[t, s] white[s]

    def draw(iteration: int) -> Tensor:
        white = noise(iteration)
        weights = matrix.to(white)
        # A sum of H products: a matrix product may round differently for another number of problems.
        coloured = torch.zeros_like(white)
        for step in range(horizon_steps):
            coloured += weights[:, step, None] * white[:, :, step : step + 1]
        return coloured

    return draw
