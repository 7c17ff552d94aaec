"""Makes PushT episodes with the true simulator: pushes, noise, and an expert that plans with it.

Special: the only training file that knows simulators. Episodes are made in blocks of 128, each block a pure
function of (seed, block number), so the data does not depend on the number of processes, and an interrupted
collection continues where it stopped.

The mix (of blocks): 80 % scripted pushes, 10 % goal-reaching expert, 5 % Gaussian actions, 5 % Gaussian
actions held for 5 steps. Models trained on expert data plan far better than those trained on random
interaction; models trained on nothing but success do not know failure.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from rlvr_envs.simulators.pusht import FloatArray, angle_difference
from rlvr_envs.simulators.pusht_batch import PushTBatch
from rlvr_envs.simulators.pusht_drawing import PushTDrawing
from rlvr_envs.simulators.pusht_policies import BatchNoise, BatchPusher, sample_states
from worldmodels.api import Episode
from worldmodels.episodes import EpisodeStore, EpisodeWriter

Kind = Literal["push", "expert", "gauss", "held"]
BLOCK_EPISODES = 128
# 20 blocks in a fixed order: any prefix holds about the documented mix.
MIX: tuple[Kind, ...] = tuple(
    "gauss" if i == 7 else "held" if i == 17 else "expert" if i % 10 == 3 else "push" for i in range(20)
)
MOVED_PX, MOVED_RAD = 1.0, np.radians(1.0)  # from when on a block counts as moved in the report


@dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """What to collect.

    Attributes:
        episodes: How many (rounded up to whole blocks of 128).
        seed: Of the whole collection.
        steps: Environment steps per episode, a multiple of ``frame_skip``.
        frame_skip: Environment steps per world-model step.
        image_size: Frame size in px.
        processes: Worker processes.
    """

    episodes: int
    seed: int = 0
    steps: int = 75
    frame_skip: int = 5
    image_size: int = 64
    processes: int = 2


class _Batch(Protocol):
    def act(self, states: FloatArray) -> FloatArray: ...


def collect(folder: str | Path, config: CollectConfig, *, kinds: Sequence[Kind] = MIX) -> EpisodeStore:
    """Collect episodes into ``folder`` and return the store. Interrupted, it continues when called again."""
    blocks = [
        (config, block, kinds[block % len(kinds)]) for block in range(-(-config.episodes // BLOCK_EPISODES))
    ]
    with EpisodeWriter(folder, shard_episodes=BLOCK_EPISODES) as writer:
        todo = [
            task
            for task in blocks
            if any(_episode_id(task[0], task[1], row) not in writer for row in range(BLOCK_EPISODES))
        ]
        for episodes in tqdm(_run(todo, config.processes), total=len(todo), unit="block", desc="collect"):
            for episode in episodes:
                if episode.id not in writer:  # an interruption can keep a part of a block
                    writer.add(episode)
            writer.flush()
    return EpisodeStore(folder)


def _run(tasks: Sequence[tuple[CollectConfig, int, Kind]], processes: int) -> Iterator[list[Episode]]:
    if processes <= 1 or len(tasks) <= 1:
        yield from map(_collect_block, tasks)
        return
    with get_context("spawn").Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap(_collect_block, tasks)


def _episode_id(config: CollectConfig, block: int, row: int) -> str:
    return f"pusht-{config.seed}-{block:05d}-{row:03d}"


def _collect_block(task: tuple[CollectConfig, int, Kind]) -> list[Episode]:
    """One block of episodes."""
    config, block, kind = task
    generator = np.random.default_rng([config.seed, block])
    worlds = PushTBatch(BLOCK_EPISODES)
    start = sample_states(BLOCK_EPISODES, generator)
    worlds.set_states(start)
    policy: _Batch
    if kind == "expert":
        from training.experts import BatchExpert

        policy = BatchExpert(start, generator)
    elif kind == "push":
        policy = BatchPusher(BLOCK_EPISODES, generator)
    else:
        policy = BatchNoise(BLOCK_EPISODES, generator, hold=5 if kind == "held" else 1)
    states, actions = [worlds.states()], []
    for _ in range(config.steps):
        action = policy.act(states[-1]).astype(np.float32).astype(np.float64)
        states.append(worlds.step(action))
        actions.append(action)
    return _to_episodes(config, block, np.stack(states, axis=1), np.stack(actions, axis=1))


def _to_episodes(config: CollectConfig, block: int, states: FloatArray, actions: FloatArray) -> list[Episode]:
    """Cut to every ``frame_skip``-th state, join that many actions to one, draw."""
    drawing = PushTDrawing(size=config.image_size)
    kept = states[:, :: config.frame_skip]
    joined = actions.reshape(len(actions), -1, config.frame_skip * 2)
    return [
        Episode(
            id=_episode_id(config, block, row),
            observations={
                "image": drawing.frames(kept[row]),
                "proprio": kept[row][:, [0, 1, 5, 6]].astype(np.float32),
            },
            actions=joined[row].astype(np.float32),
            rewards=np.zeros(joined.shape[1]),
            info={"state": kept[row]},
        )
        for row in range(len(states))
    ]


def moved(states: FloatArray) -> NDArray[np.bool_]:
    """Whether the block moved in each step of ``(..., T+1, 7)`` states: ``(..., T)`` booleans."""
    shift = np.linalg.norm(np.diff(states[..., 2:4], axis=-2), axis=-1)
    turn = angle_difference(states[..., 1:, 4], states[..., :-1, 4])
    return np.asarray((shift > MOVED_PX) | (turn > MOVED_RAD))
