"""What every world model must do, checked on each: the bundled ones, a random tiny one, and the toy of other tests."""

from __future__ import annotations

import numpy as np
import pytest

import worldmodels
from rlvr_envs.contexts import load_pusht_starts
from rlvr_envs.tasks import proprio
from tests.toys import PointWorldModel
from tests.worldmodels.frame_worlds import (
    multi_step_world,
    random_actions,
    random_frames,
    single_step_world,
)
from worldmodels.api import History, Predictions, WorldModel
from worldmodels.checkpoints import bundled, find, read_config

BUNDLED = [name for name in bundled() if read_config(find(name))["kind"] == "object_world"]
FRAME_WORLDS = {"multi-step": multi_step_world, "single-step": single_step_world}
STEPS, ROWS = 9, 4


@pytest.fixture(scope="module", params=[*BUNDLED, "toy", *FRAME_WORLDS])
def model(request):
    if request.param in FRAME_WORLDS:
        return FRAME_WORLDS[request.param]()
    return PointWorldModel() if request.param == "toy" else worldmodels.load(request.param)


@pytest.fixture(scope="module")
def actions(model):
    """``(STEPS, ROWS, *action_shape)``."""
    if model.action_shape == (13,):
        return random_actions(STEPS, ROWS)
    return np.random.default_rng(0).uniform(-0.4, 0.4, (STEPS, ROWS, *model.action_shape)).astype(np.float32)


def begin(model, seeds=(1, 2, 3, 4)):
    if model.action_shape == (13,):
        observations = list(random_frames(len(seeds)))
    else:
        starts = load_pusht_starts()
        observations = [
            {"image": starts.images[row], "proprio": proprio(starts.states[row])} for row in range(len(seeds))
        ]
    return model.start([History(observations=[seen]) for seen in observations], seeds=list(seeds))


def places(model, state, actions, temperature=1.0):
    """What was predicted ``(T, B, ...)``, as tokens or as proprioception, a function of the tokens alone."""
    seen = []
    for action in actions:
        state, predictions = model.step(state, action, temperature=temperature)
        tokens = getattr(predictions, "tokens", None)
        seen.append(predictions.observations()["proprio"] if tokens is None else tokens.numpy())
    return np.stack(seen)


def test_types_and_shapes(model, actions):
    assert isinstance(model, WorldModel)
    state = begin(model)
    assert len(state) == 4
    after, predictions = model.step(state, actions[0])
    assert isinstance(predictions, Predictions)
    assert len(after) == len(predictions) == 4
    stacked, one = predictions.observations(), predictions[2].observation
    if isinstance(one, dict):
        for key in ("image", "proprio"):
            np.testing.assert_array_equal(stacked[key][2], one[key])
    else:
        np.testing.assert_array_equal(stacked[2], one)
    assert predictions.states() is None or predictions.states().shape[0] == 4


def test_a_state_never_changes(model, actions):
    state = begin(model)
    first = places(model, state, actions[:3])
    places(model, state, -actions[:3])
    np.testing.assert_array_equal(places(model, state, actions[:3]), first)


def test_rows_do_not_know_of_each_other(model, actions):
    together = places(model, begin(model), actions)
    alone = places(model, begin(model).select([2]), actions[:, 2:3])
    np.testing.assert_array_equal(alone[:, 0], together[:, 2])


def test_seeds_decide_at_temperature_one_and_not_at_zero(model, actions):
    one, other = begin(model, (1, 2, 3, 4)), begin(model, (5, 6, 7, 8))
    np.testing.assert_array_equal(
        places(model, one, actions[:2], 0.0), places(model, other, actions[:2], 0.0)
    )
    assert (places(model, one, actions) != places(model, other, actions)).any()


def test_fork_and_select(model, actions):
    state = begin(model)
    parent = places(model, state, actions[:3])
    np.testing.assert_array_equal(places(model, state.fork(1), actions[:3]), parent)
    children = places(model, state.fork(3), np.repeat(actions[:3], 3, axis=1))
    np.testing.assert_array_equal(children[:, ::3], parent)
    np.testing.assert_array_equal(places(model, state.select([3, 0]), actions[:3, [3, 0]]), parent[:, [3, 0]])


def test_append_rows_of_another_age(model, actions):
    young = begin(model)
    old, _ = model.step(young, actions[0])
    mixed = places(model, old.append(young), np.concatenate([actions[1:4], actions[1:4]], axis=1))
    np.testing.assert_array_equal(mixed[:, :4], places(model, old, actions[1:4]))
    np.testing.assert_array_equal(mixed[:, 4:], places(model, young, actions[1:4]))
