"""The sampling search that CEM, iCEM and MPPI share: sample, score, take the elites, refit, repeat.

Special: P problems (and R restarts of each) are one batch, with no Python loop over them; a problem's plan
does not depend on which other problems are in the batch, because every problem draws from its own seed. The
planners differ only in their noise and in how they refit, so each of them is one small function given to
:func:`search`.

Absent on purpose: gradients through the model, an evaluator that asks the real environment, logging of
iterations (wrap the cost function to see every candidate), and any change of a tensor that was handed in.

Shapes: P problems, R restarts, N samples, K elites, H horizon steps, A numbers in one action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from worldmodels.sampling import derive

CostFunction: TypeAlias = Callable[[Tensor], Tensor]
"""``(P, N, H, A)`` candidate plans -> ``(P, N)`` costs, lower is better. NaN counts as worst."""

Noise: TypeAlias = Callable[[int], Tensor]
"""Iteration 0, 1, ... -> ``(P * R, N, H, A)`` standard normal numbers, restarts of a problem side by side."""

Bound: TypeAlias = float | tuple[float, ...] | None
"""One limit for all numbers of an action, or one each, or none."""


class Gaussian(NamedTuple):
    """A normal distribution per problem: ``mean`` and standard deviation ``sigma``, each ``(P, H, A)``."""

    mean: Tensor
    sigma: Tensor


Refit: TypeAlias = Callable[[Tensor, Tensor, Gaussian], Gaussian]
"""Elites ``(P, K, H, A)`` best first, their costs ``(P, K)``, the old distribution -> the new one."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a planner returns for P problems.

    Attributes:
        actions: ``(P, H, A)`` what to execute: the best sample or the mean, as the configuration says.
        cost: ``(P,)`` the model's cost of exactly these actions.
        mean: ``(P, H, A)`` mean of the last distribution.
        sigma: ``(P, H, A)`` its standard deviation.
    """

    actions: Tensor
    cost: Tensor
    mean: Tensor
    sigma: Tensor


class Planner(Protocol):
    """Anything that turns a cost function into plans: CEM, iCEM, MPPI, or your own."""

    def plan(
        self,
        cost: CostFunction,
        *,
        horizon_steps: int,
        action_size: int,
        seeds: Sequence[int],
        initial: Tensor | None = None,
    ) -> Plan:
        """Plan for ``len(seeds)`` problems; ``initial`` ``(P, T <= H, A)`` is padded with zeros."""
        ...


class SearchSettings(Protocol):
    """What the loop reads from a planner's configuration."""

    @property
    def num_samples(self) -> int:
        """Samples per iteration and restart, N."""
        ...

    @property
    def num_elites(self) -> int:
        """How many of the best samples the distribution is refitted to, K."""
        ...

    @property
    def iterations(self) -> int:
        """How often to sample."""
        ...

    @property
    def sigma(self) -> float:
        """Standard deviation of the first distribution, in units of the action."""
        ...

    @property
    def restarts(self) -> int:
        """Independent searches per problem, R, of which the best counts."""
        ...

    @property
    def keep_elites(self) -> int:
        """So many of the best samples compete again in the next iteration, at their known costs."""
        ...

    @property
    def execute(self) -> Literal["best", "mean"]:
        """Whether a plan is the best sample seen or the last mean."""
        ...

    @property
    def action_low(self) -> Bound:
        """Samples are clipped to be at least this."""
        ...

    @property
    def action_high(self) -> Bound:
        """Samples are clipped to be at most this."""
        ...


def check_settings(settings: SearchSettings) -> None:
    """Raise ``ValueError`` where a configuration cannot be searched with."""
    name = type(settings).__name__
    for field in ("num_samples", "num_elites", "iterations", "restarts"):
        if getattr(settings, field) < 1:
            raise ValueError(f"{name}.{field} must be at least 1, got {getattr(settings, field)}")
    for field, limit in (("num_elites", "num_samples"), ("keep_elites", "num_elites")):
        value, most = getattr(settings, field), getattr(settings, limit)
        if not 0 <= value <= most:
            raise ValueError(f"{name}.{field} must be in 0..{limit} = 0..{most}, got {value}")
    if not settings.sigma > 0:
        raise ValueError(f"{name}.sigma must be positive, got {settings.sigma}")
    if settings.execute not in ("best", "mean"):
        raise ValueError(f"{name}.execute must be 'best' or 'mean', got {settings.execute!r}")


