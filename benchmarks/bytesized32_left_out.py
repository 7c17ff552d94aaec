"""ByteSized32 with whole games left out: what a small model knows of games that it has not seen.

rlvr-world train textgame-bytesized32 --data data/bytesized32
rlvr-world train textgame-bytesized32-fold-1 --data data/bytesized32   (and -2, -3)
.venv/bin/python benchmarks/bytesized32_left_out.py --data data/bytesized32

Every test row of the 21 games of the three folds is answered by the model that was trained without its game, and
beside it by the one that was trained on all games. Prints one table and writes
benchmarks/results/bytesized32-left-out.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console

from training.provenance import weights_sha256
from training.report import Column, Report, Table, manifest
from training.statistics import bootstrap_mean
from training.text_baselines import TextPredictor, nothing_changes, perfect
from training.text_data import load_rows
from training.text_slots import slot_world
from training.textgame_evaluate import dreamt, measured
from training.textgame_recipes import FOLDS
from worldmodels.language.transitions import GameTransition

SEEDS = (0, 1, 2)
METRICS = {"exact": "exact %", "official": "official %"}


def scores(rows: list[GameTransition], predict: TextPredictor) -> dict[str, np.ndarray]:
    """Rewards ``(N,)`` of predictions."""
    numbers = range(len(rows))
    said = [
        state
        for at in range(0, len(rows), 256)
        for state in predict(rows[at : at + 256], numbers[at : at + 256])
    ]
    return {key: np.array(values)[:, 0] for key, values in measured(said, rows).items()}


def mean_scores(rows: list[GameTransition], name: str) -> dict[str, dict[str, np.ndarray]]:
    """Of a world model, greedy and sampled (the mean over seeds)."""
    world = slot_world(name)
    greedy = scores(rows, dreamt(world, temperature=0.0, seed=0))
    drawn = [scores(rows, dreamt(world, temperature=1.0, seed=seed)) for seed in SEEDS]
    return {
        "greedy": greedy,
        "sampled": {key: np.mean([each[key] for each in drawn], axis=0) for key in greedy},
    }


def main(
    data: Path = Path("data/bytesized32"),
    everything: str = "runs/textgame-bytesized32/model",
    folds: tuple[str, ...] = tuple(f"runs/textgame-bytesized32-fold-{fold}/model" for fold in FOLDS),
    threads: int = 1,
) -> None:
    """Answer, score and print.

    Args:
        data: Folder with the data set's files.
        everything: The model that was trained on all games.
        folds: The models that were trained without the games of fold 1, 2 and 3, in this order.
        threads: Threads of everything.

    Raises:
        ValueError: There is not one model for each fold.
    """
    if len(folds) != len(FOLDS):
        raise ValueError(f"--folds names {len(folds)} models; give one for each of the folds {list(FOLDS)}")
    torch.set_num_threads(threads)
    asked, digest = load_rows(data, "test")
    parts: dict[str, list[dict[str, np.ndarray]]] = {}
    rows: list[GameTransition] = []
    for games, model in zip(FOLDS.values(), folds, strict=True):
        own = [row for row in asked if row.game in games]
        rows += own
        found = {"nothing changes": scores(own, nothing_changes), "perfect difference": scores(own, perfect)}
        for title, name in (("game left out", model), ("game seen", everything)):
            found |= {f"{title}, {mode}": values for mode, values in mean_scores(own, name).items()}
        for title, values in found.items():
            parts.setdefault(title, []).append(values)
    changed = np.array([row.after != row.before for row in rows])
    groups = {"all": np.ones_like(changed), "unchanged": ~changed, "changed": changed}
    cells: dict[str, dict[str, Any]] = {}
    for title, found in parts.items():
        joined = {key: np.concatenate([each[key] for each in found]) for key in found[0]}
        cells[title] = {
            f"{metric}/{group}": bootstrap_mean(
                joined[metric][mask],
                units=[row.game for row, wanted in zip(rows, mask, strict=True) if wanted],
            )
            for metric in METRICS
            for group, mask in groups.items()
        } | {"unread": float(joined["unread"].mean())}
    table = Table(
        name="left-out",
        title=f"Next states of {len({row.game for row in rows})} games of ByteSized32, each left out of one training",
        columns=(
            *(
                Column(
                    key=f"{metric}/{group}",
                    title=f"{text}, {group} (n={int(mask.sum())})",
                    digits=1,
                    scale=100,
                )
                for metric, text in METRICS.items()
                for group, mask in groups.items()
            ),
            Column(key="unread", title="unreadable %", digits=2, scale=100),
        ),
        rows=cells,
        notes=(
            "95 % bootstrap intervals over games; sampled rows are the mean over three sampling seeds",
            "nearest neighbours are among rows of the same game, so that a game left out has none: nothing changes",
        ),
    )
    weights = {name: weights_sha256(slot_world(name).model) for name in (everything, *folds)}
    report = Report(
        name="bytesized32-left-out",
        tables=(table,),
        manifest=manifest(
            protocol={"task": "bytesized32: games left out", "folds": FOLDS, "seeds": SEEDS},
            weights={Path(name).parent.name: digest for name, digest in weights.items()},
            data={"folder": data.name, "test": digest},
        ),
    )
    report.show(Console(width=200))
    report.write()


if __name__ == "__main__":
    tyro.cli(main)
