"""``rlvr-world demo``: plan PushT in the bundled world model, execute it in the simulator, film both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from training.commands.console import console, on_interrupt, show_table, use_threads, writable
from training.commands.models import load_object_worlds

NAMES = ("pusht-rlvr", "pusht-base")  # the first that is bundled


def demo(
    *,
    folder: Path = Path("demo"),
    model: str | None = None,
    problems: int = 4,
    samples: int = 128,
    iterations: int = 10,
    seed: int = 0,
    threads: int = 1,
) -> None:
    """Plan PushT in the bundled world model, execute in the simulator, and write a film of both.

    Args:
        folder: Where film and picture go.
        model: World model instead of the bundled one: bundled name, folder or hub id.
        problems: How many starts and goals.
        samples: Plans that are imagined per iteration of the search.
        iterations: Iterations of the search.
        seed: Of starts, goals and search.
        threads: Threads to compute with.
    """
    use_threads(threads)
    if problems < 1:
        raise ValueError(f"--problems is {problems}; it must be at least 1")
    writable(folder / "demo.gif")
    import numpy as np
    from tqdm import tqdm

    from planners import CEM, MPC, ImaginedCost, MPCConfig, StateCost
    from training.demonstration import GOAL_ACTIONS, execute, film, make_problems, observer
    from training.pictures import grid, write_gif, write_png
    from training.plan_rows import SEARCH, reader_of
    from worldmodels.checkpoints import bundled

    name = model or next((name for name in NAMES if name in bundled()), NAMES[0])
    world_model = load_object_worlds([name])[name]
    search = replace(SEARCH, num_samples=samples, num_elites=max(2, samples // 10), iterations=iterations)
    mpc = MPC(
        planner=CEM(search),
        cost_source=ImaginedCost(world_model=world_model, goal_cost=StateCost(), chunk_rows=samples),
        config=MPCConfig(horizon_steps=GOAL_ACTIONS),
    )
    tasks = make_problems(problems, seed=seed)
    observe, read = observer(), reader_of(world_model)
    goals = [
        read(observe(np.asarray(task.goal))) for task in tasks
    ]  # what the model sees in the goal's frame
    total = problems * mpc.config.budget_actions
    with (
        on_interrupt("the demo keeps nothing; run it again"),
        tqdm(total=total, desc=f"planning in {Path(name).name}", unit="action", dynamic_ncols=True) as bar,
    ):
        attempts, result = execute(mpc, tasks, goals, seed=seed, progress=bar.update)
        bar.total = bar.n  # goals that were reached early saved the rest
    outcomes = [attempt.outcome() for attempt in attempts]
    films = [
        film(world_model, task, actions, seed=seed)
        for task, actions in zip(tasks, result.actions, strict=True)
    ]
    show_table(
        f"{Path(name).name}: {sum(outcome.success for outcome in outcomes)} of {problems} goals reached in the"
        f" simulator within {mpc.config.budget_env_steps} steps",
        ("goal", "block must move", "reached", "block off goal", "dream off truth"),
        [
            (
                number,
                "yes" if task.moved else "no",
                f"step {outcome.success_step}" if outcome.success else "no",
                f"{outcome.block_px:.0f} px, {outcome.angle_deg:.0f}°",
                f"{shots.block_error_px:.0f} px after {len(shots) - 1} actions",
            )
            for number, (task, outcome, shots) in enumerate(zip(tasks, outcomes, films, strict=True), start=1)
        ],
    )
    length = max(len(shots) for shots in films)
    pages = [grid([shots.page(step) for shots in films], columns=2) for step in range(length)]
    gif = write_gif(folder / "demo.gif", pages, frames_per_second=2)
    png = write_png(folder / "demo.png", films[0].strip())
    console.print(f"film: {gif}\npicture: {png}")
