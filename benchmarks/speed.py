"""Speed of simulators and learned environments, one torch thread.

    .venv/bin/python benchmarks/speed.py

Every figure is the best of several repetitions: the machine's noise only ever adds time. Writes
benchmarks/results/speed.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

import rlvr_envs  # noqa: F401  registers the ids
from rlvr_envs.simulators.pusht import PushTWorld
from rlvr_envs.simulators.pusht_batch import PushTBatch
from rlvr_envs.simulators.pusht_drawing import PushTDrawing
from rlvr_envs.simulators.pusht_policies import sample_states
from training.provenance import hardware, now, versions
from training.report import Column, Report, Table, sha256_of
from training.run import to_json
from worldmodels.video.rt1_actions import RT1_PARTS

REPETITIONS = 5
PUSHT, MODEL = "RLVRWorld/PushT-v0", "pusht-rlvr"
DRAWER, DRAWER_MODEL = "RLVRWorld/RT1-Drawer", "drawer-rlvr"


def best_rate(count: int, work: Callable[[], None]) -> float:
    """Things per second: ``count`` divided by the shortest of several runs."""
    seconds = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return count / min(seconds)


def single_world() -> float:
    """Environment steps of one simulator without drawing."""
    actions = np.random.default_rng(0).normal(size=(2000, 2)) * 0.2
    start = sample_states(1, np.random.default_rng(0))[0]

    def work() -> None:
        world = PushTWorld()
        world.set_state(start)
        for action in actions:
            world.step(action)

    return best_rate(len(actions), work)


def batch_of_worlds(count: int) -> float:
    """Environment steps of many worlds together."""
    states, batch = sample_states(count, np.random.default_rng(0)), PushTBatch(count)
    actions = np.random.default_rng(0).normal(size=(50, count, 2)) * 0.2

    def work() -> None:
        batch.set_states(states)
        for action in actions:
            batch.step(action)

    return best_rate(count * len(actions), work)


def drawing() -> float:
    """64 px frames."""
    states, pen = sample_states(500, np.random.default_rng(0)), PushTDrawing(size=64)
    return best_rate(len(states), lambda: [pen.frame(state) for state in states] and None)


def stepping(env: Any, actions: NDArray[np.float32], count: int = 1) -> float:
    """Steps of an environment, frames included, summed over its ``count`` rows."""

    def work() -> None:
        env.reset(seed=0)
        for action in actions:
            env.step(action)

    return best_rate(count * len(actions), work)


def pusht_actions(*shape: int) -> NDArray[np.float32]:
    """Random pushes ``(*shape, 10)``."""
    return np.random.default_rng(0).uniform(-0.4, 0.4, (*shape, 10)).astype(np.float32)


def drawer_actions(steps: int) -> NDArray[np.float32]:
    """Small random motion ``(steps, 13)`` that never ends an episode."""
    actions = np.zeros((steps, 13), np.float32)
    actions[:, RT1_PARTS["world_vector"]] = np.random.default_rng(0).uniform(-0.1, 0.1, (steps, 3))
    actions[:, RT1_PARTS["terminate_episode"]] = (0, 1, 0)
    return actions


def main() -> None:
    """Measure everything and print the table."""
    torch.set_num_threads(1)
    many_pushts = gym.make_vec(PUSHT, num_envs=64, world_model=MODEL)
    many_drawers = gym.make_vec(f"{DRAWER}-v0", num_envs=16, world_model=DRAWER_MODEL)
    rows = {
        "simulator, one world, no drawing": single_world(),
        "simulator, 128 worlds together": batch_of_worlds(128),
        "drawing of 64 px frames": drawing(),
        f"{PUSHT}, one": stepping(gym.make(PUSHT, world_model=MODEL), pusht_actions(19)),
        f"{PUSHT}, 64, in step": stepping(many_pushts, pusht_actions(19, 64), 64),
        f"{PUSHT}, 64, over the ends of episodes": stepping(many_pushts, pusht_actions(50, 64), 64),
        f"{DRAWER}-Sim-v0, one, with frames of 64 x 80": stepping(
            gym.make(f"{DRAWER}-Sim-v0"), drawer_actions(100)
        ),
        f"{DRAWER}-v0, one": stepping(gym.make(f"{DRAWER}-v0", world_model=DRAWER_MODEL), drawer_actions(30)),
        f"{DRAWER}-v0, 16": stepping(many_drawers, drawer_actions(30)[:, None].repeat(16, 1), 16),
    }
    table = Table(
        name="speed",
        title="Things per second on one core (one learned step of PushT is five environment steps)",
        columns=(Column(key="rate", title="per second", digits=0),),
        rows={name: {"rate": rate} for name, rate in rows.items()},
        notes=(f"best of {REPETITIONS} repetitions; world models {MODEL}, {DRAWER_MODEL}",),
    )
    Console(width=120).print(table.rich())
    protocol = {"task": "speed", "repetitions": REPETITIONS, "models": [MODEL, DRAWER_MODEL]}
    manifest = {
        "protocol": protocol,
        "protocol_sha256": sha256_of(protocol),
        "versions": versions(),
        "hardware": hardware(),
        "date": now(),
    }
    report = Report(name="speed", tables=(table,), manifest=to_json(manifest))
    report.write()


if __name__ == "__main__":
    main()
