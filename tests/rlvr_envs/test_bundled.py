"""The learned environment with the weights that ship: batched = single, in step and after restarts."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import rlvr_envs  # noqa: F401  registers the ids
import worldmodels
from worldmodels.checkpoints import ASSETS, bundled

ACTIONS = np.random.default_rng(0).uniform(-0.5, 0.5, (7, 4, 10)).astype(np.float32)


@pytest.mark.parametrize("name", [name for name in bundled() if name in ("pusht-base", "pusht-rlvr")])
def test_row_i_of_make_vec_equals_make_with_seed_plus_i(name):
    envs = gym.make_vec("RLVRWorld/PushT-v0", num_envs=4, world_model=name)
    together, _ = envs.reset(seed=11)
    singles = [gym.make("RLVRWorld/PushT-v0", world_model=name) for _ in range(4)]
    for row, env in enumerate(singles):
        alone, _ = env.reset(seed=11 + row)
        np.testing.assert_array_equal(alone["image"], together["image"][row])
    for action in ACTIONS:  # longer than the window of 8 frames
        together, _, _, _, infos = envs.step(action)
        for row, env in enumerate(singles):
            alone, _, _, _, info = env.step(action[row])
            # Tokens are equal; pixels are decoded from them in another batch and may differ in the last bit.
            np.testing.assert_array_equal(alone["proprio"], together["proprio"][row])
            np.testing.assert_allclose(info["state"], infos["state"][row], atol=1e-3)
            assert np.abs(alone["image"].astype(int) - together["image"][row]).max() <= 1


def test_a_snapshot_continues_exactly():
    env = gym.make("RLVRWorld/PushT-v0").unwrapped
    env.reset(seed=3)
    env.step(ACTIONS[0, 0])
    snapshot = env.snapshot()
    first = [env.step(action[0])[0]["image"] for action in ACTIONS]
    env.restore(snapshot)
    again = [env.step(action[0])[0]["image"] for action in ACTIONS]
    np.testing.assert_array_equal(first, again)


def test_the_agent_goes_where_the_action_says():
    env = gym.make("RLVRWorld/PushT-v0", temperature=0.0)
    observation, _ = env.reset(seed=5)
    right = np.tile(np.array([0.4, 0.0], np.float32), 5)
    moved, _, _, _, _ = env.step(right)
    assert moved["proprio"][0] - observation["proprio"][0] > 40
    assert abs(moved["proprio"][1] - observation["proprio"][1]) < 10


def test_a_world_model_can_be_a_folder_and_nothing_that_is_none():
    env = gym.make("RLVRWorld/PushT-v0", world_model=ASSETS / "pusht-base")
    env.reset(seed=0)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        gym.make("RLVRWorld/PushT-v0", world_model=Path("/no/such/model"))
    with pytest.raises(ValueError, match="world_model is dict; give the name, folder"):
        gym.make("RLVRWorld/PushT-v0", world_model={})


def test_a_checkpoint_of_another_protocol_is_refused():
    model = worldmodels.load("pusht-base")
    model.protocol["environment"] = "drawer"
    with pytest.raises(ValueError, match=r"trained for environment = 'drawer'.*'PushT'"):
        gym.make("RLVRWorld/PushT-v0", world_model=model)
