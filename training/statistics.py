"""How sure a number is: intervals and tests for the few comparisons this project makes.

Special: results print themselves as ``0.84 [0.72, 0.92] n=50``; a bootstrap resamples *units* (an episode, a
goal), so many steps of one episode do not count as independent evidence.

Absent on purpose: anything for one seed per method, and one-sided tests.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval.

    Attributes:
        value: The estimate.
        low: Lower end of the interval.
        high: Upper end.
        n: Independent units behind it.
    """

    value: float
    low: float
    high: float
    n: int

    def format(self, digits: int = 2) -> str:
        """``0.84 [0.72, 0.92] n=50``."""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}] n={self.n}"

    def __str__(self) -> str:
        return self.format()

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference is distinguishable from none at this confidence."""
        return self.low > 0 or self.high < 0

    def verdict(self, *, higher_is_better: bool) -> str:
        """Of a difference, in words: is the first ``"better"``, ``"worse"`` or ``"not distinguishable"``."""
        if not self.excludes_zero:
            return "not distinguishable"
        return "better" if (self.value > 0) == higher_is_better else "worse"


def wilson_interval(successes: int, n: int, *, confidence: float = 0.95) -> Estimate:
    """Success rate with Wilson's score interval, which stays inside 0..1 and is sane at 0 and n successes.

    Raises:
        ValueError: ``n`` < 1, or ``successes`` outside 0..n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: need n >= 1 and 0 <= successes <= n")
    _check_confidence(confidence)
    interval = stats.binomtest(successes, n).proportion_ci(confidence_level=confidence, method="wilson")
    return Estimate(successes / n, float(interval.low), float(interval.high), n)


def bootstrap_mean(
    values: ArrayLike,
    *,
    units: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = 10_000,
) -> Estimate:
    """Mean with a percentile bootstrap interval.

    Args:
        values: ``(N,)`` finite numbers.
        units: ``(N,)`` the independent unit of each value, for example its episode; None: every value is one.
        confidence: Coverage, in (0, 1).
        seed: Of the resampling; the same seed gives the same interval.
        resamples: Number of bootstrap samples.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0 or not np.isfinite(array).all():
        raise ValueError(
            f"the values to average have shape {array.shape}; give at least one, all finite, in one axis"
        )
    if units is not None and len(units) != len(array):
        raise ValueError(f"{len(array)} values but {len(units)} units: give one unit per value")
    _check_confidence(confidence)
    sums, counts = _per_unit(array, units)
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    chunk = max(1, 1_000_000 // len(sums))  # bounds the memory of the index array
    for start in range(0, resamples, chunk):
        rows = generator.integers(len(sums), size=(min(chunk, resamples - start), len(sums)))
        means[start : start + len(rows)] = sums[rows].sum(axis=1) / counts[rows].sum(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(array.mean()), float(low), float(high), len(sums))


def paired_bootstrap(
    a: ArrayLike,
    b: ArrayLike,
    *,
    units: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = 10_000,
) -> Estimate:
    """Mean of ``a - b`` over pairs measured on the same question, with a bootstrap interval over units.

    Args:
        a: ``(N,)`` values of one method.
        b: ``(N,)`` values of the other on the same questions, in the same order.
        units: As in :func:`bootstrap_mean`, like the other arguments.
        confidence: Coverage, in (0, 1).
        seed: Of the resampling.
        resamples: Number of bootstrap samples.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(
            f"paired values have shapes {first.shape} and {second.shape}: give one of each per question"
        )
    return bootstrap_mean(first - second, units=units, confidence=confidence, seed=seed, resamples=resamples)


def ratio_of_means(
    a: ArrayLike, b: ArrayLike, *, confidence: float = 0.95, seed: int = 0, resamples: int = 10_000
) -> Estimate | None:
    """Mean of ``a`` over mean of ``b``, measured on the same questions, with a percentile bootstrap interval.

    Args:
        a: ``(N,)`` values of one method, not negative.
        b: ``(N,)`` values of the other on the same questions, in the same order, not negative.
        confidence: Coverage, in (0, 1).
        seed: Of the resampling of questions.
        resamples: Number of bootstrap samples; those in which ``b`` is all zero have no ratio and are left out.

    Returns:
        None where ``b`` is all zero.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1 or not len(first) or min(first.min(), second.min()) < 0:
        raise ValueError(
            f"a ratio of means needs two (N,) arrays of numbers >= 0; got shapes {first.shape} and {second.shape}"
        )
    _check_confidence(confidence)
    if not second.any():
        return None
    rows = np.random.default_rng(seed).integers(len(first), size=(resamples, len(first)))
    above, below = first[rows].mean(axis=1), second[rows].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(above[below > 0] / below[below > 0], [tail, 1 - tail])
    return Estimate(float(first.mean() / second.mean()), float(low), float(high), len(first))


@dataclass(frozen=True)
class McNemar:
    """Exact McNemar test of two methods that were tried on the same questions.

    Attributes:
        only_a: Questions that only the first solved.
        only_b: Questions that only the second solved.
        p_value: Two-sided; of "each is as likely to be the one that solves a question that only one solves".
    """

    only_a: int
    only_b: int
    p_value: float


def mcnemar(a: ArrayLike, b: ArrayLike) -> McNemar:
    """Exact McNemar test.

    Args:
        a: ``(N,)`` bool, successes of one method.
        b: ``(N,)`` bool, successes of the other on the same questions, in the same order.
    """
    first, second = np.asarray(a), np.asarray(b)
    if first.shape != second.shape or first.ndim != 1 or first.dtype != np.bool_ or second.dtype != np.bool_:
        raise ValueError(
            f"McNemar's test compares two (N,) bool arrays; got {first.shape} {first.dtype} and"
            f" {second.shape} {second.dtype}"
        )
    only_a, only_b = int((first & ~second).sum()), int((~first & second).sum())
    p_value = float(stats.binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0
    return McNemar(only_a, only_b, p_value)


def _per_unit(
    values: NDArray[np.float64], units: Sequence[Hashable] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum and number of the values of every unit, in order of first appearance."""
    if units is None:
        return values, np.ones(len(values))
    position: dict[Hashable, int] = {}
    rows = [position.setdefault(unit, len(position)) for unit in units]
    sums, counts = np.bincount(rows, weights=values), np.bincount(rows)
    return sums.astype(np.float64), counts.astype(np.float64)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(
            f"confidence is {confidence}; it must lie strictly between 0 and 1, for example 0.95"
        )
