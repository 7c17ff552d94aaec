"""Paired differences of the drawer's predictions: models against each other, and all against a copied frame.

Special: rows are compared case by case on every metric, rewarded or not, with a plain verdict.

Absent: the numbers of single rows (``training.drawer_tables``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from training.drawer_tables import COPY, METRIC_COLUMNS, TRUTH, case_values
from training.frame_rollouts import FrameCases
from training.report import Cell, Column, Table
from training.rewards.frames import FrameRewardConfig
from training.rows import Row
from training.statistics import paired_bootstrap

_HIGHER_IS_BETTER = ("psnr", "ssim")
_GATES = {
    "gripper_cm": "gripper cm",
    "gripper_cm/moved": "moved: gripper cm",
    "drawer_mm": "drawers mm",
    "drawer_mm/moved": "moved: drawers mm",
}
# The endpoint, what it costs or brings where something moves, and what the penalty is for.
HEADLINES = ("lpips", "gripper_cm/moved", "drawer_mm/moved", "repetition")


def _compared(
    first: Row, second: Row, cases: FrameCases, key: str, steps: int, *, seed: int
) -> dict[str, Cell] | None:
    """First minus second, case by case, and which is better; None where no case counts."""
    a, b = (case_values(row, cases, key, steps) for row in (first, second))
    if a is None or b is None:
        return None
    difference = paired_bootstrap(a[0], b[0], units=a[1], seed=seed)
    verdict = difference.verdict(higher_is_better=key in _HIGHER_IS_BETTER)
    return {"difference": difference, "verdict": verdict}


def gate_table(rows: Mapping[str, Row], cases: FrameCases, *, seed: int) -> Table:
    """Read errors of one frame minus those of a copy of the last one: what has not learned to move loses here.

    Over all windows the copy is a true picture of what stands still, so whatever paints its own is measured by its
    tokenizer's brush; where something has moved, by what it has learned.
    """
    cells: dict[str, dict[str, Cell]] = {}
    for name, row in rows.items():
        if name in (TRUTH, COPY):
            continue
        compared = {key: _compared(row, rows[COPY], cases, key, 1, seed=seed) for key in _GATES}
        cells[name] = {key: None if found is None else found["difference"] for key, found in compared.items()}
    return Table(
        name="gate",
        title="One frame ahead: error read from it, minus that of a copy of the last frame",
        columns=tuple(Column(key=key, title=title, show_n=True) for key, title in _GATES.items()),
        rows=cells,
        notes=(
            "95 % paired bootstrap over episodes; below 0 is better than a copy; moved: where it moved by 2 cm",
        ),
    )


def difference_table(
    rows: Mapping[str, Row],
    cases: FrameCases,
    pairs: Sequence[tuple[str, str]],
    rewards: Mapping[str, FrameRewardConfig],
    *,
    seed: int,
) -> Table:
    """First minus second on the same windows; the endpoint is LPIPS of sampled frames over the whole window.

    ``rewards``: what the first of a pair was rewarded for; the published reward where it is not named.
    """
    cells: dict[str, dict[str, Cell]] = {}
    for first, second in pairs:
        reward = rewards.get(first, FrameRewardConfig())
        for steps in (1, cases.future.shape[1]):
            for mode in ("sampled", "greedy"):
                mine, other = rows[f"{first}, {mode}"], rows[f"{second}, {mode}"]
                for column in METRIC_COLUMNS:
                    compared = _compared(mine, other, cases, column.key, steps, seed=seed)
                    if compared is None:
                        continue
                    weight: float = getattr(reward, column.key, 0.0)
                    name = f"{first} - {second}, {steps} frame{'s' * (steps > 1)}, {mode}: {column.key}"
                    cells[name] = {**compared, "rewarded": "yes" if weight > 0 else "no"}
    return Table(
        name="differences",
        title="Drawer prediction: paired differences",
        columns=(
            Column(key="difference", title="difference", digits=None, show_n=True),
            Column(key="verdict", title="first is"),
            Column(key="rewarded", title="rewarded"),
        ),
        rows=cells,
        notes=(
            "95 % paired bootstrap over episodes, metrics in their own units (not x100)",
            "the endpoint is LPIPS of sampled frames over the window; the others are not corrected for their number",
        ),
    )
