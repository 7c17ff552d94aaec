"""The rows and columns of the drawer tables, made from measured predictions.

Special: every number comes with a 95 % bootstrap interval over episodes.

Absent: computing predictions (``training.drawer_evaluate``), and comparing them (``training.drawer_differences``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from training.drawer_metrics import drawer_moved, gripper_moved
from training.frame_rollouts import FrameCases
from training.report import Cell, Column, Table
from training.rows import Floats, Row
from training.statistics import Estimate, bootstrap_mean, ratio_of_means

_MOVED = {"drawer_mm": drawer_moved, "gripper_cm": gripper_moved}


METRIC_COLUMNS = (
    Column(key="repetition", title="repetition %", digits=1, scale=100),
    Column(key="lpips", title="LPIPS x100", scale=100),
    Column(key="mae", title="MAE x100", scale=100),
    Column(key="mse", title="MSE x100", digits=3, scale=100),
    Column(key="psnr", title="PSNR", digits=1),
    Column(key="ssim", title="SSIM x100", digits=1, scale=100),
    Column(key="gripper_cm", title="gripper cm", digits=1),
    Column(key="gripper_cm/moved", title="moved: gripper cm", digits=1, show_n=True),
    Column(key="drawer_mm", title="drawers mm", digits=1),
    Column(key="drawer_mm/moved", title="moved: drawers mm", digits=1, show_n=True),
    Column(key="following_cm", title="following cm", digits=1),
)
_LONG_METRICS = (
    *("repetition", "lpips", "mse", "psnr", "ssim"),
    *("gripper_cm", "drawer_mm", "drawer_mm/moved", "following_cm"),
)
TRUTH, COPY = "recorded frames", "copy last frame"
_PICTURE = ("lpips", "mae", "mse", "psnr", "ssim")


def case_values(row: Row, cases: FrameCases, key: str, steps: int) -> tuple[Floats, list[str]] | None:
    """One value per case: pictures and following averaged over frames 1 .. steps, others of the last one.

    After ``/moved`` only of cases in which what the metric is about has moved. ``repetition`` is whether the last two
    frames are equal, as published.
    """
    metric, _, only_moved = key.partition("/")
    if metric == "repetition" and steps == 1:
        return None
    values = row.metrics[metric]
    averaged = metric in _PICTURE or metric == "following_cm"
    of_case = values[:, :steps].mean(axis=1) if averaged else values[:, steps - 1]
    chosen: NDArray[np.bool_] = np.ones(len(cases), dtype=bool)
    if only_moved:
        chosen = _MOVED[metric](cases)[:, steps - 1]
    if not chosen.any():
        return None
    return of_case[chosen], [unit for unit, wanted in zip(cases.units, chosen, strict=True) if wanted]


def _estimate(row: Row, cases: FrameCases, key: str, steps: int, *, seed: int) -> Estimate | None:
    found = case_values(row, cases, key, steps)
    return None if found is None else bootstrap_mean(found[0], units=found[1], seed=seed)


def window_table(rows: Mapping[str, Row], cases: FrameCases, steps: int, *, seed: int) -> Table:
    """All metrics after so many frames of a recorded window."""
    cells: dict[str, dict[str, Cell]] = {}
    for name, row in rows.items():
        cells[name] = {
            column.key: _estimate(row, cases, column.key, steps, seed=seed) for column in METRIC_COLUMNS
        }
        cells[name] |= {
            "windows": len(cases),
            "n": len(set(cases.units)),
            "seed": ", ".join(map(str, row.seeds)) or None,
            "seconds": row.seconds,
            "tokens": row.tokens,
        }
    shown = tuple(
        c for c in METRIC_COLUMNS if any(of_row.get(c.key) is not None for of_row in cells.values())
    )
    return Table(
        name=f"window-{steps}",
        title=f"Drawer prediction, {steps} frame{'s' * (steps > 1)} ahead",
        columns=(
            *shown,
            Column(key="windows", title="windows"),
            Column(key="n", title="episodes"),
            Column(key="seed", title="seed"),
            Column(key="seconds", title="seconds", digits=1),
            Column(key="tokens", title="tokens"),
        ),
        rows=cells,
        notes=(
            "95 % bootstrap intervals over episodes; sampled rows are the mean over the sampling seeds",
            "pictures and following: mean over the frames; gripper, drawers: of the last frame, read by a reader of"
            " true frames that is part of no reward; repetition: the last two frames are equal",
            "following: the displacement that an inverse-dynamics reader finds between frames, off the commanded one",
            "seconds and tokens are those of all windows, whole, and of all sampling seeds together",
        ),
    )


def with_distance(row: Row, aside: Row, names: Sequence[str]) -> Row:
    """A row with ``apart_cm``: how far the gripper is from where other actions have brought it, frame by frame.

    Args:
        row: Episodes under their own actions.
        aside: The same starts under other actions.
        names: The readings that say where the gripper is.
    """
    here, there = (np.stack([of.metrics[f"read_{name}"] for name in names], axis=-1) for of in (row, aside))
    return replace(row, metrics={**row.metrics, "apart_cm": 100 * np.linalg.norm(here - there, axis=-1)})


def long_table(rows: Mapping[str, Row], cases: FrameCases, steps: int, *, seed: int) -> Table:
    """After ``steps`` frames of an episode; rows from ``with_distance``."""
    real = rows[TRUTH].metrics["apart_cm"][:, steps - 1]
    cells: dict[str, dict[str, Cell]] = {}
    for name, row in rows.items():
        cells[name] = {
            key: _estimate(row, cases, key, steps, seed=seed) for key in (*_LONG_METRICS, "apart_cm")
        }
        cells[name] |= {
            "sensitivity": ratio_of_means(row.metrics["apart_cm"][:, steps - 1], real, seed=seed),
            "n": len(cases),
            "seed": ", ".join(map(str, row.seeds)) or None,
            "seconds": row.seconds,
            "tokens": row.tokens,
        }
    measured = tuple(
        column
        for column in METRIC_COLUMNS
        if column.key in _LONG_METRICS and any(of_row[column.key] is not None for of_row in cells.values())
    )
    return Table(
        name=f"long-{steps}",
        title=f"Drawer episodes after {steps} frame{'s' * (steps > 1)}, beside the simulator",
        columns=(
            *measured,
            Column(key="apart_cm", title="apart under other actions, cm", digits=1),
            Column(key="sensitivity", title="of the truth's"),
            Column(key="n", title="episodes"),
            Column(key="seed", title="seed"),
            Column(key="seconds", title="seconds", digits=1),
            Column(key="tokens", title="tokens"),
        ),
        rows=cells,
        notes=(
            "LPIPS, MSE, PSNR, SSIM and following: mean over the frames so far; repetition: the last two frames are"
            " equal; all else of the last frame",
            "apart: distance of the gripper under the episode's actions from the gripper under another episode's, both"
            " read from frames; of the truth's: as a share of what the simulator does (1 is right)",
            "sampled rows are the mean over the sampling seeds; seconds and tokens are those of all of them, whole",
        ),
    )
