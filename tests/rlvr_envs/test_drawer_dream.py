"""The drawer dream over a toy world model: spaces, starts, tasks, ends and clear errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlvr_envs.contexts import load_drawer_starts
from rlvr_envs.drawer_dream import DrawerDreamEnv, rt1_drawer, rt1_drawer_vector
from rlvr_envs.drawer_rules import TASKS
from tests.toys import RollingWorldModel
from worldmodels.api import Episode, History
from worldmodels.episodes import write_all

STILL = np.zeros(13, np.float32)
OPENING, LAST = STILL.copy(), STILL.copy()
OPENING[10], LAST[7] = 0.1, 1.0


def dream(**kwargs: Any) -> DrawerDreamEnv:
    return rt1_drawer(world_model=RollingWorldModel(), **kwargs)


def test_is_a_correct_environment() -> None:
    check_env(dream(render_mode="rgb_array"))
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker", reason="needs the extra sb3")
    sb3.check_env(dream(render_mode="rgb_array"))


def test_begins_with_bundled_frames_of_the_task() -> None:
    starts, names = load_drawer_starts(), list(TASKS)
    env = dream(render_mode="rgb_array")
    seen = set()
    for seed in range(20):
        frame, info = env.reset(seed=seed)
        (row,) = np.flatnonzero((starts.images == frame).all(axis=(1, 2, 3)))
        assert info["task"] == names[starts.tasks[row]]
        assert info["instruction"] == env.instruction == TASKS[info["task"]].instruction
        np.testing.assert_array_equal(info["state"], starts.states[row])
        seen.add(info["task"])
    assert len(seen) > 2
    assert env.render().shape == (256, 320, 3)
    fixed = dream(task="close top drawer")
    assert all(fixed.reset(seed=seed)[1]["task"] == "close_top_drawer" for seed in range(5))
    assert fixed.reset(options={"task": "open_bottom_drawer"})[1]["instruction"] == "open bottom drawer"


def test_success_is_judged_on_what_the_model_reads() -> None:
    env = dream(task="open_middle_drawer", temperature=0.0)
    env.reset(seed=0)
    results = [env.step(OPENING) for _ in range(3)]
    assert [result[1] for result in results] == [0.0, 1.0, 1.0]
    assert [result[4]["success"] for result in results] == [False, True, True]
    assert not any(result[2] for result in results)  # success ends nothing
    assert results[1][4]["state"][8] == pytest.approx(0.2)
    dense = dream(task="open_middle_drawer", temperature=0.0, reward="dense")
    dense.reset(seed=0)
    assert -1 < dense.step(OPENING)[1] < dense.step(OPENING)[1] == 0


def test_a_model_that_reads_nothing_leaves_success_unknown() -> None:
    env = rt1_drawer(world_model=RollingWorldModel(reads_states=False), reward="dense")
    env.reset(seed=0)
    _, reward, _, _, info = env.step(OPENING)
    assert (reward, info["success"]) == (-1.0, False)
    assert np.isnan(info["state"]).all()


def test_the_flag_of_the_action_ends_the_episode() -> None:
    env = dream()
    env.reset(seed=0)
    assert [env.step(action)[2] for action in (STILL, LAST)] == [False, True]
    envs = rt1_drawer_vector(world_model=RollingWorldModel(), num_envs=2)
    envs.reset(seed=0)
    assert envs.step(np.stack([LAST, STILL]))[2].tolist() == [True, False]


def test_rows_of_a_batch_are_single_dreams() -> None:
    envs = rt1_drawer_vector(world_model=RollingWorldModel(), num_envs=3, max_episode_steps=4)
    singles = [dream() for _ in range(3)]
    frames, infos = envs.reset(seed=5)
    for row, single in enumerate(singles):
        frame, info = single.reset(seed=5 + row)
        np.testing.assert_array_equal(frames[row], frame)
        assert infos["task"][row] == info["task"]
    actions = np.random.default_rng(0).uniform(-0.3, 0.3, (4, 3, 13)).astype(np.float32)
    actions[..., 7:10] = (0, 1, 0)
    for step in range(4):
        frames, rewards, _, truncated, _ = envs.step(actions[step])
        for row, single in enumerate(singles):
            frame, reward, *_ = single.step(actions[step, row])
            np.testing.assert_array_equal(frames[row], frame)
            assert rewards[row] == reward
    assert truncated.all()


def test_begins_with_recorded_episodes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    episodes = [
        Episode(
            id=f"e{i}",
            observations=generator.integers(0, 256, (3, 32, 48, 3), dtype=np.uint8),
            actions=np.zeros((2, 13), np.float32),
            rewards=np.zeros(2),
        )
        for i in range(3)
    ]
    write_all(tmp_path, episodes)
    model = RollingWorldModel(image_size=(32, 48))
    env = rt1_drawer(world_model=model, episodes=tmp_path)
    firsts = np.stack([episode.observations[0] for episode in episodes])
    for seed in range(6):
        frame, info = env.reset(seed=seed)
        assert (firsts == frame).all(axis=(1, 2, 3)).sum() == 1
        assert (info["task"], info["success"]) == ("", False)
    model.protocol = {**model.protocol, "image_size": (32, 48)}  # a tuple is as good as a list
    assert rt1_drawer(world_model=model, episodes=tmp_path).observation_space.shape == (32, 48, 3)
    with pytest.raises(ValueError, match="32x48 px.*episodes="):
        rt1_drawer(world_model=model)
    with pytest.raises(ValueError, match="no first frame belongs to 'open_top_drawer'"):
        env.reset(options={"task": "open_top_drawer"})


def test_released_files_dream_from_real_frames(conformance: Callable[[str], Path]) -> None:
    clip = conformance("video/rt1_clip.npz")
    env = rt1_drawer(
        world_model=conformance("video/transformer"),
        tokenizer=conformance("video/compressive_tokenizer"),
        episodes=clip,
    )
    frame, info = env.reset(seed=0)
    with np.load(clip) as arrays:
        np.testing.assert_array_equal(frame, arrays["image"][0])
    assert (info["instruction"], env.instruction, info["task"]) == ("", "", "")
    frame, reward, terminated, _, info = env.step(STILL)
    assert env.observation_space.contains(frame)
    assert (reward, terminated, info["prediction_error"]) == (0.0, False, "")
    assert np.isnan(info["state"]).all()


def test_begins_with_what_the_options_show() -> None:
    env = dream(temperature=0.0)
    first = np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8)
    frame, info = env.reset(options={"observation": first, "task": "open_top_drawer", "state": np.arange(10)})
    np.testing.assert_array_equal(frame, first)
    np.testing.assert_array_equal(info["state"], np.arange(10))
    history = History(observations=(first, first[::-1].copy()), actions=(STILL,))
    frame, info = env.reset(options={"history": history})
    np.testing.assert_array_equal(frame, first[::-1])
    assert np.isnan(info["state"]).all()


def test_clear_errors() -> None:
    env = dream()
    frame = np.zeros((64, 80, 3), np.uint8)
    for options, match in (
        ({"state": np.zeros(10)}, "only the simulator can draw it"),
        ({"observation": frame, "state": np.zeros(9)}, r"\(9,\)"),
        ({"observation": frame[:32]}, r"\(32, 80, 3\)"),
        ({"task": "open_midle_drawer"}, "did you mean 'open_middle_drawer'"),
        ({"goal": 1}, "'goal'.*task.*observation"),
    ):
        with pytest.raises(ValueError, match=match):
            env.reset(options=options)
    with pytest.raises(ValueError, match="sparse, dense"):
        dream(reward="shaped")
    with pytest.raises(ValueError, match="unknown task"):
        dream(task="open_door")
    other = RollingWorldModel()
    other.protocol = {"environment": "PushT", "image_size": 64}
    with pytest.raises(ValueError, match="image_size = 64 of PushT.*height and width"):
        rt1_drawer(world_model=other)
    with pytest.raises(ValueError, match="an object that has its own"):
        dream(tokenizer="somewhere")
    with pytest.raises(gym.error.ResetNeeded):
        env.step(STILL)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="finite"):
        env.step(np.full(13, np.nan))
    far = STILL.copy()
    far[0] = 5.0
    assert env.step(far)[4]["clipped_actions"] == 1
