"""Makes drawer episodes with the true simulator: experts, and failures on purpose.

Special: with ``training/collect.py`` one of the two training files that know simulators. Episodes are made in
blocks of 32, each block a pure function of (seed, block number), so the data does not depend on the number
of processes, and an interrupted collection continues where it stopped. (Frames depend on the OpenGL driver,
states and actions do not.)

Every episode has the same length, 40 steps (13 s), in which most experts are done. One that ends its episode
(the terminate flag of its action) hovers on until then: the world goes on, and a world model should not
learn that it stops.

Which behaviour an episode shows is drawn with the shares of ``drawer_policies.KINDS``, its task uniformly.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from tqdm import tqdm

from rlvr_envs.drawer_rules import TASKS, drawer_reward
from rlvr_envs.simulators.drawer import DrawerWorld, sample_state
from rlvr_envs.simulators.drawer_env import act_in
from rlvr_envs.simulators.drawer_policies import KINDS, make_policy
from rlvr_envs.simulators.drawer_rendering import DrawerCamera, sample_look
from rlvr_envs.spaces import RT1_HEIGHT_PX, RT1_WIDTH_PX
from worldmodels.api import Episode
from worldmodels.episodes import EpisodeStore, EpisodeWriter

BLOCK_EPISODES = 32
TASK_NAMES, KIND_NAMES = tuple(TASKS), tuple(KINDS)  # what info["task"] and info["kind"] count


@dataclass(frozen=True, kw_only=True)
class DrawerCollectConfig:
    """What to collect.

    Attributes:
        episodes: How many (rounded up to whole blocks of 32).
        seed: Of the whole collection.
        steps: Steps per episode.
        height, width: Frame size in px.
        processes: Worker processes.
    """

    episodes: int
    seed: int = 0
    steps: int = 40
    height: int = RT1_HEIGHT_PX
    width: int = RT1_WIDTH_PX
    processes: int = 2


def collect_drawer(folder: str | Path, config: DrawerCollectConfig) -> EpisodeStore:
    """Collect episodes into ``folder`` and return the store. Interrupted, it continues when called again."""
    blocks = range(-(-config.episodes // BLOCK_EPISODES))
    with EpisodeWriter(folder, shard_episodes=BLOCK_EPISODES) as writer:
        todo = [
            (config, block)
            for block in blocks
            if any(_episode_id(config, block, row) not in writer for row in range(BLOCK_EPISODES))
        ]
        for episodes in tqdm(_run(todo, config.processes), total=len(todo), unit="block", desc="collect"):
            for episode in episodes:
                if episode.id not in writer:  # an interruption can keep a part of a block
                    writer.add(episode)
            writer.flush()
    return EpisodeStore(folder)


def collect_block(config: DrawerCollectConfig, block: int) -> list[Episode]:
    """The episodes of one block; a pure function of both."""
    world = DrawerWorld()
    camera = DrawerCamera(world.model, height=config.height, width=config.width)
    try:
        return [record_episode(world, camera, config, block, row) for row in range(BLOCK_EPISODES)]
    finally:
        camera.close()


def record_episode(
    world: DrawerWorld, camera: DrawerCamera, config: DrawerCollectConfig, block: int, row: int
) -> Episode:
    """One episode of T steps.

    Its observations are the frames ``(T+1, height, width, 3)`` uint8, its actions RT-1's ``(T, 13)`` float32,
    its rewards the sparse ones. ``info`` has ``state`` ``(T+1, 10)`` float64, and ``task`` and ``kind``,
    ``(T+1,)`` int64, the places in :data:`TASK_NAMES` and :data:`KIND_NAMES`, and ``instruction`` ``(T+1,)``.
    """
    generator = np.random.default_rng([config.seed, block, row])
    kind = int(generator.choice(len(KIND_NAMES), p=list(KINDS.values())))
    number = int(generator.integers(len(TASK_NAMES)))
    task = TASKS[TASK_NAMES[number]]
    look = sample_look(generator)
    world.reset(sample_state(task, generator))
    policy = make_policy(KIND_NAMES[kind], task, generator)
    states, frames, actions = [world.state()], [camera.frame(world.data, look)], []
    for _ in range(config.steps):
        action = policy.act(states[-1])
        act_in(world, action)
        actions.append(action)
        states.append(world.state())
        frames.append(camera.frame(world.data, look))
    return Episode(
        id=_episode_id(config, block, row),
        observations=np.stack(frames),
        actions=np.stack(actions),
        rewards=np.array([drawer_reward(state, task, "sparse") for state in states[1:]]),
        info={
            "state": np.stack(states),
            "task": np.full(len(states), number),
            "kind": np.full(len(states), kind),
            "instruction": np.full(len(states), task.instruction),
        },
    )


def _run(tasks: Sequence[tuple[DrawerCollectConfig, int]], processes: int) -> Iterator[list[Episode]]:
    if processes <= 1 or len(tasks) <= 1:
        for config, block in tasks:
            yield collect_block(config, block)
        return
    with get_context("spawn").Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap(_collect_block, tasks)


def _collect_block(task: tuple[DrawerCollectConfig, int]) -> list[Episode]:
    return collect_block(*task)


def _episode_id(config: DrawerCollectConfig, block: int, row: int) -> str:
    return f"drawer-{config.seed}-{block:05d}-{row:03d}"
