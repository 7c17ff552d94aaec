"""ByteSized32 with whole games left out: what a small model knows of games that it has not seen.

rlvr-world train textgame-bytesized32 --data data/bytesized32
rlvr-world train textgame-bytesized32-fold-1 --data data/bytesized32   (and -2, -3)
.venv/bin/python benchmarks/bytesized32_left_out.py --data data/bytesized32

Every test row of the 21 games of the three folds is answered by the model that was trained without its game, and
beside it by the one that was trained on all games. Prints one table and writes
benchmarks/results/bytesized32-left-out.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from rich.console import Console

from training.provenance import weights_sha256
from training.report import Column, Report, Table, manifest
from training.rows import blocks
from training.text_baselines import TextPredictor, TrainingTable, nothing_changes, perfect
from training.text_data import load_learnt, load_rows
from training.text_slots import slot_world
from training.textgame_evaluate import dreamt, measured, metric_cells, metric_columns
from training.textgame_recipes import FOLDS
from worldmodels.language.slot_world import SlotWorldModel
from worldmodels.language.transitions import GameTransition

SEEDS = (0, 1, 2)


def checked_fold(run: Path, games: tuple[str, ...]) -> str:
    """The model of a run that was trained without these games.

    Raises:
        ValueError: The run left out other games, or is none.
    """
    manifest_file = run / "manifest.json"
    if not manifest_file.is_file():
        raise ValueError(f"{run} holds no run; train it first: rlvr-world train textgame-bytesized32-fold-N")
    left_out = json.loads(manifest_file.read_text(encoding="utf-8"))["config"].get("left out")
    if left_out != list(games):
        raise ValueError(
            f"{run} was trained without {left_out}; give the run that was trained without {list(games)}"
        )
    return str(run / "model")


def scores(rows: list[GameTransition], predict: TextPredictor) -> dict[str, NDArray[np.float64]]:
    """Rewards ``(N,)`` of predictions."""
    said = [
        state
        for numbers in blocks(len(rows), 256).values()
        for state in predict([rows[number] for number in numbers], numbers)
    ]
    return {key: np.array(values)[:, 0] for key, values in measured(said, rows).items()}


def model_scores(
    rows: list[GameTransition], world: SlotWorldModel
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Of a world model, greedy and sampled (the mean over seeds)."""
    drawn = [scores(rows, dreamt(world, temperature=1.0, seed=seed)) for seed in SEEDS]
    return {
        "greedy": scores(rows, dreamt(world, temperature=0.0, seed=0)),
        "sampled": {key: np.mean([each[key] for each in drawn], axis=0) for key in drawn[0]},
    }


def main(
    data: Path = Path("data/bytesized32"),
    everything: Path = Path("runs/textgame-bytesized32"),
    folds: tuple[Path, ...] = tuple(Path(f"runs/textgame-bytesized32-fold-{fold}") for fold in FOLDS),
    threads: int = 1,
) -> None:
    """Answer, score and print.

    Args:
        data: Folder with the data set's files.
        everything: The run on all games.
        folds: The runs without the games of fold 1, 2 and 3, in this order.
        threads: Threads of everything.

    Raises:
        ValueError: There is not one run for each fold, or one left out other games.
    """
    if len(folds) != len(FOLDS):
        raise ValueError(f"--folds names {len(folds)} runs; give one for each of the folds {list(FOLDS)}")
    torch.set_num_threads(threads)
    whole = slot_world(checked_fold(everything, ()))
    without = [slot_world(checked_fold(run, games)) for run, games in zip(folds, FOLDS.values(), strict=True)]
    asked, digest = load_rows(data, "test")
    learnt, digests = load_learnt(data)
    known = TrainingTable(learnt)
    parts: dict[str, list[dict[str, NDArray[np.float64]]]] = {}
    rows: list[GameTransition] = []
    for games, world in zip(FOLDS.values(), without, strict=True):
        own = [row for row in asked if row.game in games]
        rows += own
        found = {"nothing changes": scores(own, nothing_changes)}
        for title, model in (("game left out", world), ("game seen", whole)):
            found |= {f"{title}, {mode}": values for mode, values in model_scores(own, model).items()}
        found |= {
            "game seen, lookup in training": scores(own, known.lookup),
            "game seen, nearest neighbour": scores(own, known.neighbour),
            "perfect difference": scores(own, perfect),
        }
        for title, values in found.items():
            parts.setdefault(title, []).append(values)
    changed = np.array([row.after != row.before for row in rows])
    masks = {"all": np.ones_like(changed), "unchanged": ~changed, "changed": changed}
    cells: dict[str, dict[str, Any]] = {}
    for title, of_folds in parts.items():
        joined = {key: np.concatenate([each[key] for each in of_folds]) for key in of_folds[0]}
        games_of = [row.game for row in rows]
        cells[title] = {**metric_cells(joined, masks, games_of), "unread": float(joined["unread"].mean())}
    table = Table(
        name="left-out",
        title=f"Next states of {len({row.game for row in rows})} games of ByteSized32, each left out of one training",
        columns=(*metric_columns(masks), Column(key="unread", title="unreadable %", digits=2, scale=100)),
        rows=cells,
        notes=(
            "95 % bootstrap intervals over games; sampled rows are the mean over three sampling seeds",
            "lookup and nearest neighbour take rows of the same game: of a game left out they would change nothing",
        ),
    )
    worlds = zip((everything, *folds), (whole, *without), strict=True)
    report = Report(
        name="bytesized32-left-out",
        tables=(table,),
        manifest=manifest(
            protocol={"task": "bytesized32: games left out", "folds": FOLDS, "seeds": SEEDS},
            weights={run.name: weights_sha256(world.model) for run, world in worlds},
            data={"folder": data.name, "test": digest, **digests},
        ),
    )
    report.show(Console(width=200))
    report.write()


if __name__ == "__main__":
    tyro.cli(main)
