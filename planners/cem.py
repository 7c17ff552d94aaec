"""The cross-entropy method: refit a normal distribution to the best samples (Rubinstein 1999).

Special: given the same noise, :func:`reference_config` reproduces the planner of DINO-WM (Zhou et al.
2024), which RLVR-World plans with too, in one batch instead of a loop over problems. The defaults differ
from it where small trials on PushT gained: the best sample is executed instead of the mean (half the final
cost).

Deliberately different: one elite (``num_elites=1``) leaves the standard deviation as it is, because one
sample has none; the reference gets NaN from the first iteration on and never moves again. Equal costs are
taken in the order of their samples; the reference's sort is unstable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from planners.search import (
    Bound,
    CostFunction,
    Gaussian,
    Noise,
    Plan,
    check_settings,
    search,
)


@dataclass(frozen=True, kw_only=True)
class CEMConfig:
    """Settings of :class:`CEM`.

    Attributes:
        num_samples: Samples per iteration and restart, N. 300 as in DINO-WM.
        num_elites: How many of them the distribution is refitted to, K. 30 as in DINO-WM.
        iterations: 30 as in DINO-WM.
        sigma: Standard deviation of the first distribution, in units of the action.
        sigma_floor: The standard deviation never falls below it; 0 lets the search converge to a point.
        restarts: Independent searches per problem of which the best counts; a wide start against local
            optima.
        keep_elites: So many of the best samples, with their known costs, compete again in the next iteration;
            costs no model evaluations. Leave it 0 if the cost is random: a lucky draw would never be
            forgotten.
        execute: ``"best"`` returns the best sample seen, ``"mean"`` the last mean (the reference).
        action_low: Samples are clipped to be at least this.
        action_high: Samples are clipped to be at most this.

    Raises:
        ValueError: a setting is out of its range.
    """

    num_samples: int = 300
    num_elites: int = 30
    iterations: int = 30
    sigma: float = 1.0
    sigma_floor: float = 0.0
    restarts: int = 1
    keep_elites: int = 0
    execute: Literal["best", "mean"] = "best"
    action_low: Bound = None
    action_high: Bound = None

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.sigma_floor >= 0:
            raise ValueError(f"CEMConfig.sigma_floor must be at least 0, got {self.sigma_floor}")


@dataclass(frozen=True)
class CEM:
    """The cross-entropy method for many problems at once.

    Attributes:
        config: Settings.
        device: Where candidates live; give the device of the cost function.
        dtype: Floating type of the search.
    """

    config: CEMConfig = field(default_factory=CEMConfig)
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
        """Plan for ``P = len(seeds)`` problems; arguments as in :func:`planners.search.search`."""
        floor = self.config.sigma_floor

        def refit(elites: Tensor, _: Tensor, old: Gaussian) -> Gaussian:
            fitted = fit_elites(elites, old)
            return Gaussian(fitted.mean, fitted.sigma.clamp(min=floor))

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


def fit_elites(elites: Tensor, old: Gaussian) -> Gaussian:
    """Mean and standard deviation (divisor K - 1) of ``(P, K, H, A)`` elites; one elite keeps old sigma."""
    count = elites.shape[1]
    mean = elites.mean(dim=1)
    if count == 1:
        return Gaussian(mean, old.sigma)
    # Written out: torch.std over a middle dimension is ten times slower.
    return Gaussian(mean, ((elites - mean[:, None]).square_().sum(dim=1) / (count - 1)).sqrt_())


def reference_config(
    *, num_samples: int = 300, num_elites: int = 30, iterations: int = 30, sigma: float = 1.0
) -> CEMConfig:
    """DINO-WM's planner: no clipping, no floor, nothing kept, one search, and the mean is executed."""
    return CEMConfig(
        num_samples=num_samples, num_elites=num_elites, iterations=iterations, sigma=sigma, execute="mean"
    )
