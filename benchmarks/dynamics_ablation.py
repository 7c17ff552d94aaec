"""What the stem brings: the same decoder, data and number of steps, without it, with it, and with it trained
first.

.venv/bin/python benchmarks/dynamics_ablation.py --data data/pusht --steps 2400

Prints one table of validation figures and writes benchmarks/results/dynamics-ablation.json. An interrupted
run goes on when called again.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
import tyro
from rich.console import Console

from training.data import PushTData, pose_errors
from training.fit import seeded
from training.mle import TokenData, gates, tokenise, train_mle
from training.pusht_recipes import BASE, DYNAMICS, STEM
from training.report import Column, Report, Table, manifest, model_sha256, source_of
from training.run import Run
from training.statistics import bootstrap_mean
from training.stem import train_stem
from worldmodels.checkpoints import load_global_tokenizer
from worldmodels.episodes import EpisodeStore
from worldmodels.video.object_dynamics import ObjectDynamics
from worldmodels.video.object_world import ObjectWorldModel
from worldmodels.video.slots import SlotLayout

VARIANTS = ("plain decoder", "stem, trained with the rest", "stem, trained first")
MOVED_PX, MOVED_DEG = 10.0, 10.0


@torch.no_grad()
def moved_errors(model: ObjectWorldModel, data: TokenData, *, steps: int) -> dict[str, np.ndarray]:
    """Greedy rollouts from 3 frames: block error in px, read from the tokens, where the block moved; one row each."""
    count = len(data)
    state = model.start_tokens(data.tokens[:, :3], data.actions[:, :2], torch.arange(count))
    for step in range(steps):
        state, predictions = model.step(state, data.actions[:, 2 + step].numpy(), temperature=0.0)
    truth, before = data.true_poses[:, 2 + steps], data.true_poses[:, 2]
    distance, angle = pose_errors(model.pose(predictions.tokens), truth)
    shift, turn = pose_errors(before, truth)
    moved = (shift > MOVED_PX) | (turn > MOVED_DEG)
    return {"model": distance[moved].numpy(), "copy": shift[moved].numpy(), "angle": angle[moved].numpy()}


def main(
    data: Path = Path("data/pusht"), steps: int = 2400, folder: Path = Path("runs/ablation"), seed: int = 0
) -> None:
    """Train the variants and print the table.

    Args:
        data: Folder of episodes.
        steps: Maximum likelihood steps of every variant.
        folder: Run folder.
        seed: Of weights and batches.
    """
    torch.set_num_threads(1)
    store = EpisodeStore(data)
    tokenizer = load_global_tokenizer("pusht-tokenizer")
    layout = SlotLayout(num_codes=tokenizer.config.num_tokens, code_levels=tuple(tokenizer.config.levels))
    train, validation = (
        tokenise(tokenizer, layout, PushTData.load(store, split), cache=store.folder / "cache")
        for split in ("train", "validation")
    )
    recipe = dataclasses.replace(BASE, fit=dataclasses.replace(BASE.fit, steps=steps))
    rows, weights = {}, {}
    for variant in VARIANTS:
        config = dataclasses.replace(DYNAMICS, use_stem=variant != VARIANTS[0])
        dynamics: ObjectDynamics = seeded(lambda config=config: ObjectDynamics(config, layout), seed)
        slug = variant.replace(", ", "-").replace(" ", "-")
        if variant == VARIANTS[2]:
            run = Run(folder / f"{slug}-stem", STEM, seed, data_hash=store.digest(), resume=True)
            train_stem(run, dynamics, train, validation, STEM, seed=seed)
            dynamics.stem.freeze_motion()
        run = Run(
            folder / slug, {"dynamics": config, "mle": recipe}, seed, data_hash=store.digest(), resume=True
        )
        train_mle(run, dynamics, train, validation, recipe, seed=seed)
        model = ObjectWorldModel(tokenizer, dynamics)
        weights[variant] = model_sha256(model)
        losses = gates(dynamics, validation, window_frames=recipe.window_frames, limit=len(validation))
        one, five = (moved_errors(model, validation, steps=count) for count in (1, 5))
        rows[variant] = {
            "code_nll": losses["code_nll"],
            "changed_nll": losses["changed_nll"],
            "gap": losses["shuffled_code_nll"] - losses["code_nll"],
            "one": bootstrap_mean(one["model"], seed=0),
            "five": bootstrap_mean(five["model"], seed=0),
        }
        rows["copy last frame"] = {
            "one": bootstrap_mean(one["copy"], seed=0),
            "five": bootstrap_mean(five["copy"], seed=0),
        }
    table = Table(
        name="ablation",
        title=f"PushT dynamics after {steps} steps of maximum likelihood, validation",
        columns=(
            Column(key="code_nll", title="code loss"),
            Column(key="changed_nll", title="loss on changed codes"),
            Column(key="gap", title="loss added by shuffled actions"),
            Column(key="one", title="block px, 1 step, moved", digits=1, show_n=True),
            Column(key="five", title="block px, 5 steps, moved", digits=1, show_n=True),
        ),
        rows=rows,
        notes=(
            "losses in nats per code; px from greedy rollouts, read from the tokens, with a bootstrap interval",
            "one training seed; the stem that is trained first gets its own minutes in addition",
        ),
    )
    protocol = {"task": "pusht dynamics ablation", "steps": steps, "seed": seed, "mle": recipe, "stem": STEM}
    report = Report(
        name="dynamics-ablation",
        tables=(table,),
        manifest=manifest(protocol=protocol, weights=weights, data=source_of(store, "validation")),
    )
    report.show(Console(width=150))
    report.write()


if __name__ == "__main__":
    tyro.cli(main)
