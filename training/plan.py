"""The planning table: plan in the dream, execute in the truth, count successes on a fixed list of goals.

Special: every problem is a run of its own, with a seed that depends on the problem alone and with model calls
of one size, so a score cannot move with the number of goals, processes or what else is in the table. Rows are
selected by name, finished problems are kept in a run folder, and a repeated call computes only what is
missing. The true simulator executes and judges; only the oracle's rows plan with it.

Absent: training, and any choice that looks at the results.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from planners import CEM, MPC, CEMConfig, CostSource, MPCConfig
from planners.search import CostFunction
from rlvr_envs.simulators.pusht import FloatArray
from rlvr_envs.simulators.pusht_drawing import PushTDrawing
from rlvr_envs.tasks import proprio
from training.data import PushTData
from training.goals import Attempt, GoalSet, Problem
from training.plan_rows import SEARCH, PlanRow, cost_source, diagnosis_rows, reader_of, standard_rows
from training.report import Cell, Column, Report, RowLog, Table, manifest, model_sha256, sha256_of
from training.statistics import (
    Estimate,
    bootstrap_mean,
    mcnemar,
    paired_bootstrap,
    ratio_of_means,
    wilson_interval,
)
from worldmodels.api import History, Observation
from worldmodels.video.object_world import ObjectWorldModel

Result = dict[str, Any]
"""An ``Outcome`` and what it cost: ``plans``, ``seconds``, ``model_steps``, ``tokens``, and ``actions``."""


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """The protocol.

    Attributes:
        goals: Number of goals, one per episode.
        goal_seed: Of the choice of goals.
        goal_actions: Recorded world-model actions between start and goal (5 of 5 environment steps each).
        budget_env_steps: Environment steps a try may take.
        horizon_steps: World-model steps of a plan; planned anew after each, with the horizon shrinking to the
            goal's time and then starting again.
        search: The planner of the standard rows.
        seed: Of all planning.
    """

    goals: int = 50
    goal_seed: int = 0
    goal_actions: int = 5
    budget_env_steps: int = 50
    horizon_steps: int = 5
    search: CEMConfig = SEARCH
    seed: int = 0


def plan_table(
    models: Mapping[str, ObjectWorldModel],
    data: PushTData | GoalSet,
    config: PlanConfig,
    *,
    rows: Sequence[str] | None = None,
    extra_rows: Mapping[str, PlanRow] | None = None,
    compare: tuple[str, str] | None = None,
    folder: str | Path | None = None,
    processes: int = 1,
    progress: bool = True,
) -> Report:
    """Success of trivial policies, the oracle and world models on the same goals.

    Args:
        models: World models by the name of their row.
        data: The goals, or the split whose episodes give them.
        config: The protocol.
        rows: Names of rows in order; None for the standard ones. See ``row_names``.
        extra_rows: More rows to choose from.
        compare: Two rows for McNemar's test, the hoped-for better one first.
        folder: Run folder for finished problems; None keeps nothing.
        processes: Worker processes; the numbers do not depend on it.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: An unknown row; lists what exists.
    """
    known = {
        **standard_rows(list(models), search=config.search),
        **diagnosis_rows(list(models), search=config.search),
    }
    known |= extra_rows or {}
    names = list(rows) if rows is not None else list(standard_rows(list(models)))
    if unknown := [name for name in [*names, *(compare or ())] if name not in known]:
        raise ValueError(f"no row {', '.join(map(repr, unknown))}; choose from {'; '.join(known)}")
    if isinstance(data, GoalSet):
        goals = data.first(config.goals)
    else:
        goals = GoalSet.choose(
            data, count=config.goals, goal_actions=config.goal_actions, seed=config.goal_seed
        )
    problems = list(goals.problems)
    hashes = {name: model_sha256(model) for name, model in models.items()}
    settings = _Settings(
        mpc=MPCConfig(
            horizon_steps=config.horizon_steps,
            env_steps_per_action=goals.frame_skip,
            budget_env_steps=config.budget_env_steps,
        ),
        seed=config.seed,
        random_deviation=goals.action_deviation,
    )
    results: dict[str, dict[str, Result]] = {}
    with _runner(models, processes) as run:
        for name in names:
            row = known[name]
            identity = {"row": row, "settings": settings, "weights": hashes.get(row.model or "")}
            log = RowLog(folder, name, identity)
            keys = {_key(problem): problem for problem in problems}
            todo = [keys[key] for key in log.missing(list(keys))]
            bar = tqdm(
                total=len(problems),
                initial=len(problems) - len(todo),
                desc=name,
                unit="goal",
                disable=None if progress else True,
            )
            with bar:
                for problem, result in run([(row, settings, problem) for problem in todo]):
                    log.add(_key(problem), result)
                    bar.update()
            results[name] = {problem.id: log.parts[_key(problem)] for problem in problems}
    protocol = {
        "task": "pusht: plan in the model, execute in the simulator",
        "success": "agent and block within 20 px together and angle within 20 degrees, at any environment step",
        "goal_source": "states reached by replaying recorded actions of the split in one simulator world",
        "config": config,
        "settings": settings,
        "rows": {name: known[name] for name in names},
        "problems": [problem.to_protocol() for problem in problems],
    }
    return Report(
        name="pusht-plan",
        tables=(_success_table(problems, results, config), *_comparison(results, compare)),
        manifest=manifest(protocol=protocol, weights=hashes, data=goals.source),
        details={"goals": {name: _without_actions(result) for name, result in results.items()}},
    )


def row_names(models: Sequence[str]) -> list[str]:
    """All rows that ``plan_table`` can compute with world models of these names."""
    return [*standard_rows(models), *diagnosis_rows(models)]


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What all rows share."""

    mpc: MPCConfig
    seed: int
    random_deviation: float


