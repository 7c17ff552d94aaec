"""The drawer dream over a toy world model: spaces, starts, tasks, ends and clear errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from safetensors.torch import save_file

from rlvr_envs.contexts import load_drawer_starts
from rlvr_envs.drawer_dream import DrawerDreamEnv, rt1_drawer, rt1_drawer_vector
from rlvr_envs.drawer_rules import TASKS
from tests.toys import RollingWorldModel
from tests.worldmodels.test_released import transformer_folder
from worldmodels.api import Episode, History
from worldmodels.episodes import write_all
from worldmodels.video.frame_tokenizer import FrameTokenizer, FrameTokenizerConfig
from worldmodels.video.rt1_actions import RT1_HIGH, RT1_LOW
from worldmodels.video.single_step_world import SingleStepWorldModel

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


def test_recorded_frames_of_other_proportions_are_not_stretched(tmp_path: Path) -> None:
    """And nothing but first frames is read: these robots' actions have 7 numbers."""
    episode = Episode(
        id="square",
        observations=np.full((3, 128, 128, 3), 200, np.uint8),
        actions=np.zeros((2, 7), np.float32),
        rewards=np.zeros(2),
    )
    write_all(tmp_path, [episode])
    frame, _ = dream(episodes=tmp_path).reset(seed=0)
    assert (frame[:, 8:-8] == 200).all()
    assert not frame[:, :8].any()
    assert not frame[:, -8:].any()


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


@pytest.fixture(scope="module")
def single_step(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A single-step pair in the released files' form, small and random, and recorded frames of the released size."""
    folder = tmp_path_factory.mktemp("single")
    sizes = {
        **{"block_out_channels": [8] * 7, "layers_per_block": 1, "latent_channels": 4},
        **{"norm_num_groups": 4, "fsq_levels": 8},
    }
    tokenizer = FrameTokenizer(FrameTokenizerConfig.from_diffusers(sizes), seed=3)
    with torch.no_grad():
        tokenizer.quant_linear.weight.mul_(50)  # random weights use all their codes
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "config.json").write_text(json.dumps({"_class_name": "CNNFSQModel256", **sizes}))
    weights = {key: value.half() for key, value in tokenizer.state_dict().items()}
    save_file(weights, folder / "tokenizer" / "diffusion_pytorch_model.safetensors")
    transformer_folder(folder / "transformer", tokenizer.fsq.codebook_size + 256 + 2)
    generator = np.random.default_rng(0)
    episodes = [
        Episode(
            id=f"e{number}",
            observations=generator.integers(0, 256, (2, 256, 320, 3), dtype=np.uint8),
            actions=np.zeros((1, 13), np.float32),
            rewards=np.zeros(1),
        )
        for number in range(3)
    ]
    write_all(folder / "episodes", episodes)
    return {
        "world_model": folder / "transformer",
        "tokenizer": folder / "tokenizer",
        "episodes": folder / "episodes",
    }


def test_a_released_single_step_pair_dreams_alone_and_batched(single_step: dict[str, Path]) -> None:
    env_id = "RLVRWorld/RT1-Drawer-v0"
    actions = np.random.default_rng(1).uniform(RT1_LOW, RT1_HIGH, (6, 2, 13)).astype(np.float32)
    actions[..., 7:10] = (0, 1, 0)
    envs = gym.make_vec(env_id, num_envs=2, **single_step)
    assert envs.single_observation_space.shape == (256, 320, 3)
    firsts, _ = envs.reset(seed=4)
    assert not np.array_equal(*firsts)
    batch = [envs.step(action) for action in actions]  # more than the 4 frames of history
    for row in range(2):
        env = gym.make(env_id, **single_step)
        model = env.unwrapped.world_model  # type: ignore[attr-defined]
        assert isinstance(model, SingleStepWorldModel)
        assert model.layout.visual_tokens == 20
        frame, info = env.reset(seed=4 + row)
        np.testing.assert_array_equal(frame, firsts[row])
        seen = []
        for step, action in enumerate(actions[:, row]):
            frame, reward, terminated, truncated, info = env.step(action)
            assert env.observation_space.contains(frame)
            assert (reward, terminated, truncated, info["prediction_error"]) == (0.0, False, False, "")
            # Decoded in another batch, a pixel may be rounded to the neighbouring level.
            assert np.abs(frame.astype(int) - batch[step][0][row]).max() <= 1
            seen.append(frame)
        assert not np.array_equal(seen[0], seen[-1])


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
