"""``rlvr-world plan``: the planning table, success of world models beside trivial policies and the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from training.commands.console import console, on_interrupt, use_threads, wide_console, writable
from training.commands.models import PAIRS, load_object_worlds

ALWAYS = ("oracle", "random")  # in the table whatever --models says, and accepted there too


def plan(
    task: Positional[Literal["pusht"]],
    *,
    models: tuple[str, ...] = ("pusht-base", "pusht-more-mle", "pusht-rlvr"),
    episodes: int = 50,
    data: Path | None = None,
    split: Literal["test", "validation", "train"] = "test",
    rows: tuple[str, ...] = (),
    seed: int = 0,
    processes: int = 2,
    folder: Path = Path("runs/pusht-plan"),
    results: Path = Path("benchmarks/results"),
) -> None:
    """Plan in world models, execute in the simulator, count successes. Interrupted, the same command goes on.

    Args:
        task: Which task.
        models: World models: bundled names, folders or hub ids. Random policy and oracle (the true simulator as the
            model) are always in the table.
        episodes: Number of goals, one per recorded episode.
        data: None: the bundled goals, cut from test episodes. Else a folder of episodes, made by 'rlvr-world collect',
            whose recorded actions lead to the goals.
        split: Which episodes of that folder.
        rows: Rows instead of the standard ones, by name; an unknown name lists all.
        seed: Of all planning.
        processes: Worker processes of one thread each; the numbers do not depend on it.
        folder: Where finished goals are kept, so that nothing is computed twice.
        results: Where the table goes.
    """
    use_threads(1)
    for name, value in (("--episodes", episodes), ("--processes", processes)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    writable(results / "pusht-plan.json")
    from training.data import PushTData
    from training.goals import GoalSet
    from training.plan import PlanConfig, plan_table
    from worldmodels.episodes import EpisodeStore

    loaded = load_object_worlds([name for name in models if name not in ALWAYS])
    goals = GoalSet.load() if data is None else PushTData.load(EpisodeStore(data), split)
    with on_interrupt(f"finished goals are kept in {folder}; run the same command again to go on"):
        report = plan_table(
            loaded,
            goals,
            PlanConfig(goals=episodes, seed=seed),
            rows=rows or None,
            compare=PAIRS[0] if set(PAIRS[0]) <= set(loaded) else None,
            folder=folder,
            processes=processes,
        )
    report.show(wide_console())
    console.print(f"results: {report.write(results)}")
