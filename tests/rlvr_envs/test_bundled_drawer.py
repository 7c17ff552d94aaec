"""The learned drawer world with the weights that ship: batched = single, whole episodes, and hands that follow."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlvr_envs  # noqa: F401  registers the ids
import worldmodels
from rlvr_envs.drawer_rules import HAND, HORIZON_STEPS, TASKS
from rlvr_envs.simulators.drawer import MAX_SHIFT_M, MAX_TURN_RAD, DrawerWorld
from rlvr_envs.simulators.drawer_env import act_in
from worldmodels.folders import ASSETS, bundled
from worldmodels.video.multi_step_world import MultiStepWorldModel
from worldmodels.video.rt1_actions import RT1_PARTS

ENV_ID = "RLVRWorld/RT1-Drawer-v0"


def commands(steps: int, seed: int) -> np.ndarray:
    """Small random motion that does not end the episode, ``(steps, 13)``."""
    generator = np.random.default_rng(seed)
    actions = np.zeros((steps, 13), np.float32)
    actions[:, RT1_PARTS["world_vector"]] = generator.uniform(-0.1, 0.1, (steps, 3))
    actions[:, RT1_PARTS["terminate_episode"]] = (0, 1, 0)
    return actions


def recording_model() -> tuple[MultiStepWorldModel, list[np.ndarray]]:
    """The bundled model, and the ids ``(B, K)`` of the frames that it predicts from now on."""
    model, ids = worldmodels.load("drawer-rlvr"), []
    assert isinstance(model, MultiStepWorldModel)
    step = model.step

    def recorded(*arguments: Any, **options: Any) -> Any:
        state, predictions = step(*arguments, **options)
        ids.append(predictions.tokens.numpy())
        return state, predictions

    model.step = recorded  # type: ignore[method-assign]
    return model, ids


def test_row_i_of_make_vec_equals_make_with_seed_plus_i():
    rows, steps = 3, 20  # nearly three windows
    model, together_ids = recording_model()
    envs = gym.make_vec(ENV_ID, num_envs=rows, world_model=model)
    actions = np.stack([commands(steps, seed) for seed in range(rows)], 1)
    firsts, first_infos = envs.reset(seed=5)
    batch = [envs.step(action) for action in actions]
    for row in range(rows):
        model, ids = recording_model()
        env = gym.make(ENV_ID, world_model=model)
        frame, info = env.reset(seed=5 + row)
        np.testing.assert_array_equal(frame, firsts[row])
        assert info["instruction"] == first_infos["instruction"][row] == env.unwrapped.instruction
        for step in range(steps):
            frame, _, terminated, truncated, info = env.step(actions[step, row])
            np.testing.assert_array_equal(ids[step][0], together_ids[step][row])
            frames, _, all_terminated, all_truncated, infos = batch[step]
            # The same ids, painted in a batch of another size: sums are taken in another order, and where a pixel
            # lies between two of its 256 levels it may be rounded to the other one.
            assert np.abs(frame.astype(int) - frames[row]).max() <= 1
            np.testing.assert_allclose(info["state"], infos["state"][row], atol=5e-3)
            assert (terminated, truncated) == (all_terminated[row], all_truncated[row])


def test_what_the_model_takes_for_its_nearest_number_the_truth_does_not_follow_either():
    """Why numbers between the model's own range and that of the action space are not counted as clipped."""
    env = gym.make(ENV_ID)
    bins = env.unwrapped.world_model.action_bins
    low, high = (np.array(ends, np.float32) for ends in (bins.low, bins.high))
    for part, follows in (
        ("world_vector", MAX_SHIFT_M),
        ("rotation_delta", MAX_TURN_RAD),
    ):
        assert (low[RT1_PARTS[part]] < -follows).all()
        assert (high[RT1_PARTS[part]] > follows).all()
    assert (low[3], high[3]) == (-1, 1)  # the gripper has its whole range
    # In truth and dream the largest command of the space, and the model's largest, are the same command.
    for limit, end in ((env.action_space.high.copy(), high), (env.action_space.low.copy(), low)):
        worlds = [DrawerWorld(), DrawerWorld()]
        for world, action in zip(worlds, (limit, end), strict=True):
            for _ in range(3):
                act_in(world, action)
        np.testing.assert_array_equal(worlds[0].state(), worlds[1].state())
        np.testing.assert_array_equal(bins.encode(limit), bins.encode(end))
        env.reset(seed=0)
        limit[RT1_PARTS["terminate_episode"]] = (0, 1, 0)
        assert env.step(limit)[4]["clipped_actions"] == 0
        assert env.step(2 * limit)[4]["clipped_actions"] > 0


def test_bundled_drawer_assets_stay_below_30_mb():
    folders = [ASSETS / name for name in bundled() if name.startswith("drawer")]
    assert len(folders) >= 5
    sizes = {path: path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 30e6, sizes


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
