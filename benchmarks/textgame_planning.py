"""Planning text games in the dream: search in a world model alone, then play the truth.

.venv/bin/python benchmarks/textgame_planning.py

For every game and test variation a search finds a way to win in a world model, and the simulator plays it: once as it
is (one plan, no look back), and once with a new plan whenever the truth differs from what was predicted. The oracle
searches the simulator itself. The world model predicts everything; which actions are worth trying in a (dreamt) state
is told by the game's list of actions, as it is to a player. Prints one table and writes
benchmarks/results/textgame-planning.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from tqdm import tqdm

from planners.text_policy import TextPlanner
from planners.tree import TreeSearch
from planners.tree_config import TreeConfig
from rlvr_envs.simulators.text_game_world import TextGameWorld
from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import Game, start, step, valid_actions
from training.provenance import weights_sha256
from training.report import Cell, Column, Report, RowLog, Table, manifest
from training.statistics import wilson_interval
from training.text_data import HELD_OUT_GAME
from training.text_slots import slot_world
from worldmodels.api import History, WorldModel
from worldmodels.language.game_state import GameState, parse_state
from worldmodels.language.slot_world import SlotWorldModel

FIRST_VARIATION = 700_000  # no data file, no bundled first state and no trial of the search has these
MAX_STEPS = 120
MAX_PREDICTIONS = 60_000  # of a game; after these nobody searches any more


def played(game: Game, state: GameState, actions: Sequence[str]) -> tuple[bool, float, int]:
    """Whether actions win in truth, the score, and how many were carried out."""
    taken = 0
    for action in actions:
        if state.game_over:
            break
        state = step(game, state, action).state
        taken += 1
    return state.game_won, float(state.score), taken


def one_plan(game: Game, variation: int, *, model: WorldModel, search: TreeSearch) -> dict[str, Any]:
    """A single plan, played without looking."""
    first = start(game, variation)
    plan = search.plan(model, History(observations=[first.to_text()], instruction=game.name), _propose(game))
    won, score, steps = played(game, first, plan.actions)
    return {
        "won": won,
        "score": score,
        "steps": steps,
        "model_steps": plan.model_steps,
        "won_in_dream": plan.won,
    }


def plans_anew(game: Game, variation: int, *, model: WorldModel, search: TreeSearch) -> dict[str, Any]:
    """A plan, and another one whenever something else happens."""
    planner = TextPlanner(search, model, _propose(game), max_model_steps=MAX_PREDICTIONS)
    planner.reset(seed=0, instruction=game.name)
    state, steps = start(game, variation), 0
    while not state.game_over and steps < MAX_STEPS and (planner.ahead or not planner.spent):
        state = step(game, state, planner.act(state.to_text())).state
        steps += 1
    return {
        "won": state.game_won,
        "score": float(state.score),
        "steps": steps,
        "model_steps": planner.model_steps,
        "plans": len(planner.plans),
    }


def at_random(game: Game, variation: int) -> dict[str, Any]:
    """Valid actions at random."""
    generator = np.random.default_rng([variation, 5])
    state, steps = start(game, variation), 0
    while not state.game_over and steps < MAX_STEPS:
        valid = valid_actions(game, state)
        state = step(game, state, valid[int(generator.integers(len(valid)))]).state
        steps += 1
    return {"won": state.game_won, "score": float(state.score), "steps": steps, "model_steps": 0}


def asking_again(name: str, views: int) -> SlotWorldModel:
    """A world model that asks itself again what promises points."""
    world = slot_world(name)
    return SlotWorldModel(world.model, protocol=world.protocol, views=views)


def _propose(game: Game) -> Any:
    return lambda text: valid_actions(game, parse_state(text))


def main(
    models: tuple[str, ...] = ("textgame-base", "textgame-rlvr"),
    variations: int = 2,
    budget: int = 10_000,
    views: int = 8,
    folder: Path = Path("runs/textgame-planning"),
    threads: int = 1,
) -> None:
    """Search, play and print.

    Args:
        models: World models beside the oracle and random play.
        variations: Of every game.
        budget: Predictions of one search.
        views: Other numberings of a state's objects in which promised points are asked for again.
        folder: Where finished games are kept.
        threads: Threads of everything.
    """
    torch.set_num_threads(threads)
    search = TreeSearch(TreeConfig(budget_steps=budget))
    worlds: dict[str, WorldModel] = {
        "oracle": TextGameWorld(),
        **{name: asking_again(name, views) for name in models},
    }
    hashes = {
        name: weights_sha256(world.model)
        for name, world in worlds.items()
        if isinstance(world, SlotWorldModel)
    }
    ways = {"one plan": one_plan, "plans anew": plans_anew}
    protocol = {
        "task": "text games: plan in a world model, play in the simulator",
        "search": search.config,
        "variations": [FIRST_VARIATION + number for number in range(variations)],
        "max_steps": MAX_STEPS,
        "max_predictions": MAX_PREDICTIONS,
        "views": views,
    }
    outcomes = {"random": _outcomes(folder, "random", protocol, "", at_random)}
    for name, world in worlds.items():
        for way, attempt in ways.items():
            title = f"{name}, {way}"
            outcomes[title] = _outcomes(
                folder,
                title,
                protocol,
                hashes.get(name, ""),
                partial(attempt, model=world, search=search),
            )
    report = Report(
        name="textgame-planning",
        tables=(_table(outcomes, variations, views, budget),),
        manifest=manifest(protocol=protocol, weights=hashes, data={}),
        details={"outcomes": outcomes},
    )
    report.show(Console(width=160))
    report.write()


def _outcomes(
    folder: Path,
    title: str,
    protocol: Mapping[str, Any],
    weights: str,
    attempt: Callable[[Game, int], dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    """How every game went: of those played before what is kept in the folder."""
    log = RowLog(folder, title, {**protocol, "row": title, "weights": weights})
    tasks = [f"{name}/{variation}" for name in GAMES for variation in protocol["variations"]]
    for task in tqdm(log.missing(tasks), desc=title, unit="game"):
        name, _, variation = task.partition("/")
        began = time.perf_counter()
        outcome = attempt(GAMES[name], int(variation))
        log.add(task, {**outcome, "seconds": time.perf_counter() - began})
    return log.parts


def _table(outcomes: dict[str, dict[str, dict[str, Any]]], variations: int, views: int, budget: int) -> Table:
    return Table(
        name="planning",
        title=f"Text games won in truth: {len(GAMES)} games, {variations} variations each",
        columns=(
            Column(key="won", title="won", show_n=True),
            Column(key="once", title="games won at least once", show_n=True),
            Column(key="seen", title="games seen in training", show_n=True),
            Column(key="held", title=f"{HELD_OUT_GAME} (not seen)", show_n=True),
            Column(key="model_steps", title="model steps", digits=0),
            Column(key="seconds", title="seconds per game", digits=1),
        ),
        rows={title: _cells(parts) for title, parts in outcomes.items()},
        notes=(
            "Wilson's 95 % intervals over games and variations",
            f"promised points are asked for again in {views} other numberings of the objects; at most {budget}"
            f" predictions per search; plans anew: until {MAX_PREDICTIONS} are spent, and at most {MAX_STEPS}"
            " actions",
        ),
    )


def _cells(parts: dict[str, dict[str, Any]]) -> dict[str, Cell]:
    held = {key: part for key, part in parts.items() if key.startswith(f"{HELD_OUT_GAME}/")}
    seen = {key: part for key, part in parts.items() if key not in held}
    cells: dict[str, Cell] = {
        name: wilson_interval(sum(part["won"] for part in group.values()), len(group))
        for name, group in (("won", parts), ("seen", seen), ("held", held))
    }
    games: dict[str, list[bool]] = {}
    for key, part in parts.items():
        games.setdefault(key.partition("/")[0], []).append(part["won"])
    cells["once"] = wilson_interval(sum(map(any, games.values())), len(games))
    for key in ("model_steps", "seconds"):
        cells[key] = float(np.mean([part[key] for part in parts.values()]))
    return cells


if __name__ == "__main__":
    tyro.cli(main)
