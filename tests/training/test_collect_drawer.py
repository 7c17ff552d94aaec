"""Collected drawer episodes: what is in them, and that they depend on nothing but the seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlvr_envs.drawer_rules import TASKS, succeeded
from rlvr_envs.simulators.drawer import DrawerWorld
from rlvr_envs.simulators.drawer_env import DrawerSimEnv, act_in
from rlvr_envs.simulators.drawer_rendering import DrawerCamera
from training import collect_drawer as module
from training.collect_drawer import (
    KIND_NAMES,
    TASK_NAMES,
    DrawerCollectConfig,
    collect_drawer,
    record_episode,
)

pytestmark = pytest.mark.gl

SMALL = DrawerCollectConfig(episodes=5, seed=3, steps=12, height=16, width=20, processes=1)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_EPISODES", 4)


def test_an_episode_is_what_the_environment_does() -> None:
    config = DrawerCollectConfig(episodes=1, steps=8)
    world = DrawerWorld()
    camera = DrawerCamera(world.model, height=64, width=80)
    for row in range(3):
        episode = record_episode(world, camera, config, 0, row)
        assert (episode.observations.shape, episode.observations.dtype) == ((9, 64, 80, 3), np.uint8)
        assert (episode.actions.shape, episode.actions.dtype) == ((8, 13), np.float32)
        states, task = episode.info["state"], TASKS[TASK_NAMES[episode.info["task"][0]]]
        assert states.shape == (9, 10)
        assert 0 <= episode.info["kind"][0] < len(KIND_NAMES)
        np.testing.assert_array_equal(episode.rewards, succeeded(states[1:], task))
        env = DrawerSimEnv(task=task.name)
        env.reset(seed=0, options={"state": states[0]})
        for action, state in zip(episode.actions, states[1:], strict=True):
            np.testing.assert_array_equal(env.step(action)[4]["state"], state)
        replay = DrawerWorld()
        replay.reset(states[0])
        act_in(replay, episode.actions[0])
        np.testing.assert_array_equal(replay.state(), states[1])


def test_collections_are_resumed_and_repeatable(tmp_path: Path) -> None:
    store = collect_drawer(tmp_path / "a", SMALL)
    assert len(store) == 8  # whole blocks
    assert store.stack("observation.observation", store.ids()).shape == (8, 13, 16, 20, 3)
    index = (tmp_path / "a" / "index.jsonl").read_text()
    more = collect_drawer(tmp_path / "a", DrawerCollectConfig(**vars(SMALL) | {"episodes": 9}))
    assert len(more) == 12
    assert (tmp_path / "a" / "index.jsonl").read_text().startswith(index)
    again = collect_drawer(tmp_path / "b", DrawerCollectConfig(**vars(SMALL) | {"episodes": 9}))
    for episode, other in zip(more, again, strict=True):
        assert episode.id == other.id
        np.testing.assert_array_equal(episode.observations, other.observations)
        np.testing.assert_array_equal(episode.info["state"], other.info["state"])
    assert len(np.unique(more.stack("info.kind", more.ids())[:, 0])) > 1
    starts = more.stack("info.state", more.ids())[:, 0]
    assert len(np.unique(starts[:, 0])) == 12


@pytest.mark.slow
def test_processes_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_EPISODES", 32)  # spawned processes do not see the small ones
    config = DrawerCollectConfig(**vars(SMALL) | {"episodes": 64, "steps": 3})
    one = collect_drawer(tmp_path / "one", config)
    two = collect_drawer(tmp_path / "two", DrawerCollectConfig(**vars(config) | {"processes": 2}))
    assert one.digest() == two.digest()
