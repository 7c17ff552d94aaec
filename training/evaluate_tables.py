"""The tables of the prediction report, made from measured rows.

Special: every number comes with a 95 % bootstrap interval over episodes, and two models are compared window
by window on every metric, rewarded or not, with a plain verdict.

Absent: computing predictions (``training.evaluate``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from training.data import PushTData
from training.mle import gates, tokenise
from training.report import Cell, Column, Table
from training.rewards.frames import FrameRewardConfig
from training.rows import Floats, Row
from training.statistics import Estimate, bootstrap_mean, paired_bootstrap
from training.windows import Windows
from worldmodels.video.object_world import ObjectWorldModel

_GATE_EPISODES = 256
_GATE_STEPS = (1, 5)  # how far ahead the pose error is asked for

_PICTURE_COLUMNS = (
    Column(key="lpips", title="LPIPS x100", scale=100),
    Column(key="vgg", title="LPIPS (VGG) x100", scale=100),
    Column(key="mae", title="MAE x100", scale=100),
    Column(key="mse", title="MSE x100", digits=3, scale=100),
    Column(key="psnr", title="PSNR", digits=1),
    Column(key="ssim", title="SSIM x100", scale=100),
    Column(key="repetition", title="repetition %", digits=1, scale=100),
)
_POSE_COLUMNS = (
    Column(key="proprio_px", title="proprio px", digits=1),
    Column(key="agent_px", title="agent px", digits=1),
    Column(key="block_px", title="block px", digits=1),
    Column(key="angle_deg", title="angle deg", digits=1),
    Column(key="block_px/moved", title="moved: block px", digits=1, show_n=True),
    Column(key="angle_deg/moved", title="moved: angle deg", digits=1),
)
_TOKEN_COLUMNS = (
    Column(key="token_block_px", title="block px", digits=1),
    Column(key="token_angle_deg", title="angle deg", digits=1),
    Column(key="token_block_px/moved", title="moved: block px", digits=1, show_n=True),
    Column(key="token_angle_deg/moved", title="moved: angle deg", digits=1),
)
_KINDS = {
    "picture": ("picture", _PICTURE_COLUMNS),
    "pose": ("pose in the decoded frame", _POSE_COLUMNS),
    "tokens": ("pose in the model's own tokens", _TOKEN_COLUMNS),
}
_COST_COLUMNS = (
    Column(key="windows", title="windows"),
    Column(key="n", title="episodes"),
    Column(key="seed", title="seed"),
    Column(key="seconds", title="seconds", digits=1),
    Column(key="tokens", title="tokens"),
)
_HIGHER_IS_BETTER = ("psnr", "ssim")
_OF_REWARD = ("lpips", "mae", "mse", "psnr", "ssim", "repetition")
# Metrics that a part of the reward decides. The decoder paints the agent where proprioception says it is.
_REWARDED_BY = {**{name: name for name in _OF_REWARD}, "proprio_px": "proprio", "agent_px": "proprio"}


@dataclass(frozen=True)
class BestOf:
    """Many one-step samples of each window: ``reward`` and ``lpips`` ``(N, samples)``."""

    reward: Floats
    lpips: Floats
    seconds: float
    tokens_per_frame: int


def prediction_tables(rows: Mapping[str, Row], windows: Windows, *, seed: int) -> list[Table]:
    """Picture, pose and the model's own view of it, one step ahead and over the whole horizon."""
    tables = []
    for steps in sorted({1, windows.horizon}):
        far = "1 step ahead" if steps == 1 else f"{steps} steps ahead"
        for kind, (what, columns) in _KINDS.items():
            cells = {name: _cells(row, windows, columns, steps, seed) for name, row in rows.items()}
            shown = tuple(
                c for c in columns if any(of_row.get(c.key) is not None for of_row in cells.values())
            )
            tables.append(
                Table(
                    name=f"{kind}-{steps}",
                    title=f"PushT prediction, {far}: {what}",
                    columns=(*shown, *_COST_COLUMNS),
                    rows=cells,
                    notes=_notes(kind, steps),
                )
            )
    return tables