_Task = tuple[PlanRow, _Settings, Problem]


def _key(problem: Problem) -> str:
    """Names a problem and its exact goal in a row's log."""
    return f"{problem.id} {sha256_of([problem.start, problem.goal])[:12]}"


@contextmanager
def _runner(models: Mapping[str, ObjectWorldModel], processes: int) -> Iterator[Any]:
    """A function from tasks to (problem, result) pairs as they finish, here or in worker processes."""
    threads = torch.get_num_threads()
    if processes > 1:
        with get_context("spawn").Pool(processes, _receive, (dict(models),)) as pool:
            yield lambda tasks: pool.imap_unordered(_attempt_task, tasks)
        return
    torch.set_num_threads(1)  # as the workers: another number of threads may round differently
    _MODELS.clear()
    _MODELS.update(models)
    try:
        yield lambda tasks: map(_attempt_task, tasks)
    finally:
        torch.set_num_threads(threads)
        _MODELS.clear()


_MODELS: dict[str, ObjectWorldModel] = {}  # of this process: sent to workers once, not with every task


def _receive(models: dict[str, ObjectWorldModel]) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches every process; the first one ends the others
    torch.set_num_threads(1)
    _MODELS.update(models)


def _attempt_task(task: _Task) -> tuple[Problem, Result]:
    row, settings, problem = task
    return problem, attempt(row, _MODELS, problem, settings.mpc, settings.seed, settings.random_deviation)


def attempt(
    row: PlanRow,
    models: Mapping[str, ObjectWorldModel],
    problem: Problem,
    mpc: MPCConfig,
    seed: int,
    random_deviation: float,
) -> Result:
    """One try of one row at one problem."""
    size = models[row.model].tokenizer.config.image_size if row.model is not None else 64
    drawing = PushTDrawing(size=size)

    def observe(state: FloatArray) -> Observation:
        if row.dynamics == "simulator" and row.model is None:
            return {"state": state}
        return {"image": drawing.frame(state), "proprio": proprio(state)}

    tried = Attempt(problem, observe=observe, budget_env_steps=mpc.budget_env_steps)
    seed = problem.seed(seed)
    if row.dynamics in ("random", "stay"):
        shape = (mpc.budget_env_steps, 2)
        noise = np.random.default_rng(seed).normal(size=shape) * random_deviation
        tried.act(np.clip(noise, -1, 1) if row.dynamics == "random" else np.zeros(shape))
        return {**asdict(tried.outcome()), "plans": 0, "seconds": 0.0, "model_steps": 0, "tokens": 0}
    goal: Any = observe(np.asarray(problem.goal))
    if row.cost == "state":
        true_goal = row.true_goal or row.model is None
        goal = np.asarray(problem.goal) if true_goal else reader_of(models[str(row.model)])(goal)
    counted = _Counted(cost_source(row, models, frame_skip=mpc.env_steps_per_action))
    acting = 0.0

    def act(_: Sequence[int], actions: Any) -> tuple[list[Observation], list[bool]]:
        nonlocal acting
        started = time.perf_counter()
        whole = np.tile(actions[0], mpc.env_steps_per_action) if row.held else actions[0]
        tried.act(whole)
        seen = tried.observation()
        acting += time.perf_counter() - started
        return [seen], [tried.done]

    started = time.perf_counter()
    result = MPC(planner=CEM(row.search), cost_source=counted, config=mpc).run(
        [tried.observation()], [goal], act, seeds=[seed]
    )
    seconds = time.perf_counter() - started - acting
    slots = models[str(row.model)].dynamics.layout.slots if row.dynamics == "model" else 0
    return {
        **asdict(tried.outcome()),
        "plans": int(result.num_actions[0]),
        "seconds": seconds,
        "model_steps": counted.steps,
        "tokens": counted.steps * slots,
        "planned_costs": result.planned_costs[0],
        "actions": result.actions[0].tolist(),
    }


