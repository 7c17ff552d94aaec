"""The simulator as a Gymnasium environment."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlvr_envs.simulators.pusht import GOAL_POSE
from rlvr_envs.simulators.pusht_drawing import PushTDrawing
from rlvr_envs.simulators.pusht_env import PushTSimEnv
from rlvr_envs.simulators.pusht_policies import clearance

# From here a few actions along x push the block and turn it.
PUSHING = [150.0, 260.0, 256.0, 256.0, 0.3, 0.0, 0.0]


def push(env: PushTSimEnv, seed: int, steps: int) -> list[np.ndarray]:
    """States along random pushes to the right."""
    actions = np.random.default_rng(seed).uniform((-0.2, -0.4), (0.9, 0.4), (steps, 5, 2)).reshape(steps, 10)
    return [env.step(action)[4]["state"] for action in actions]


def test_frame_skip_joins_steps() -> None:
    env, single = PushTSimEnv(), PushTSimEnv(frame_skip=1)
    assert env.action_space.shape == (10,)
    assert single.action_space.shape == (2,)
    for each in (env, single):
        each.reset(seed=0, options={"state": PUSHING})
    actions = np.random.default_rng(0).uniform(-1, 1, (6, 5, 2)).astype(np.float32)
    for action in actions:
        info = env.step(action.reshape(-1))[4]
        for displacement in action:
            single_info = single.step(displacement)[4]
        np.testing.assert_array_equal(info["state"], single_info["state"])
    with pytest.raises(ValueError, match="frame_skip is 0"):
        PushTSimEnv(frame_skip=0)


def test_observations_show_the_state() -> None:
    env = PushTSimEnv(image_size=96)
    observation, info = env.reset(seed=1, options={"state": [*PUSHING[:5], 30, -40]})
    np.testing.assert_array_equal(observation["image"], PushTDrawing(size=96).frame(info["state"]))
    np.testing.assert_allclose(
        observation["proprio"], [150.3, 259.6, 30, -40], atol=1e-4
    )  # one substep of 0.01 s
    np.testing.assert_array_equal(observation["proprio"], info["state"][[0, 1, 5, 6]].astype(np.float32))


def test_seeded_starts() -> None:
    env = PushTSimEnv()
    infos = [env.reset(seed=seed)[1] for seed in range(40)]
    states = np.stack([info["state"] for info in infos])
    assert len(np.unique(states[:, 0])) == 40
    assert clearance(states).min() > 20
    np.testing.assert_array_equal(env.reset(seed=3)[1]["state"], states[3])
    # An option does not change what the seed gives for the rest.
    given = env.reset(seed=3, options={"state": PUSHING})[1]
    np.testing.assert_array_equal(given["goal_state"], infos[3]["goal_state"])
    assert not np.array_equal(env.reset()[1]["state"], env.reset()[1]["state"])


def test_goals_are_drawn() -> None:
    env = PushTSimEnv()
    goal = [300.0, 200.0, 260.0, 250.0, 0.5]
    _, info = env.reset(seed=0, options={"goal": goal})
    np.testing.assert_array_equal(info["goal"], PushTDrawing(size=64).frame(goal))
    np.testing.assert_array_equal(info["goal_state"], [*goal, 0, 0])
    np.testing.assert_array_equal(info["goal_proprio"], np.array([300, 200, 0, 0], dtype=np.float32))
    black = np.zeros((64, 64, 3), dtype=np.uint8)
    info = env.reset(options={"goal": {"state": goal, "image": black}})[1]
    assert not info["goal"].any()


def test_coverage_goals_lie_on_the_picture() -> None:
    env = PushTSimEnv(success="coverage", reward="coverage")
    for seed in range(5):
        _, info = env.reset(seed=seed)
        np.testing.assert_array_equal(info["goal_state"][2:5], GOAL_POSE)
        assert clearance(info["goal_state"][None])[0] > 20


def test_success_terminates() -> None:
    start = [100.0, 100.0, 300.0, 300.0, 1.0]
    env = PushTSimEnv()
    _, info = env.reset(options={"state": start, "goal": start})
    assert info["success"]
    _, reward, terminated, truncated, info = env.step(np.zeros(10))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    env.reset(options={"state": start, "goal": [*start[:4], 1.6]})
    assert env.step(np.zeros(10))[1:3] == (0.0, False)
    covered = PushTSimEnv(success="coverage", reward="coverage")
    covered.reset(options={"state": start, "goal": [400, 400, *start[2:]]})
    assert covered.step(np.zeros(10))[1:3] == (1.0, True)
    dense = PushTSimEnv(reward="dense")
    dense.reset(options={"state": start, "goal": [100, 140, *start[2:]]})
    assert dense.step(np.zeros(10))[1] == pytest.approx(-40 / 512 / 2)


def test_snapshots_continue_exactly() -> None:
    env = PushTSimEnv()
    env.reset(seed=0, options={"state": PUSHING})
    before = push(env, 1, 3)
    assert np.abs(before[-1][2:5] - PUSHING[2:5]).max() > 1  # the block is being pushed
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    expected = push(env, 2, 5)
    assert np.abs(expected[-1][2:5] - before[-1][2:5]).max() > 1
    observation, info = env.restore(snapshot)
    np.testing.assert_array_equal(info["state"], before[-1])
    for actual, state in zip(push(env, 2, 5), expected, strict=True):
        np.testing.assert_array_equal(actual, state)
    other = gym.make("rlvr_envs:RLVRWorld/PushT-Sim-v0")
    again, info = other.reset(options={"snapshot": snapshot})
    np.testing.assert_array_equal(again["image"], observation["image"])
    np.testing.assert_array_equal(push(other.unwrapped, 2, 5)[-1], expected[-1])
    np.testing.assert_array_equal(other.unwrapped.snapshot().goal.state, snapshot.goal.state)


def test_snapshots_of_other_frame_sizes_are_refused() -> None:
    env = PushTSimEnv(image_size=32)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"snapshot's goal.*\(32, 32, 3\)"):
        PushTSimEnv().restore(env.snapshot())


def test_rendering() -> None:
    env = PushTSimEnv(render_mode="rgb_array", render_size=128)
    _, info = env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), PushTDrawing(size=128).frame(info["state"]))
    assert PushTSimEnv().render() is None
    assert PushTSimEnv(frame_skip=1).metadata["render_fps"] == pytest.approx(10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": [1, 2, 3]}, "options.'state'.*shape .3,.*5 numbers"),
        ({"state": [1, 2, 3, 4, np.nan]}, "options.'state'.*not finite"),
        ({"goal": np.zeros(6)}, "options.'goal'.*shape .6,"),
        ({"goal": {"state": np.zeros(5), "image": np.zeros((8, 8, 3), np.uint8)}}, r"image.*\(8, 8, 3\).*64"),
        ({"goal": {"state": np.zeros(5), "image": "goal.png"}}, r"image.*goal.png"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PushTSimEnv().reset(options=options)