def _notes(kind: str, steps: int) -> tuple[str, ...]:
    interval = "95 % bootstrap intervals over episodes; sampled rows are the mean over the sampling seeds"
    if kind == "picture":
        return (interval,) if steps == 1 else (interval, f"mean over the {steps} predicted frames")
    read = (
        "read by a pose reader that was trained on true frames and is part of no reward"
        if kind == "pose"
        else "read by the model's tokenizer; no picture"
    )
    last = () if steps == 1 else (f"pose error of frame {steps}",)
    return (interval, read, "seconds and tokens are those of the whole rollout", *last)


def _cells(row: Row, windows: Windows, columns: Sequence[Column], steps: int, seed: int) -> dict[str, Cell]:
    cells: dict[str, Cell] = {
        column.key: estimate(row, windows, column.key, steps, seed=seed) for column in columns
    }
    return cells | {
        "windows": len(windows),
        "n": len(set(windows.units)),
        "seed": ", ".join(map(str, row.seeds)) or None,
        "seconds": row.seconds,
        "tokens": row.tokens,
    }


def case_values(row: Row, windows: Windows, key: str, steps: int) -> tuple[Floats, list[str]] | None:
    """One value per window (or per moved window, for ``<metric>/moved``), and the windows' episodes.

    Pictures are averaged over frames 1 .. ``steps``; poses are those of frame ``steps``. None where there is no value.
    """
    metric, _, moved = key.partition("/")
    values = row.metrics.get(metric)
    if values is None or (metric == "vgg" and steps > 1) or (metric == "repetition" and steps == 1):
        return None
    if metric == "repetition":
        of_case = values[:, 1:steps].mean(axis=1)
    elif metric in _OF_REWARD:
        of_case = values[:, :steps].mean(axis=1)
    else:
        of_case = values[:, steps - 1]
    chosen = windows.moved()[:, steps - 1] if moved else np.ones(len(windows), dtype=bool)
    if not chosen.any():
        return None
    units = [unit for unit, wanted in zip(windows.units, chosen, strict=True) if wanted]
    # VGG is measured on the first windows only.
    return (of_case[chosen], units) if len(of_case) == len(chosen) else (of_case, units[: len(of_case)])


def estimate(row: Row, windows: Windows, key: str, steps: int, *, seed: int) -> Estimate | None:
    """The mean of ``case_values`` with its interval."""
    cases = case_values(row, windows, key, steps)
    return None if cases is None else bootstrap_mean(cases[0], units=cases[1], seed=seed)


def best_of_table(
    best: Mapping[str, BestOf], sizes: Sequence[int], units: Sequence[str], *, seed: int
) -> Table:
    """LPIPS of the sample with the highest reward among N, averaged over disjoint groups of N samples."""
    rows: dict[str, dict[str, Cell]] = {}
    for name, samples in best.items():
        count = samples.reward.shape[1]
        for size in sizes:
            grouped = samples.reward.reshape(len(units), -1, size)
            chosen = grouped.argmax(axis=2)[..., None]
            lpips = np.take_along_axis(samples.lpips.reshape(grouped.shape), chosen, axis=2)
            rows[f"{name}, best of {size}"] = {
                "lpips": bootstrap_mean(lpips.mean(axis=(1, 2)), units=units, seed=seed),
                "reward": bootstrap_mean(grouped.max(axis=2).mean(axis=1), units=units, seed=seed),
                "windows": len(units),
                "n": len(set(units)),
                "seconds": samples.seconds * size / count,
                "tokens": size * samples.tokens_per_frame * len(units),
            }
    return Table(
        name="best-of-n",
        title="PushT prediction, 1 step ahead: the best of N samples by the reward",
        columns=(
            Column(key="lpips", title="LPIPS x100", scale=100),
            Column(key="reward", title="reward x100", scale=100),
            *(column for column in _COST_COLUMNS if column.key != "seed"),
        ),
        rows=rows,
        notes=("the best of N knows the recorded frame: an upper bound, and the price of one-shot quality",),
    )


