"""``rlvr-world collect``: make training data with the simulator and say what is in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from training.commands.console import console, on_interrupt, show_table, use_threads

if TYPE_CHECKING:
    from worldmodels.episodes import EpisodeStore


def collect(
    dataset: Positional[Literal["pusht"]],
    *,
    episodes: int = 1000,
    folder: Path = Path("data/pusht"),
    seed: int = 0,
    processes: int = 2,
    threads: int = 1,
) -> None:
    """Make episodes with the true simulator. Interrupted, the same command goes on.

    Args:
        dataset: Which data.
        episodes: How many, rounded up to whole blocks of 128. A larger number later adds to the same folder.
        folder: Where to.
        seed: Of everything that is random; the data do not depend on the number of processes.
        processes: Worker processes.
        threads: Threads of each.
    """
    use_threads(threads)
    for name, value in (("--episodes", episodes), ("--processes", processes)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    from training.collect import CollectConfig
    from training.collect import collect as collect_episodes

    with on_interrupt(f"finished blocks are kept in {folder}; run the same command again to go on"):
        store = collect_episodes(folder, CollectConfig(episodes=episodes, seed=seed, processes=processes))
    report(store)
    console.print(f"data: {store.folder} ({len(store)} episodes, digest {store.digest()})")


def report(store: EpisodeStore) -> None:
    """Print how often the block moved, per kind of behaviour, and the sizes of the splits."""
    from training.collect import MIX, moved
    from worldmodels.episodes import SPLITS

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
    show_table("Splits", ("split", "episodes"), [(split, len(store.ids(split))) for split in SPLITS])