def search(
    cost: CostFunction,
    *,
    settings: SearchSettings,
    refit: Refit,
    horizon_steps: int,
    action_size: int,
    seeds: Sequence[int],
    initial: Tensor | None,
    device: torch.device | str,
    dtype: torch.dtype,
    noise: Noise | None = None,
) -> Plan:
    """Plan for ``P = len(seeds)`` problems.

    Sample 0 of every iteration is the mean itself; its draw is consumed but unused, except that restarts 1,
    2, ... of a problem begin at the first mean moved by ``sigma`` times that draw of the first iteration
    (restart 0 begins at the first mean). Of equal costs the lower sample number is the better one.

    Args:
        cost: Called once per iteration with ``(P, R * N, H, A)``, and once with ``(P, R, H, A)`` at the end
            if the mean is executed, so that :attr:`Plan.cost` is true.
        settings: Sizes and options.
        refit: How the elites become the next distribution.
        horizon_steps: H.
        action_size: A.
        seeds: One per problem; equal seeds and costs give equal plans whatever else is in the batch.
        initial: ``(P, T, A)`` with T <= H, the first mean (zeros after it), or None for zeros. It is not
            modified.
        device: Where candidates live.
        dtype: Floating type of the search.
        noise: The standard normal numbers, by default :func:`normal_noise` of the seeds.

    Raises:
        ValueError: on wrong shapes, or if no candidate of a problem has a finite cost.
    """
    problems, restarts = len(seeds), settings.restarts
    if not problems:
        raise ValueError("seeds is empty; give one seed per problem, at least one")
    shape = (horizon_steps, action_size)
    if noise is None:
        noise = normal_noise(seeds, settings=settings, shape=shape, device=device, dtype=dtype)
    zeros = torch.zeros(problems, *shape, device=device, dtype=dtype)
    clip = _clipper(settings, zeros)
    mean = clip(_first_mean(initial, zeros)).repeat_interleave(restarts, dim=0)
    now = Gaussian(mean, torch.full_like(mean, settings.sigma))
    best, best_cost = mean, torch.full_like(mean[:, 0, 0], torch.inf)
    rows = torch.arange(len(mean), device=mean.device)[:, None]
    kept: tuple[Tensor, Tensor] | None = None

    for iteration in range(settings.iterations):
        draws = noise(iteration)
        if iteration == 0 and restarts > 1:
            moved = clip(mean + now.sigma * draws[:, 0])
            now = Gaussian(torch.where((rows % restarts == 0)[..., None], mean, moved), now.sigma)
        # Multiply, then add: a fused addcmul rounds differently at the end of a vector, i.e. by batch size.
        candidates = (draws * now.sigma[:, None]).add_(now.mean[:, None])
        candidates[:, 0] = now.mean
        candidates = clip(candidates)
        costs = _evaluate(cost, candidates, problems)
        if kept is not None:
            candidates, costs = torch.cat([candidates, kept[0]], dim=1), torch.cat([costs, kept[1]], dim=1)
        # A stable sort, not topk: equal costs must be taken in a known order. NaN comes last.
        elite_costs, order = (x[:, : settings.num_elites] for x in costs.sort(dim=1, stable=True))
        elites = candidates[rows, order]
        if settings.keep_elites:
            kept = elites[:, : settings.keep_elites], elite_costs[:, : settings.keep_elites]
        better = elite_costs[:, 0] < best_cost
        best_cost = torch.where(better, elite_costs[:, 0], best_cost)
        best = torch.where(better[:, None, None], elites[:, 0], best)
        now = refit(elites, elite_costs, now)

    if settings.execute == "mean":
        best, best_cost = now.mean, _evaluate(cost, now.mean[:, None], problems)[:, 0]
    return _best_restart(best, best_cost, now, problems)