def difference_table(
    rows: Mapping[str, Row],
    windows: Windows,
    pairs: Sequence[tuple[str, str]],
    reward: FrameRewardConfig,
    *,
    seed: int,
) -> Table:
    """First minus second on the same windows, for every metric."""
    cells: dict[str, dict[str, Cell]] = {}
    metrics = [column.key for _, columns in _KINDS.values() for column in columns]
    for first, second in pairs:
        for steps in sorted({1, windows.horizon}):
            for mode in ("sampled", "greedy"):
                a, b = (rows[f"{name}, {mode}"] for name in (first, second))
                for key in metrics:
                    mine, other = (case_values(row, windows, key, steps) for row in (a, b))
                    if mine is None or other is None:
                        continue
                    difference = paired_bootstrap(mine[0], other[0], units=mine[1], seed=seed)
                    cells[f"{first} - {second}, {steps} step{'s' * (steps > 1)}, {mode}: {key}"] = {
                        "difference": difference,
                        "verdict": difference.verdict(higher_is_better=key in _HIGHER_IS_BETTER),
                        "rewarded": "yes" if _rewarded(key, reward) else "no",
                    }
    return Table(
        name="differences",
        title="PushT prediction: paired differences",
        columns=(
            Column(key="difference", title="difference", digits=None, show_n=True),
            Column(key="verdict", title="first is"),
            Column(key="rewarded", title="rewarded"),
        ),
        rows=cells,
        notes=("95 % paired bootstrap over episodes, metrics in their own units (not x100)",),
    )


# The endpoint, and the one unrewarded measure that says most; all others are in the full table.
HEADLINES = ("lpips", "block_px/moved")


def _rewarded(metric: str, reward: FrameRewardConfig) -> bool:
    part = _REWARDED_BY.get(metric)
    return part is not None and getattr(reward, part) > 0


def gate_losses(model: ObjectWorldModel, data: PushTData) -> dict[str, float | None]:
    """Losses on tokens of the first episodes, with the recorded actions and with those of other episodes."""
    few = slice(0, _GATE_EPISODES)
    chosen = replace(
        data,
        ids=data.ids[few],
        states=data.states[few],
        proprio=data.proprio[few],
        actions=data.actions[few],
    )
    tokens = tokenise(model.tokenizer, model.dynamics.layout, chosen)
    frames = min(model.window_frames, tokens.tokens.shape[1])
    found = gates(model.dynamics, tokens, window_frames=frames, limit=len(chosen))
    found["gap"] = found["shuffled_code_nll"] - found["code_nll"]
    shown = {key: found.get(key, math.nan) for key in ("code_nll", "changed_nll", "gap", "stem_moved_px")}
    # No token changed, or no block moved, in these few episodes: there is no number then.
    return {key: value if math.isfinite(value) else None for key, value in shown.items()}


def gate_table(
    losses: Mapping[str, Mapping[str, float | None]], rows: Mapping[str, Row], windows: Windows, *, seed: int
) -> Table:
    """What a model must show before anything is built on it: better than copying, and listening to actions."""
    cells: dict[str, dict[str, Cell]] = {}
    copied = rows["copy last frame"]
    columns = []
    for steps in _GATE_STEPS:
        if steps <= windows.horizon:
            columns += [
                Column(key=f"block-{steps}", title=f"moved, step {steps}: block px", digits=1, show_n=True),
                Column(key=f"angle-{steps}", title=f"moved, step {steps}: angle deg", digits=1),
            ]
    for name, row in {"copy last frame": copied, **{n: rows[f"{n}, greedy"] for n in losses}}.items():
        cells[name] = {}
        for steps in _GATE_STEPS:
            if steps <= windows.horizon:
                cells[name][f"block-{steps}"] = estimate(row, windows, "block_px/moved", steps, seed=seed)
                cells[name][f"angle-{steps}"] = estimate(row, windows, "angle_deg/moved", steps, seed=seed)
    for name, found in losses.items():
        cells[name] |= found
    return Table(
        name="gates",
        title="PushT gates: better than copying, and listening to actions",
        columns=(
            *columns,
            Column(key="code_nll", title="code NLL"),
            Column(key="changed_nll", title="changed codes NLL"),
            Column(key="gap", title="NLL gap, shuffled actions"),
            Column(key="stem_moved_px", title="stem, moved: block px", digits=1),
        ),
        rows=cells,
        notes=(
            "pose errors of greedy predictions on cases in which the block moved; losses in nats per token",
        ),
    )
