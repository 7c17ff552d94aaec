"""The registry: light to import, plain data, and every id a correct environment."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import rlvr_envs  # registers the ids
from rlvr_envs.table import ENVS
from tests.toys import PointWorldModel

# Whatever draws with MuJoCo needs an OpenGL driver.
IDS = [pytest.param(i, marks=pytest.mark.gl) if "Drawer-Sim" in i else i for i in sorted(ENVS)]
PUSHT = sorted(env_id for env_id in ENVS if "PushT" in env_id)
TWINS = [
    pytest.param(env_id, marks=pytest.mark.gl) if "Drawer" in env_id else env_id
    for env_id, entry in sorted(ENVS.items())
    if entry.twin is not None and "Text" not in env_id
]
PICTURES = [i for i in IDS if "Text" not in str(i)]
FORBIDDEN_INFO = {"reward", "terminated", "truncated", "action", "step_idx", "id", "image", "proprio"}


def make(env_id: str, **kwargs: Any) -> gym.Env:
    """The environment of that id, the learned ones with their bundled models."""
    return gym.make(env_id, **kwargs)


def test_import_is_light() -> None:
    code = (
        "import sys, rlvr_envs, gymnasium\n"
        "assert 'RLVRWorld/PushT-v0' in gymnasium.registry\n"
        "heavy = {'torch', 'pymunk', 'mujoco', 'pygame', 'cv2', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_simulators_need_no_torch() -> None:
    code = (
        "import sys, rlvr_envs.simulators.pusht_env\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("env_id", IDS)
def test_registration_is_strings(env_id: str) -> None:
    assert rlvr_envs.ENVS is ENVS
    spec = gym.spec(env_id)
    assert EnvSpec.from_json(spec.to_json()) == spec
    twin = ENVS[env_id].twin
    assert twin is None or twin in ENVS


@pytest.mark.parametrize("env_id", TWINS)
def test_twins_share_their_spaces(env_id: str) -> None:
    twin_id = ENVS[env_id].twin
    assert twin_id is not None
    env, twin = make(env_id), make(twin_id)
    assert env.observation_space == twin.observation_space
    assert env.action_space == twin.action_space
    _, info = env.reset(seed=0)
    _, twin_info = twin.reset(seed=0)
    assert set(info) - set(twin_info) == {"prediction_error"}
    assert set(twin_info) <= set(info)
    for key, value in twin_info.items():
        assert type(value) is type(info[key]), key
        assert np.shape(value) == np.shape(info[key]), key


def test_make_imports_the_package_by_name() -> None:
    env = gym.make("rlvr_envs:RLVRWorld/PushT-Sim-v0")
    env.reset(seed=0)
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.observation_space == env.observation_space


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_checks_pass(env_id: str) -> None:
    check_env(make(env_id, render_mode="ansi" if "Text" in env_id else "rgb_array").unwrapped)


@pytest.mark.parametrize("env_id", PICTURES)  # stable-baselines3 knows no texts
def test_stable_baselines_checks_pass(env_id: str) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker", reason="needs the extra sb3")
    checker.check_env(make(env_id, render_mode="rgb_array"))


@pytest.mark.parametrize("env_id", PUSHT)
def test_info_leaves_other_names_free(env_id: str) -> None:
    env = make(env_id)
    _, info = env.reset(seed=0)
    infos = [info, env.step(env.action_space.sample())[4]]
    for entries in infos:
        assert not FORBIDDEN_INFO & set(entries)
        assert entries["goal"].dtype == np.uint8
        assert entries["goal"].shape == (64, 64, 3)
        assert entries["state"].shape == entries["goal_state"].shape == (7,)


@pytest.mark.parametrize("env_id", PUSHT)
def test_returned_arrays_are_the_callers_own(env_id: str) -> None:
    env = make(env_id).unwrapped
    observation, info = env.reset(seed=0)
    kept = {
        key: value.copy() for key, value in {**observation, **info}.items() if isinstance(value, np.ndarray)
    }
    for value in [*observation.values(), info["goal"], info["goal_state"], info["state"]]:
        value[:] = 0
    restored, restored_info = env.restore(env.snapshot())
    for key, value in {**restored, **restored_info}.items():
        if key in kept:
            np.testing.assert_array_equal(value, kept[key])


@pytest.mark.parametrize("env_id", PUSHT)
def test_horizon_truncates(env_id: str) -> None:
    env = make(env_id)
    env.reset(seed=0)
    ends = [env.step(np.zeros(10, np.float32))[2:4] for _ in range(20)]
    assert ends == [(False, False)] * 19 + [(False, True)]


@pytest.mark.parametrize("env_id", IDS)
def test_bad_actions_are_named(env_id: str) -> None:
    env = make(env_id).unwrapped
    env.reset(seed=0)
    wrongs: tuple[Any, ...] = (5, None, "x" * 2_000_000)
    if isinstance(env.action_space, gym.spaces.Box):
        (size,) = env.action_space.shape
        wrongs = (np.zeros(size - 1), np.zeros((1, size)), np.full(size, np.nan), np.full(size, np.inf), "up")
    for wrong in wrongs:
        with pytest.raises(ValueError, match="action"):
            env.step(wrong)


@pytest.mark.parametrize("env_id", PUSHT)
def test_actions_outside_are_clipped_and_counted(env_id: str) -> None:
    env = make(env_id).unwrapped
    action = np.zeros(10)
    action[:3] = (1.5, -2.0, 1.0)
    env.reset(seed=0)
    before = env.snapshot()
    observation, _, _, _, info = env.step(action)
    assert info["clipped_actions"] == 2
    assert env.step(action)[4]["clipped_actions"] == 4
    assert env.reset()[1]["clipped_actions"] == 0
    env.restore(before)
    same = env.step(np.clip(action, -1, 1))[0]
    np.testing.assert_array_equal(observation["proprio"], same["proprio"])


@pytest.mark.parametrize("env_id", PUSHT)
def test_unknown_options_and_rules_list_the_known(env_id: str) -> None:
    env = make(env_id).unwrapped
    with pytest.raises(ValueError, match=r"'sate'.*state.*goal.*snapshot"):
        env.reset(options={"sate": 1})
    with pytest.raises(ValueError, match="snapshot holds"):
        env.reset(options={"snapshot": 1, "goal": 2})
    with pytest.raises(ValueError, match="snapshot is int"):
        env.reset(options={"snapshot": 1})
    with pytest.raises(ValueError, match=r"'shaped'.*sparse, dense, coverage"):
        make(env_id, reward="shaped")
    with pytest.raises(ValueError, match=r"'pose'.*state, coverage"):
        make(env_id, success="pose")


@pytest.mark.parametrize("env_id", IDS)
def test_stepping_before_reset_is_refused(env_id: str) -> None:
    env = make(env_id).unwrapped
    with pytest.raises(gym.error.ResetNeeded):
        env.step(env.action_space.sample())


@pytest.mark.parametrize("env_id", PUSHT)
def test_rows_of_make_vec_are_single_environments(env_id: str) -> None:
    kwargs: dict[str, Any] = {"reward": "dense"}
    if (
        "world_model" in ENVS[env_id].kwargs
    ):  # a toy is exact to the last bit; test_bundled.py has the real ones
        kwargs["world_model"] = PointWorldModel()
    envs = gym.make_vec(env_id, num_envs=3, max_episode_steps=4, **kwargs)
    singles = [make(env_id, max_episode_steps=4, **kwargs) for _ in range(3)]
    observations, infos = envs.reset(seed=7)
    firsts = [single.reset(seed=7 + row) for row, single in enumerate(singles)]
    actions = np.random.default_rng(0).uniform(-1, 1, (10, 3, 10)).astype(np.float32)
    ended = [False] * 3
    results = [(observation, 0.0, False, False, info) for observation, info in firsts]
    rewards, terminated, truncated = np.zeros(3), np.zeros(3, bool), np.zeros(3, bool)
    for step in range(11):
        for row, (observation, reward, end, cut, info) in enumerate(results):
            np.testing.assert_array_equal(observations["image"][row], observation["image"])
            np.testing.assert_array_equal(observations["proprio"][row], observation["proprio"])
            assert (rewards[row], terminated[row], truncated[row]) == (reward, end, cut)
            np.testing.assert_array_equal(infos["state"][row], info["state"])
            np.testing.assert_array_equal(infos["goal"][row], info["goal"])
            assert infos["_goal"][row]
            ended[row] = end or cut
        if step == 10:
            break
        observations, rewards, terminated, truncated, infos = envs.step(actions[step])
        results = []
        for row, single in enumerate(singles):
            if ended[row]:
                observation, info = single.reset()
                results.append((observation, 0.0, False, False, info))
            else:
                results.append(single.step(actions[step, row]))
