"""The learned drawer world with the weights that ship: batched = single, whole episodes, and hands that follow."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import rlvr_envs  # noqa: F401  registers the ids
from rlvr_envs.drawer_rules import HAND, HORIZON_STEPS, TASKS
from worldmodels.video.rt1_actions import RT1_PARTS

ENV_ID = "RLVRWorld/RT1-Drawer-v0"


def commands(steps: int, seed: int) -> np.ndarray:
    """Small random motion that does not end the episode, ``(steps, 13)``."""
    generator = np.random.default_rng(seed)
    actions = np.zeros((steps, 13), np.float32)
    actions[:, RT1_PARTS["world_vector"]] = generator.uniform(-0.1, 0.1, (steps, 3))
    actions[:, RT1_PARTS["terminate_episode"]] = (0, 1, 0)
    return actions


def test_row_i_of_make_vec_equals_make_with_seed_plus_i():
    envs = gym.make_vec(ENV_ID, num_envs=3)
    together, infos = envs.reset(seed=5)
    singles = [gym.make(ENV_ID) for _ in range(3)]
    for row, env in enumerate(singles):
        alone, info = env.reset(seed=5 + row)
        np.testing.assert_array_equal(alone, together[row])
        assert info["instruction"] == infos["instruction"][row] == env.unwrapped.instruction
    for action in np.stack([commands(9, seed) for seed in range(3)], 1):  # longer than a window of 8 frames
        together, _, _, _, infos = envs.step(action)
        for row, env in enumerate(singles):
            alone, _, _, _, info = env.step(action[row])
            # Tokens are equal; pixels are decoded from them in another batch and may round differently.
            assert np.abs(alone.astype(int) - together[row]).max() <= 1
            np.testing.assert_allclose(info["state"], infos["state"][row], atol=5e-3)


def test_a_whole_episode_is_truncated_at_its_horizon_and_a_flag_ends_it_before():
    env = gym.make(ENV_ID, task="open_middle_drawer")
    frame, info = env.reset(seed=0)
    assert info["instruction"] == "open middle drawer"
    for step, action in enumerate(commands(HORIZON_STEPS, 0), start=1):
        seen, reward, terminated, truncated, info = env.step(action)
        assert seen.shape == frame.shape == (64, 80, 3)
        assert not terminated
        assert np.isfinite(info["state"]).all()
        assert reward == float(info["success"])
        assert truncated == (step == HORIZON_STEPS)
    env.reset(seed=0)
    ending = commands(1, 0)[0]
    ending[RT1_PARTS["terminate_episode"]] = (1, 0, 0)
    assert env.step(ending)[2]


@pytest.mark.parametrize("axis", range(3))
def test_the_hand_goes_where_the_action_says(axis):
    """Mean over first frames: one dream may err, and at a joint's limit the hand cannot follow."""
    ends = []
    for sign in (-1, 1):
        envs = gym.make_vec(ENV_ID, num_envs=8, temperature=0.0)
        envs.reset(seed=1)
        actions = commands(1, 0)[[0] * 8]
        actions[:, RT1_PARTS["world_vector"]] = 0
        actions[:, RT1_PARTS["world_vector"].start + axis] = 0.08 * sign
        for _ in range(4):
            infos = envs.step(actions)[4]
        ends.append(infos["state"][:, HAND][:, axis])
    # Commanded: 64 cm apart; walls, the cabinet and the reader's error take their share.
    assert (ends[1] - ends[0]).mean() > 0.1


def test_all_tasks_begin_somewhere():
    for task in TASKS:
        _, info = gym.make(ENV_ID, task=task).reset(seed=2)
        assert info["task"] == task