class _Counted:
    """A cost source that counts imagined steps."""

    def __init__(self, source: CostSource) -> None:
        self._source = source
        self.history_length, self.action_size, self.steps = source.history_length, source.action_size, 0

    def __call__(
        self, histories: Sequence[History], goals: Sequence[Any], *, seeds: Sequence[int]
    ) -> CostFunction:
        cost = self._source(histories, goals, seeds=seeds)

        def counted(candidates: torch.Tensor) -> torch.Tensor:
            self.steps += candidates.shape[0] * candidates.shape[1] * candidates.shape[2]
            return cost(candidates)

        return counted


_COLUMNS = (
    Column(key="success", title="success"),
    Column(key="moved", title="block must move", show_n=True),
    Column(key="still", title="block stays", show_n=True),
    Column(key="at_end", title="still there at the end"),
    Column(key="block_px", title="block px", digits=1),
    Column(key="angle_deg", title="angle deg", digits=1),
    Column(key="agent_px", title="agent px", digits=1),
    Column(key="seconds_per_plan", title="s per plan"),
    Column(key="model_steps", title="model steps"),
    Column(key="tokens", title="tokens"),
    Column(key="n", title="n"),
    Column(key="seed", title="seed"),
)


def _success_table(
    problems: Sequence[Problem], results: Mapping[str, Mapping[str, Result]], config: PlanConfig
) -> Table:
    rows: dict[str, dict[str, Cell]] = {}
    moved = [problem.moved for problem in problems]
    for name, by_id in results.items():
        of_row = [by_id[problem.id] for problem in problems]
        plans = sum(result["plans"] for result in of_row)
        seconds = sum(result["seconds"] for result in of_row)
        rows[name] = {
            "success": _rate([r["success"] for r in of_row]),
            "moved": _rate([r["success"] for r, m in zip(of_row, moved, strict=True) if m]),
            "still": _rate([r["success"] for r, m in zip(of_row, moved, strict=True) if not m]),
            "at_end": _rate([r["success_at_end"] for r in of_row]),
            **{
                key: bootstrap_mean([r[key] for r in of_row], seed=config.seed)
                for key in ("block_px", "angle_deg", "agent_px")
            },
            "seconds_per_plan": seconds / plans if plans else None,
            "model_steps": sum(r["model_steps"] for r in of_row),
            "tokens": sum(r["tokens"] for r in of_row),
            "n": len(of_row),
            "seed": config.seed,
        }
    return Table(
        name="success",
        title=f"PushT: {len(problems)} goals, budget {config.budget_env_steps} environment steps",
        columns=_COLUMNS,
        rows=rows,
        notes=(
            "success and its parts with Wilson's 95 % interval; distances from the goal when it was reached, else at"
            " the end, with a bootstrap interval over goals",
            "block must move: start and goal differ by more than 20 px or 20 degrees",
        ),
    )


def _rate(successes: Sequence[bool]) -> Estimate | None:
    return wilson_interval(sum(successes), len(successes)) if successes else None


def _comparison(
    results: Mapping[str, Mapping[str, Result]], compare: tuple[str, str] | None
) -> tuple[Table, ...]:
    """Every row against the oracle, and the two that are to be compared."""
    pairs = [(name, "oracle") for name in results if name != "oracle" and "oracle" in results]
    if compare is not None and all(name in results for name in compare):
        pairs.insert(0, compare)
    rows: dict[str, dict[str, Cell]] = {}
    for first, second in pairs:
        a, b = (np.array([r["success"] for r in results[name].values()]) for name in (first, second))
        test = mcnemar(a, b)
        rows[f"{first} / {second}"] = {
            "ratio": ratio_of_means(a, b),
            "difference": paired_bootstrap(a.astype(float), b.astype(float)),
            "only_first": test.only_a,
            "only_second": test.only_b,
            "p_value": test.p_value,
            "verdict": "not distinguishable"
            if test.p_value >= 0.05
            else "better"
            if a.mean() > b.mean()
            else "worse",
        }
    if not rows:
        return ()
    columns = (
        Column(key="ratio", title="ratio of rates"),
        Column(key="difference", title="difference"),
        Column(key="only_first", title="only first"),
        Column(key="only_second", title="only second"),
        Column(key="p_value", title="McNemar p", digits=3),
        Column(key="verdict", title="first is"),
    )
    return (
        Table(
            name="comparison", title="Success, row against row on the same goals", columns=columns, rows=rows
        ),
    )


def _without_actions(results: Mapping[str, Result]) -> dict[str, Result]:
    hidden = ("actions", "planned_costs")
    return {name: {k: v for k, v in result.items() if k not in hidden} for name, result in results.items()}
