"""Batches of worlds: a reused batch forgets its contacts, and agrees with single worlds before contact."""

import numpy as np
import pytest

from rlvr_envs.simulators.pusht import PushTWorld
from rlvr_envs.simulators.pusht_batch import PushTBatch
from rlvr_envs.simulators.pusht_policies import BatchPusher, clearance, sample_states


def rollout(batch, states, steps=30):
    batch.set_states(states)
    pusher = BatchPusher(batch.num_worlds, np.random.default_rng(0))
    trace = [batch.states()]
    for _ in range(steps):
        trace.append(batch.step(pusher.act(trace[-1])))
    return np.stack(trace, 1)


def test_a_reused_batch_equals_a_fresh_one():
    states = sample_states(16, np.random.default_rng(1))
    batch = PushTBatch(16)
    first = rollout(batch, states)
    assert np.abs(first[:, -1, 2:4] - first[:, 0, 2:4]).max() > 20  # there was contact to forget
    assert np.array_equal(rollout(batch, states), first)


def test_agrees_with_single_worlds_without_contact():
    states = sample_states(4, np.random.default_rng(2), min_clearance_px=80)
    batch, actions = PushTBatch(4), np.random.default_rng(3).normal(size=(3, 4, 2)) * 0.1
    batch.set_states(states)
    for action in actions:
        together = batch.step(action)
    for row in range(4):
        world = PushTWorld()
        world.set_state(states[row])
        for action in actions:
            alone = world.step(action[row])
        assert np.abs(alone - together[row]).max() < 1e-7


def test_starts_are_clear_of_the_block_and_seeded():
    states = sample_states(200, np.random.default_rng(4))
    assert clearance(states).min() >= 25
    assert np.array_equal(states, sample_states(200, np.random.default_rng(4)))


def test_errors():
    with pytest.raises(ValueError, match="at least 1"):
        PushTBatch(0)
    with pytest.raises(ValueError, match="finite"):
        PushTBatch(1).step(np.full((1, 2), np.nan))
