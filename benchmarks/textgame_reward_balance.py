"""Which reward, and how many questions where nothing changes: GRPO of the text-game base model in all four ways.

.venv/bin/python benchmarks/textgame_reward_balance.py --data data/textgame

The paper post-trains with a binary and with a shaped reward, on different balances of changed and unchanged questions,
and does not take the two apart. Here: reward (exact, property) x unchanged questions per 100 changed ones (40, 5), from
the same checkpoint, with the same number of steps and three seeds each. The changed questions are those that the recipe
asks (training.text_chance), the unchanged ones are of all that there are. Prints one table over validation transitions
and writes benchmarks/results/textgame-reward-balance.json. Finished runs are kept in --folder.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console

from training.grpo_task import train_task
from training.provenance import weights_sha256
from training.report import Column, Report, Table, manifest
from training.run import Run
from training.statistics import bootstrap_mean, paired_bootstrap
from training.text_chance import uncertain
from training.text_data import TextRows, load_rows
from training.text_slot_rlvr import SlotTask
from training.text_slots import answers_to, slot_world
from training.textgame_recipes import RLVR, UNCERTAIN
from worldmodels.language.slot_model import SlotModel

REWARDS = ("exact", "property")
BALANCES = (40, 5)  # unchanged questions for every 100 changed ones
GROUPS = ("all", "unchanged", "changed")


def right(model: SlotModel, rows: TextRows, temperature: float) -> np.ndarray:
    """Whether each row's next state is exactly right, 0 or 1; at temperature 1 the mean over three draws."""
    seeds = (0, 1, 2) if temperature else (0,)
    numbers = list(range(len(rows)))
    found = [
        [
            answer.state == row.after
            for answer, row in zip(
                answers_to(model, rows, numbers, temperature=temperature, seed=seed), rows.rows, strict=True
            )
        ]
        for seed in seeds
    ]
    return np.mean(np.array(found, dtype=np.float64), axis=0)


def main(
    data: Path = Path("data/textgame"),
    base: str = "textgame-base",
    folder: Path = Path("runs/textgame-reward-balance"),
    steps: int = 100,
    seeds: tuple[int, ...] = (0, 1, 2),
    rows: int = 2000,
    threads: int = 1,
) -> None:
    """Train, measure and print.

    Args:
        data: Transitions, made by 'rlvr-world collect textgame'.
        base: World model to post-train.
        folder: Where runs are kept.
        steps: GRPO steps of every run.
        seeds: Of batches and samples.
        rows: Validation transitions that are measured.
        threads: Threads of everything.
    """
    torch.set_num_threads(threads)
    model = slot_world(base).model
    prompts, digest = load_rows(data, "posttrain")
    train = _questions(
        model, TextRows.of(prompts, model.vocabulary, model.schema, max_answer=model.max_answer)
    )
    validation_rows, validation_digest = load_rows(data, "validation")
    kept = [validation_rows[n] for n in np.linspace(0, len(validation_rows) - 1, rows).astype(int)]
    validation = TextRows.of(kept, model.vocabulary, model.schema, max_answer=model.max_answer)
    changed = np.array([row.after != row.before for row in validation.rows])
    units = [row.episode for row in validation.rows]
    before = {t: right(model, validation, t) for t in (1.0, 0.0)}
    table: dict[str, dict[str, Any]] = {"base": _cells(before, None, changed, units)}
    for reward in REWARDS:
        for balance in BALANCES:
            after: dict[float, list[np.ndarray]] = {1.0: [], 0.0: []}
            for seed in seeds:
                model = _post_trained(base, train, folder, reward, balance, steps, seed, digest)
                for temperature, found in after.items():
                    found.append(right(model, validation, temperature))
            means = {t: np.mean(found, axis=0) for t, found in after.items()}
            spread = float(np.std([found.mean() for found in after[1.0]], ddof=1)) if len(seeds) > 1 else None
            table[f"{reward}, {balance} per 100"] = {
                **_cells(means, before, changed, units),
                "spread": spread,
            }
    report = Report(
        name="textgame-reward-balance",
        tables=(_table(table, steps, len(seeds)),),
        manifest=manifest(
            protocol={
                "task": "text games: reward and balance of post-training",
                "recipe": RLVR,
                "questions": "changed: the recipe's; unchanged: all",
                "steps": steps,
                "seeds": seeds,
                "rows": rows,
            },
            weights={base: weights_sha256(slot_world(base).model)},
            data={"folder": data.name, "posttrain": digest, "validation": validation_digest},
        ),
    )
    report.show(Console(width=200))
    report.write()


def _table(rows: dict[str, dict[str, Any]], steps: int, seeds: int) -> Table:
    per_cent = partial(Column, scale=100)
    return Table(
        name="balance",
        title=f"Text games: {steps} steps of GRPO, exactly right next states",
        columns=(
            *(per_cent(key=f"1.0/{g}", title=f"sampled, {g} %", digits=1) for g in GROUPS),
            *(per_cent(key=f"0.0/{g}", title=f"greedy, {g} %", digits=1) for g in GROUPS),
            *(per_cent(key=f"gain/{g}", title=f"gain over base, sampled, {g}", digits=2) for g in GROUPS),
            per_cent(key="spread", title="sd over seeds, sampled, all", digits=2),
        ),
        rows=rows,
        notes=(
            f"mean over {seeds} training seeds; 95 % bootstrap intervals over ways through a game, which do not"
            " hold the spread over training seeds",
        ),
    )


def _questions(model: SlotModel, rows: TextRows) -> TextRows:
    """All rows that change nothing, and those of the others whose answer the model is unsure of."""
    unsure = set(uncertain(model, rows, UNCERTAIN))
    return rows.select([n for n, row in enumerate(rows.rows) if row.after == row.before or n in unsure])


def _post_trained(
    base: str,
    train: TextRows,
    folder: Path,
    reward: Any,
    balance: int,
    steps: int,
    seed: int,
    digest: str,
) -> SlotModel:
    model = slot_world(base).model
    grpo = dataclasses.replace(RLVR.grpo, steps=steps, eval_every=0)
    recipe = dataclasses.replace(RLVR, grpo=grpo, reward=reward, unchanged_per_100=balance)
    identity = {"rlvr": recipe, "base": weights_sha256(model)}
    run = Run(folder / f"{reward}-{balance}-{seed}", identity, seed, data_hash=digest, resume=True)
    task = SlotTask(model, train, recipe)
    train_task(run, model, task, task, grpo, seed=seed)
    return model.eval()


def _cells(
    found: dict[float, np.ndarray],
    base: dict[float, np.ndarray] | None,
    changed: np.ndarray,
    units: list[str],
) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for group, mask in (("all", np.ones_like(changed)), ("unchanged", ~changed), ("changed", changed)):
        own = [unit for unit, wanted in zip(units, mask, strict=True) if wanted]
        for temperature, values in found.items():
            cells[f"{temperature}/{group}"] = bootstrap_mean(values[mask], units=own)
        if base is not None:
            cells[f"gain/{group}"] = paired_bootstrap(found[1.0][mask], base[1.0][mask], units=own)
    return cells


if __name__ == "__main__":
    tyro.cli(main)
