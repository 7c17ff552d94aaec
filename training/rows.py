"""Rows of the prediction tables: metrics of every case, computed in blocks that are kept when they are finished.

Special: a block is always computed whole, so its batches never differ and a score does not move with what was
kept before; a repeated call skips what is there.

Absent: what is predicted and how it is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from training.report import RowLog

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """Measured predictions of N cases.

    Attributes:
        metrics: ``(N, H)`` by name; one that was measured on the first M cases only is ``(M, 1)``.
        seconds: Time of predicting (not of measuring).
        tokens: Generated tokens.
        seeds: Sampling seeds that it is a mean over; empty if nothing was sampled.
    """

    metrics: Mapping[str, Floats]
    seconds: float
    tokens: int
    seeds: tuple[int, ...] = ()


def mean_row(rows: Sequence[Row], seeds: tuple[int, ...]) -> Row:
    """The mean of several sampling runs, case by case; seconds and tokens are those of all."""
    metrics = {key: np.mean([row.metrics[key] for row in rows], axis=0) for key in rows[0].metrics}
    return Row(metrics, sum(row.seconds for row in rows), sum(row.tokens for row in rows), seeds)


class _Answers(Protocol):
    @property
    def tokens(self) -> int: ...


A = TypeVar("A", bound=_Answers)


def computed_row(
    log: RowLog,
    answer: Callable[[list[int]], A],
    measure: Callable[[A, list[int]], Mapping[str, Floats]],
    *,
    count: int,
    block: int,
    title: str,
    progress: bool,
) -> Row:
    """Answer and measure all cases, ``block`` at a time.

    Args:
        log: Keeps finished blocks.
        answer: Numbers of cases -> what is predicted, with the number of generated ``tokens``.
        measure: That, and the numbers -> metrics ``(cases, H)``.
        count: Cases in all.
        block: Cases of a block.
        title: Of the progress bar.
        progress: Whether to show it.
    """
    parts = blocks(count, block)
    for name in tqdm(log.missing(list(parts)), desc=title, unit="block", disable=None if progress else True):
        started = time.perf_counter()
        answers = answer(parts[name])
        seconds = time.perf_counter() - started
        metrics = {key: six_digits(values) for key, values in measure(answers, parts[name]).items()}
        log.add(name, {"metrics": metrics, "seconds": seconds, "tokens": answers.tokens})
    kept = [log.parts[name] for name in parts]
    return Row(
        {
            key: np.concatenate([np.array(of["metrics"][key]) for of in kept if key in of["metrics"]])
            for key in kept[0]["metrics"]
        },
        sum(of["seconds"] for of in kept),
        sum(of["tokens"] for of in kept),
    )


def blocks(count: int, size: int) -> dict[str, list[int]]:
    """Numbers of the cases of each block, by the number of its first case."""
    return {str(first): list(range(first, min(first + size, count))) for first in range(0, count, size)}


def six_digits(values: Floats) -> list[list[float]]:
    """Six significant digits are far below any interval, and keep the logs small."""
    return [[float(f"{x:.6g}") for x in line] for line in values.tolist()]
