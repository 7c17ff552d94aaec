"""``rlvr-world train``: run a recipe."""

from __future__ import annotations

import logging
from pathlib import Path

from tyro.conf import Positional

from training.commands.console import choose, console, on_interrupt, use_threads


def train(
    recipe: Positional[str],
    *,
    data: Path | None = None,
    folder: Path | None = None,
    resume: bool = False,
    seed: int = 0,
    steps: int | None = None,
    reader: str | None = None,
    tokenizer: str | None = None,
    base: str | None = None,
    device: str = "cpu",
    threads: int = 1,
) -> None:
    """Train a model by a recipe (see 'rlvr-world list'). Interrupted, --resume goes on.

    Args:
        recipe: Name of the recipe; underscores serve as hyphens.
        data: Folder of episodes, made by 'rlvr-world collect'; None: data/ and the first word of the recipe's name.
        folder: Run folder, with metrics, checkpoints and, at the end, the model; None: runs/RECIPE.
        resume: Go on with the run that the folder holds.
        seed: Of weights and batches.
        steps: Number of steps, if not the recipe's own.
        reader: Reader that a tokenizer starts from or a world model uses: bundled name, folder or hub id; None: the
            bundled one that the recipe names.
        tokenizer: Tokenizer of a base model: the same.
        base: World model to train further: the same.
        device: Where to train: cpu or cuda.
        threads: Threads to compute with.
    """
    use_threads(threads)
    recipe = recipe.replace("_", "-")
    if steps is not None and steps < 1:
        raise ValueError(f"--steps is {steps}; it must be at least 1")
    import torch

    from training.jobs import Job
    from training.recipes import RECIPES

    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise ValueError(
            f"--device is {device!r}, which is not to be had here; use cpu, or cuda on a machine with a GPU"
        )

    chosen = choose("recipe", recipe, RECIPES)
    folder = folder or Path("runs") / recipe
    # Nothing below a progress bar but what went wrong.
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    job = Job(
        folder=folder,
        data=data or Path("data") / recipe.split("-")[0],
        resume=resume,
        seed=seed,
        steps=steps,
        reader=reader,
        tokenizer=tokenizer,
        base=base,
    )
    with on_interrupt("go on with the same command and --resume"), torch.device(device):
        model = chosen.run(job)
    console.print(f"metrics: {folder / 'metrics.jsonl'}\nmodel: {model}")
