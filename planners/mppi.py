"""MPPI: the mean moves to the softmax-weighted average of the samples; sigma stays (Williams et al. 2017).

Special: the same loop as CEM, with weights instead of a cut. ``num_elites`` limits the average to the best
samples (all of them with ``num_elites == num_samples``, which is the published form).
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
class MPPIConfig:
    """Settings of :class:`MPPI`; those not listed here mean the same as in :class:`planners.CEMConfig`.

    Attributes:
        temperature: Cost difference at which a sample weighs 1/e of the best one, in units of the cost.
    """

    num_samples: int = 300
    num_elites: int = 30
    iterations: int = 30
    sigma: float = 1.0
    temperature: float = 0.5
    restarts: int = 1
    keep_elites: int = 0
    execute: Literal["best", "mean"] = "mean"
    action_low: Bound = None
    action_high: Bound = None

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.temperature > 0:
            raise ValueError(f"MPPIConfig.temperature must be positive, got {self.temperature}")


@dataclass(frozen=True)
class MPPI:
    """MPPI for many problems at once.

    Attributes:
        config: Settings.
        device: Where candidates live; give the device of the cost function.
        dtype: Floating type of the search.
    """

    config: MPPIConfig = field(default_factory=MPPIConfig)
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
        temperature = self.config.temperature

        def refit(elites: Tensor, costs: Tensor, old: Gaussian) -> Gaussian:
            return Gaussian(soft_mean(elites, costs, temperature), old.sigma)

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


def soft_mean(elites: Tensor, costs: Tensor, temperature: float) -> Tensor:
    """Average of ``(P, K, H, A)`` elites with weights ``softmax(-costs / temperature)``; NaN weighs 0."""
    scores = (-costs / temperature).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    return (torch.softmax(scores, dim=1).to(elites)[:, :, None, None] * elites).sum(dim=1)
