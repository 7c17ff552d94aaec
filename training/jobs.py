"""What every recipe is given and gives back: a job, a run folder, a model card.

Special: a recipe's settings are plain dataclasses built in code; the command line only picks a recipe and a few
overrides. Each ends by writing ``<run folder>/model``, which ``worldmodels.load`` (or a later recipe) takes as it
is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.fit import FitConfig
from training.run import Run, read_metrics, to_json
from worldmodels.checkpoints import find, read_config
from worldmodels.episodes import EpisodeStore
from worldmodels.folders import CARD


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every recipe is given.

    Attributes:
        folder: The run folder.
        data: Folder of an episode store.
        resume: Continue a run that the folder already holds.
        seed: Seed of weights and batches.
        steps: Overrides the recipe's number of steps; None keeps it.
        reader: Checkpoint of a reader; None: the bundled one that the recipe names.
        tokenizer: Checkpoint of a tokenizer, for the base model; None likewise.
        base: Checkpoint of a world model to post-train; None likewise.
    """

    folder: Path
    data: Path
    resume: bool = False
    seed: int = 0
    steps: int | None = None
    reader: str | None = None
    tokenizer: str | None = None
    base: str | None = None


@dataclass(frozen=True)
class Recipe:
    """A training run with a name.

    Attributes:
        description: One line.
        run: Trains on torch's default device and returns the checkpoint folder.
    """

    description: str
    run: Callable[[Job], Path]


def fitted(config: FitConfig, steps: int | None) -> FitConfig:
    """The same settings, with the job's number of steps if it names one."""
    return config if steps is None else dataclasses.replace(config, steps=steps)


_HOURS = "- hours of training: "
OWN_ORIGIN = "Trained by this project's own recipe on its own simulator; MIT licence."


def model_card(title: str, run: Run, facts: Mapping[str, Any], *, origin: str = OWN_ORIGIN) -> str:
    """The model card: where it comes from and under which licence, recipe, seed, data, time, metrics."""
    logs = run.folder.rglob("metrics.jsonl")  # a run may hold others, which came first
    hours = sum(line.get("seconds", 0.0) for log in logs for line in read_metrics(log)) / 3600
    hardware = {key: value for key, value in run.manifest["hardware"].items() if key != "command"}
    lines = [
        f"# {title}",
        "",
        origin,
        "",
        f"- recipe: `{json.dumps(to_json(run.manifest['config']))}`",
        f"- seed: {run.manifest['seed']}",
        f"- data: {run.manifest['data_hash']}",
        f"{_HOURS}{hours:.2f} (hardware: {json.dumps(hardware)})",
        f"- versions: {json.dumps(run.manifest['versions'])}",
        "- validation metrics:",
    ]
    lines += [f"  - {key}: {value:.4g}" for key, value in facts.items()]
    return "\n".join(lines) + "\n"


def training_hours(folder: Path) -> float | None:
    """Hours of the run that a checkpoint is the end of, from its model card; None if that does not say.

    What the run began with, a base model or a tokenizer, had hours of its own.
    """
    card = folder / CARD
    lines = card.read_text(encoding="utf-8").splitlines() if card.is_file() else []
    found = [line.removeprefix(_HOURS).split()[0] for line in lines if line.startswith(_HOURS)]
    return float(found[0]) if found else None


def start_run(job: Job, recipe: Any, store: EpisodeStore) -> Run:
    """The job's run folder; ``recipe`` is all that decides the result, besides seed and data."""
    return Run(job.folder, recipe, job.seed, data_hash=store.digest(), resume=job.resume)


def weights_of(name: str) -> str:
    """Hash of a checkpoint's weights: a run is resumed on the same ones, whatever their path is called."""
    return str(read_config(find(name))["weights_sha256"])


def tokenizer_of(name: str) -> str:
    """What a world model's config calls its tokenizer."""
    return str(read_config(find(name))["tokenizer"])
