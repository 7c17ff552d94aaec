"""Speed of the text games and of their dream, one torch thread.

.venv/bin/python benchmarks/textgame_speed.py

Every figure is the best of several repetitions: the machine's noise only ever adds time. Writes
benchmarks/results/textgame-speed.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gymnasium as gym
import torch
import tyro
from rich.console import Console

import rlvr_envs  # noqa: F401  registers the ids
from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import solve, start, step, valid_actions
from training.provenance import weights_sha256
from training.report import Column, Report, Table, manifest
from worldmodels.checkpoints import load
from worldmodels.language.slot_world import SlotWorldModel

REPETITIONS = 5


def best_rate(count: int, work: Callable[[], None]) -> float:
    """Things per second: ``count`` divided by the shortest of several runs."""
    seconds = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return count / min(seconds)


def turns() -> float:
    """Turns of all games along their solvers' ways, states as objects."""
    ways = [(game, start(game, 3), solve(game, 3)) for game in GAMES.values()]

    def work() -> None:
        for game, state, plan in ways:
            for action in plan:
                state = step(game, state, action).state

    return best_rate(sum(len(plan) for _, _, plan in ways), work)


def environment() -> float:
    """The same through ``gym.make``: with valid actions, texts and the check of actions."""
    plans = {name: solve(game, 3) for name, game in GAMES.items()}
    env = gym.make("RLVRWorld/TextGame-Sim-v0")

    def work() -> None:
        for name, plan in plans.items():
            env.reset(options={"game": name, "variation": 3})
            for action in plan:
                env.step(action)

    return best_rate(sum(len(plan) for plan in plans.values()), work)


def dream(model: str, steps: int) -> float:
    """Steps of one dream; actions are valid ones of its first state."""
    env = gym.make("RLVRWorld/TextGame-v0", world_model=model, game="boil-water")
    _, info = env.reset(seed=0)
    actions = valid_actions(GAMES["boil-water"], info["state"])

    def work() -> None:
        env.reset(seed=0)
        for number in range(steps):
            env.step(actions[number % len(actions)])

    return best_rate(steps, work)


def dreams(model: str, count: int, steps: int) -> float:
    """Steps of many dreams as one batch, summed over rows."""
    envs = gym.make_vec("RLVRWorld/TextGame-v0", num_envs=count, world_model=model, game="boil-water")
    _, info = envs.reset(seed=0)
    actions = [valid_actions(GAMES["boil-water"], state) for state in info["state"]]

    def work() -> None:
        envs.reset(seed=0)
        for number in range(steps):
            envs.step([of[number % len(of)] for of in actions])

    return best_rate(count * steps, work)


def main(model: str = "textgame-rlvr", environments: int = 32) -> None:
    """Measure everything and print the table.

    Args:
        model: World model of the dream.
        environments: Rows of the batch.
    """
    torch.set_num_threads(1)
    rows = {
        "games, turns": turns(),
        "RLVRWorld/TextGame-Sim-v0": environment(),
        "RLVRWorld/TextGame-v0, one": dream(model, 12),
        f"RLVRWorld/TextGame-v0, {environments} together": dreams(model, environments, 6),
    }
    table = Table(
        name="speed",
        title="Text games: steps per second on one core",
        columns=(Column(key="rate", title="per second", digits=0),),
        rows={name: {"rate": rate} for name, rate in rows.items()},
        notes=(f"best of {REPETITIONS} repetitions; world model {model}",),
    )
    Console(width=120).print(table.rich())
    world = load(model)
    assert isinstance(world, SlotWorldModel)
    protocol = {"task": "text-game speed", "repetitions": REPETITIONS, "environments": environments}
    report = Report(
        name="textgame-speed",
        tables=(table,),
        manifest=manifest(protocol=protocol, weights={model: weights_sha256(world.model)}, data={}),
    )
    report.write()


if __name__ == "__main__":
    tyro.cli(main)
