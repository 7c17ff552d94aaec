"""``rlvr-world collect``: make training data with the simulators and say what is in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from training.commands.console import console, on_interrupt, show_table, use_threads

if TYPE_CHECKING:
    from worldmodels.episodes import EpisodeStore


def collect(
    dataset: Positional[Literal["pusht", "drawer", "textgame"]],
    *,
    episodes: int = 1000,
    folder: Path | None = None,
    world_model: str | None = None,
    seed: int = 0,
    processes: int = 2,
    threads: int = 1,
) -> None:
    """Make episodes with the true simulator. Interrupted, the same command goes on.

    Args:
        dataset: Which data.
        episodes: How many, rounded up to whole blocks (of 128, drawer: 32). A larger number later adds to the same
            folder. Text games: ways through each game in the training file; the other files have their shares.
        folder: Where to; None: data/DATASET.
        world_model: Text games only: write two files more, with what searches in this model ask and what truly
            happens, for training it again. Files that are there stay, whichever model they are from.
        seed: Of everything that is random; the data do not depend on the number of processes.
        processes: Worker processes; text games are made by one.
        threads: Threads of each.
    """
    use_threads(threads)
    for name, value in (("--episodes", episodes), ("--processes", processes)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    folder = folder or Path("data") / dataset
    if dataset == "textgame":
        collect_text(folder, episodes, seed, world_model)
        return
    if world_model is not None:
        raise ValueError(f"--world-model is {world_model!r}; only text games are collected with a model")
    with on_interrupt(f"finished blocks are kept in {folder}; run the same command again to go on"):
        if dataset == "pusht":
            from training.collect import CollectConfig
            from training.collect import collect as collect_pusht

            store = collect_pusht(folder, CollectConfig(episodes=episodes, seed=seed, processes=processes))
        else:
            from training.collect_drawer import DrawerCollectConfig, collect_drawer

            store = collect_drawer(
                folder, DrawerCollectConfig(episodes=episodes, seed=seed, processes=processes)
            )
    (report if dataset == "pusht" else report_drawer)(store)
    show_splits(store)
    console.print(f"data: {store.folder} ({len(store)} episodes, digest {store.digest()})")


def collect_text(folder: Path, episodes: int, seed: int, world_model: str | None) -> None:
    """Make transitions of the text games, a file for each split, or those that a model is asked by searches."""
    from training.text_data import (
        LEARNT_SPLITS,
        SPLITS,
        TextCollectConfig,
        collect_mistaken,
        collect_text_games,
        load_rows,
    )
    from training.text_slots import slot_world

    if seed:
        raise ValueError(
            f"--seed is {seed}; text games are numbered variations and have no seed, leave it at 0"
        )
    with on_interrupt(f"finished files are kept in {folder}; run the same command again to go on"):
        config = TextCollectConfig(variations=episodes)
        if world_model is None:
            collect_text_games(folder, config)
        else:
            collect_mistaken(folder, slot_world(world_model), config)
    rows = []
    for split in SPLITS if world_model is None else LEARNT_SPLITS:
        found, digest = load_rows(folder, split)
        changed = sum(row.after != row.before for row in found)
        rows.append(
            (split, len(found), f"{changed / len(found):.0%}", len({row.game for row in found}), digest)
        )
    show_table("Transitions", ("split", "rows", "changed", "games", "digest"), rows)
    console.print(f"data: {folder}")


def report(store: EpisodeStore) -> None:
    """Print how often the block moved, per kind of behaviour."""
    from training.collect import MIX, moved

    by_kind: dict[str, list[str]] = {}
    for episode_id in store.ids():
        named = re.fullmatch(r"pusht-\d+-(\d{5,})-\d{3}", episode_id)  # seed, block, row
        kind: str = MIX[int(named[1]) % len(MIX)] if named else "(made elsewhere)"
        by_kind.setdefault(kind, []).append(episode_id)
    rows = []
    for kind, ids in sorted(by_kind.items()):
        steps = moved(store.stack("info.state", ids))
        rows.append((kind, len(ids), f"{steps.mean():.0%}", f"{steps.any(axis=1).mean():.0%}"))
    show_table(
        "How often the block moves", ("behaviour", "episodes", "of the steps", "at all in an episode"), rows
    )


def report_drawer(store: EpisodeStore) -> None:
    """Print how far the drawers moved and how often the task was fulfilled at the end, per kind of behaviour."""
    import numpy as np

    from rlvr_envs.drawer_rules import OPENINGS, TASKS, succeeded
    from training.collect_drawer import KIND_NAMES

    tasks = list(TASKS.values())
    by_kind: dict[str, list[tuple[float, float, bool]]] = {}
    for episode in store:
        states = np.asarray(episode.info["state"])
        task = tasks[int(episode.info["task"][0])]
        travel = np.abs(np.diff(states[:, OPENINGS], axis=0)).sum(axis=0)
        own = float(travel[task.column - OPENINGS.start])
        ended = bool(succeeded(states[-1], task))
        kind = KIND_NAMES[int(episode.info["kind"][0])]
        by_kind.setdefault(kind, []).append((own, float(travel.sum()) - own, ended))
    rows = []
    for kind, episodes in sorted(by_kind.items()):
        own, others, ended = np.array(episodes, dtype=float).mean(axis=0)
        rows.append((kind, len(episodes), f"{own:.2f} m", f"{others:.2f} m", f"{ended:.0%}"))
    show_table(
        "How far drawers travel in an episode",
        ("behaviour", "episodes", "the task's drawer", "the others", "task fulfilled at the end"),
        rows,
    )


def show_splits(store: EpisodeStore) -> None:
    """Print the sizes of the splits."""
    from worldmodels.episodes import SPLITS

    show_table("Splits", ("split", "episodes"), [(split, len(store.ids(split))) for split in SPLITS])
