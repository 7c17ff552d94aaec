"""The drawer world as a Gymnasium environment, drawn."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import rlvr_envs  # noqa: F401  (registers the ids)
from rlvr_envs.contexts import DrawerStarts, load_drawer_starts, load_starts, save_starts
from rlvr_envs.drawer_rules import HANDLE_HEIGHTS_M, HORIZON_STEPS, TASKS, drawer_task, handle_position
from rlvr_envs.simulators.drawer import DrawerWorld
from rlvr_envs.simulators.drawer_env import DrawerSimEnv
from rlvr_envs.simulators.drawer_policies import drawer_action, make_policy
from rlvr_envs.simulators.drawer_rendering import PALETTE, DrawerCamera, Look
from rlvr_envs.simulators.drawer_starts import make_drawer_starts

pytestmark = pytest.mark.gl

ENV_ID = "RLVRWorld/RT1-Drawer-Sim-v0"
STILL = np.zeros(13)
GRIPPING = np.array([0.645, 0, HANDLE_HEIGHTS_M["middle"], 0, 0, 0, 0.02, 0, 0, 0])


def actions_of(seed: int, steps: int) -> np.ndarray:
    """Random motions."""
    generator = np.random.default_rng(seed)
    return np.stack(
        [
            drawer_action(generator.uniform(-0.06, 0.06, 3), generator.uniform(-0.2, 0.2, 3), 0.2)
            for _ in range(steps)
        ]
    )


def test_gymnasium_checks_pass() -> None:
    check_env(gym.make(ENV_ID, render_mode="rgb_array").unwrapped)


def test_stable_baselines_checks_pass() -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker", reason="needs the extra sb3")
    checker.check_env(gym.make(ENV_ID, render_mode="rgb_array"))


def test_what_a_user_gets() -> None:
    env = gym.make(ENV_ID, task="open_middle_drawer")
    observation, info = env.reset(seed=0)
    assert (observation.shape, observation.dtype) == ((64, 80, 3), np.uint8)
    assert env.action_space.shape == (13,)
    assert set(info) == {"instruction", "task", "state", "success", "clipped_actions"}
    assert info["instruction"] == env.unwrapped.instruction == "open middle drawer"
    assert info["task"] == "open_middle_drawer"
    assert (info["state"].shape, info["state"].dtype) == ((10,), np.float64)
    assert info["success"] is False
    assert env.render() is None
    env.close()


def test_an_expert_earns_the_reward_and_ends_the_episode() -> None:
    for task in ("open_bottom_drawer", "close_top_drawer"):
        env = DrawerSimEnv(task=task)
        _, info = env.reset(seed=5)
        policy = make_policy("expert", drawer_task(task), np.random.default_rng(5))
        terminated, steps = False, 0
        while not terminated:
            _, reward, terminated, truncated, info = env.step(policy.act(info["state"]))
            assert not truncated
            assert reward == float(info["success"])
            steps += 1
        assert info["success"]
        assert steps < 60


def test_only_the_flag_terminates() -> None:
    env = DrawerSimEnv(task="close_top_drawer")
    shut = np.array([0.25, 0, 0.4, 0, 0, 0, 0.1, 0, 0, 0])
    _, info = env.reset(seed=0, options={"state": shut})
    assert info["success"]
    for flags, ends in (((0, 0, 0), False), ((0, 1, 0), False), ((1, 1, 0), False), ((0.9, 0.2, 0), True)):
        action = STILL.copy()
        action[7:10] = flags
        _, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated, truncated) == (1.0, ends, False)


def test_horizon_truncates() -> None:
    env = gym.make(ENV_ID, image_size=(16, 20))
    env.reset(seed=0)
    ends = [env.step(STILL)[2:4] for _ in range(HORIZON_STEPS)]
    assert ends == [(False, False)] * 111 + [(False, True)]


def test_seeds_decide_everything() -> None:
    env, other = DrawerSimEnv(), DrawerSimEnv()
    frames = []
    for seed in range(12):
        frame, info = env.reset(seed=seed)
        again, info_again = other.reset(seed=seed)
        np.testing.assert_array_equal(frame, again)
        assert info["task"] == info_again["task"]
        frames.append(frame)
    for action in actions_of(0, 5):
        np.testing.assert_array_equal(env.step(action)[0], other.step(action)[0])
    assert len({frame.tobytes() for frame in frames}) == 12
    assert len({env.reset(seed=seed)[1]["task"] for seed in range(30)}) == 6
    # One option does not change what the seed gives for the rest.
    frame, info = env.reset(seed=3)
    given, _ = env.reset(seed=3, options={"state": info["state"]})
    np.testing.assert_array_equal(given, frame)
    same, info = env.reset(seed=3, options={"task": info["task"]})
    np.testing.assert_array_equal(same, frame)


def test_snapshots_continue_exactly() -> None:
    env = DrawerSimEnv(render_mode="rgb_array", render_size=(64, 64))
    env.reset(seed=2, options={"state": GRIPPING, "task": "open middle drawer"})
    pull = drawer_action(np.array([-0.04, 0.0, 0.0]), np.zeros(3), 1.0)
    for _ in range(3):
        before = env.step(pull)[0]
    snapshot, picture = pickle.loads(pickle.dumps(env.snapshot())), env.render()
    actions = [pull, pull, *actions_of(1, 6)]
    expected = [env.step(action) for action in actions]
    assert expected[1][4]["state"][8] > 0.1  # the drawer is being pulled
    other = gym.make(ENV_ID, task="close_top_drawer")
    other.reset(seed=9)
    for target in (env, other.unwrapped):
        frame, info = target.reset(options={"snapshot": snapshot})
        np.testing.assert_array_equal(frame, before)
        assert info["instruction"] == target.instruction == "open middle drawer"
        for action, (frame, reward, _, _, info) in zip(actions, expected, strict=True):
            actual = target.step(action)
            np.testing.assert_array_equal(actual[0], frame)
            np.testing.assert_array_equal(actual[4]["state"], info["state"])
            assert actual[1] == reward
            assert actual[4]["success"] == info["success"]
    env.restore(snapshot)
    np.testing.assert_array_equal(env.render(), picture)


def test_restoring_twice_returns_fresh_arrays() -> None:
    env = DrawerSimEnv()
    frame, info = env.reset(seed=0)
    kept, state = frame.copy(), info["state"].copy()
    frame[:], info["state"][:] = 0, 0
    frame, info = env.restore(env.snapshot())
    np.testing.assert_array_equal(frame, kept)
    np.testing.assert_array_equal(info["state"], state)


def test_rows_of_make_vec_are_single_environments() -> None:
    envs = gym.make_vec(ENV_ID, num_envs=2, reward="dense")
    singles = [gym.make(ENV_ID, reward="dense") for _ in range(2)]
    observations, infos = envs.reset(seed=7)
    firsts = [single.reset(seed=7 + row) for row, single in enumerate(singles)]
    for row, (frame, info) in enumerate(firsts):
        np.testing.assert_array_equal(observations[row], frame)
        assert infos["instruction"][row] == info["instruction"]
    for action in actions_of(4, 3):
        observations, rewards, _, _, _ = envs.step(np.stack([action, -action]))
        for row, single in enumerate(singles):
            frame, reward, _, _, _ = single.step(action * (1, -1)[row])
            np.testing.assert_array_equal(observations[row], frame)
            assert -1 <= reward == rewards[row] <= 0


def test_actions_outside_are_clipped_and_counted() -> None:
    env = DrawerSimEnv()
    env.reset(seed=0)
    before = env.snapshot()
    action = STILL.copy()
    action[[3, 12]] = 1.5, -9.0
    frame, _, _, _, info = env.step(action)
    assert info["clipped_actions"] == 2
    assert env.step(action)[4]["clipped_actions"] == 4
    assert env.restore(before)[1]["clipped_actions"] == 0
    clipped = np.clip(action, env.action_space.low, env.action_space.high)
    np.testing.assert_array_equal(env.step(clipped)[0], frame)
    assert env.reset()[1]["clipped_actions"] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda env: env.step(np.zeros(12)), r"action has shape \(12,\)"),
        (lambda env: env.step(np.full(13, np.nan)), "action holds a value that is not finite"),
        (lambda env: env.reset(options={"tsak": 1}), r"'tsak'.*task, state, snapshot"),
        (lambda env: env.reset(options={"task": "open_topdrawer"}), "did you mean 'open_top_drawer'"),
        (lambda env: env.reset(options={"state": np.zeros(3)}), r"options\['state'\] has shape \(3,\)"),
        (lambda env: env.reset(options={"snapshot": 1}), "snapshot is int"),
        (lambda env: env.reset(options={"snapshot": 1, "task": 2}), "give it alone"),
        (lambda env: DrawerSimEnv(task="fly"), "unknown task 'fly'; the tasks are open_top_drawer"),
        (lambda env: DrawerSimEnv(reward="shaped"), "'shaped'; choose one of sparse, dense"),
        (lambda env: DrawerSimEnv(image_size=64), r"image_size is 64; expected \(height, width\)"),
        (lambda env: DrawerSimEnv(image_size=(0, 5)), "image height is 0"),
        (lambda env: DrawerSimEnv(render_size=(9, 2.5)), "render_size is .*image width is 2.5"),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    env = DrawerSimEnv(image_size=(16, 20))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        call(env)


def test_stepping_before_reset_is_refused() -> None:
    env = DrawerSimEnv(render_mode="rgb_array")
    for call in (lambda: env.step(STILL), env.render, env.snapshot, lambda: env.instruction):
        with pytest.raises(gym.error.ResetNeeded):
            call()


def test_sizes_change_nothing_else() -> None:
    env = DrawerSimEnv(image_size=(48, 60), render_size=(96, 120), render_mode="rgb_array")
    frame, _ = env.reset(seed=0)
    assert frame.shape == env.observation_space.shape == (48, 60, 3)
    picture = env.render()
    assert picture.shape == (96, 120, 3)
    smaller = picture.reshape(48, 2, 60, 2, 3).mean((1, 3))
    assert np.abs(smaller - frame).mean() < 3 < np.abs(smaller[::-1] - frame).mean()
    env.close()
    np.testing.assert_array_equal(env.render(), picture)


def drawn(state: np.ndarray, look: Look) -> np.ndarray:
    world = DrawerWorld()
    world.reset(state)
    return DrawerCamera(world.model, height=64, width=80).frame(world.data, look).astype(int)


@pytest.mark.parametrize("palette", range(len(PALETTE)))
def test_frames_show_what_matters(palette: int) -> None:
    """Opening each drawer by 1 cm, closing the gripper and moving the hand by 1 cm changes pixels."""
    state = np.array([0.25, -0.1, 0.5, 0, 0, 0, 0.1, 0, 0, 0])
    look = Look(palette=palette)
    frame = drawn(state, look)
    for number in (7, 8, 9):
        changed = np.abs(drawn(state + 0.01 * np.eye(10)[number], look) - frame).max(-1)
        assert (changed > 20).sum() >= 3, number
    closed = np.abs(drawn(state - 0.1 * np.eye(10)[6], look) - frame).max(-1)
    assert (closed > 40).sum() >= 15
    for number in (0, 1, 2):
        moved = np.abs(drawn(state + 0.01 * np.eye(10)[number], look) - frame).max(-1)
        assert (moved > 20).sum() >= 5, number


def test_handles_stand_out() -> None:
    """A world whose handles have the colour of the front looks different at each of the three handles."""
    world = DrawerWorld()
    world.reset(np.array([0.16, -0.15, 0.75, 0, 0, 0, 0.1, 0, 0, 0]))
    camera = DrawerCamera(world.model, height=64, width=80)
    frame = camera.frame(world.data, Look())
    bars = {drawer: world.model.geom(f"{drawer}_bar") for drawer in HANDLE_HEIGHTS_M}
    for bar in bars.values():
        group = bar.group.copy()
        bar.group[:] = 5  # not drawn
        changed = np.abs(camera.frame(world.data, Look()).astype(int) - frame).max(-1)
        bar.group[:] = group
        assert (changed > 40).sum() >= 5


def test_closed_cameras_say_so() -> None:
    world = DrawerWorld()
    camera = DrawerCamera(world.model, height=8, width=8)
    camera.close()
    camera.close()
    with pytest.raises(RuntimeError, match="camera is closed"):
        camera.frame(world.data, Look())


def test_start_frames(tmp_path: Any) -> None:
    starts = make_drawer_starts(per_task=2, height=16, width=20)
    assert {key: value.shape for key, value in vars(starts).items()} == {
        "images": (12, 16, 20, 3),
        "states": (12, 10),
        "tasks": (12,),
    }
    np.testing.assert_array_equal(np.unique(starts.tasks), np.arange(6))
    task = list(TASKS.values())[3]
    assert handle_position(starts.states[6], task.drawer)[0] < 0.5  # a drawer to be shut stands open
    save_starts(starts, tmp_path / "drawer_starts.npz")
    again = load_starts(DrawerStarts, tmp_path / "drawer_starts.npz")
    for key, value in vars(starts).items():
        np.testing.assert_array_equal(getattr(again, key), value)


def test_bundled_starts_are_the_simulators() -> None:
    bundled, made = load_drawer_starts(), make_drawer_starts(per_task=2)
    assert bundled.images.shape == (288, 64, 80, 3)
    # The same seed, fewer of each task: the first task's starts are the same ones.
    np.testing.assert_allclose(bundled.states[:2], made.states[:2], atol=1e-9)
    assert np.abs(bundled.images[:2].astype(int) - made.images[:2]).mean() < 1  # drivers round differently


def test_speed() -> None:
    env = DrawerSimEnv(task="open_top_drawer")
    env.reset(seed=0)
    actions = actions_of(0, 60)
    start = time.process_time()
    for action in actions:
        env.step(action)
    # 400 frames/s on an idle core; a shadow map would leave 25.
    assert 60 / (time.process_time() - start) > 120


def test_torch_compiles_after_a_frame_was_drawn() -> None:
    """Mesa and Triton crash a process that loads them in the wrong order."""
    pytest.importorskip("triton", reason="this torch brings no Triton")
    code = (
        "from rlvr_envs.simulators.drawer_env import DrawerSimEnv\n"
        "env = DrawerSimEnv(); env.reset(seed=0)\n"
        "import torch._dynamo, triton\n"
        "env.reset(seed=1)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