def normal_noise(
    seeds: Sequence[int],
    *,
    settings: SearchSettings,
    shape: tuple[int, int],
    device: torch.device | str,
    dtype: torch.dtype,
) -> Noise:
    """Independent standard normal plans of ``shape`` (H, A), a pure function of (seed, restart, iteration).

    Drawn on the CPU in float32 and then converted, so that they do not depend on device and dtype.
    """
    problems = torch.as_tensor(list(seeds), dtype=torch.int64)
    rows = derive(problems[:, None], torch.arange(settings.restarts)).flatten()
    of_iteration = derive(rows, torch.arange(1, settings.iterations + 1)[:, None]).tolist()
    generator = torch.Generator()

    def draw(iteration: int) -> Tensor:
        numbers = torch.empty(len(rows), settings.num_samples, *shape)
        # One call per row is the price of rows that do not know of each other: a few microseconds each.
        for row, seed in zip(numbers, of_iteration[iteration], strict=True):
            row.normal_(generator=generator.manual_seed(seed))
        return numbers.to(device=device, dtype=dtype)

    return draw


def _first_mean(initial: Tensor | None, mean: Tensor) -> Tensor:
    """``mean`` ``(P, H, A)`` with its first steps overwritten by ``initial`` ``(P, T <= H, A)``."""
    problems, horizon_steps, action_size = mean.shape
    if initial is None:
        return mean
    steps = initial.shape[1] if initial.ndim == 3 else -1
    if tuple(initial.shape) != (problems, steps, action_size) or steps > horizon_steps:
        raise ValueError(
            f"initial actions have shape {tuple(initial.shape)}; expected (problems, at most horizon, action"
            f" size) = ({problems}, <= {horizon_steps}, {action_size})"
        )
    if not torch.isfinite(initial).all():
        raise ValueError("initial actions contain NaN or infinity; leave them out to start from zero")
    mean[:, :steps] = initial
    return mean


def _clipper(settings: SearchSettings, like: Tensor) -> Callable[[Tensor], Tensor]:
    """Clips the last axis of a tensor to the action bounds, where there are any."""
    limits = []
    for bound in (settings.action_low, settings.action_high):
        limit = None if bound is None else torch.as_tensor(bound, device=like.device, dtype=like.dtype)
        if limit is not None and limit.ndim and len(limit) != like.shape[-1]:
            raise ValueError(f"{len(limit)} action bounds for actions of {like.shape[-1]} numbers: {bound}")
        limits.append(limit)
    low, high = limits
    return lambda x: x if low is None and high is None else x.clamp(low, high)


def _evaluate(cost: CostFunction, candidates: Tensor, problems: int) -> Tensor:
    """``(P * R, N)`` costs of ``(P * R, N, H, A)`` candidates; the function sees ``(P, R * N, H, A)``."""
    rows, samples, *plan = candidates.shape
    expected = (problems, rows // problems * samples)
    costs = cost(candidates.reshape(*expected, *plan))
    if tuple(costs.shape) != expected:
        raise ValueError(
            f"the cost function returned shape {tuple(costs.shape)}; expected (problems, samples) ="
            f" {expected}"
        )
    return costs.to(candidates).reshape(rows, samples)


def _best_restart(actions: Tensor, cost: Tensor, last: Gaussian, problems: int) -> Plan:
    """Of the restarts of each problem, the one with the lowest cost."""
    by_problem = cost.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).reshape(problems, -1)
    rows = torch.arange(problems, device=cost.device) * by_problem.shape[1] + by_problem.argmin(dim=1)
    chosen = cost[rows]
    bad = (~torch.isfinite(chosen)).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"no finite cost for problem(s) {bad}: every candidate was NaN or infinite; check the goal and"
            " the model's predictions for these problems"
        )
    return Plan(actions=actions[rows], cost=chosen, mean=last.mean[rows], sigma=last.sigma[rows])
