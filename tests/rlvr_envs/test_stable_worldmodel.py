"""Both twins inside stable-worldmodel's ``World``, as its own users would run them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlvr_envs  # noqa: F401  (registers the ids)
from tests.toys import PointWorldModel

swm = pytest.importorskip(
    "stable_worldmodel", reason="needs the package stable-worldmodel (pip install stable-worldmodel==0.1.1)"
)


@pytest.mark.parametrize("env_id", ["RLVRWorld/PushT-Sim-v0", "RLVRWorld/PushT-v0"])
def test_world_evaluates_a_policy(env_id: str) -> None:
    kwargs: dict[str, Any] = {} if "Sim" in env_id else {"world_model": PointWorldModel()}
    world = swm.World(env_id, num_envs=2, image_shape=(96, 96), max_episode_steps=4, **kwargs)
    world.set_policy(swm.policy.RandomPolicy(seed=0))
    world.reset(seed=0)
    assert world.infos["pixels"].shape == (2, 1, 96, 96, 3)
    assert world.infos["goal"].shape == (2, 1, 96, 96, 3)
    assert world.infos["goal"].dtype == np.uint8
    assert world.infos["goal_state"].shape == (2, 1, 7)
    assert world.infos["goal_proprio"].shape == world.infos["proprio"].shape == (2, 1, 4)
    results = world.evaluate(episodes=3, seed=0)
    assert len(results["episode_successes"]) == 3
    world.close()
