"""What every world model must do, checked on each: the bundled ones, a random tiny one, and the toy of other tests."""

from __future__ import annotations

import numpy as np
import pytest

import worldmodels
from rlvr_envs.contexts import load_pusht_starts
from rlvr_envs.tasks import proprio
from tests.toys import PointWorldModel
from worldmodels.api import History, Predictions, WorldModel
from worldmodels.checkpoints import bundled, find, read_config

BUNDLED = [name for name in bundled() if read_config(find(name))["kind"] == "object_world"]
ACTIONS = np.random.default_rng(0).uniform(-0.4, 0.4, (9, 4, 10)).astype(np.float32)


@pytest.fixture(scope="module", params=[*BUNDLED, "toy"])
def model(request):
    return PointWorldModel() if request.param == "toy" else worldmodels.load(request.param)


def begin(model, seeds=(1, 2, 3, 4)):
    starts = load_pusht_starts()
    histories = [
        History(observations=[{"image": starts.images[row], "proprio": proprio(starts.states[row])}])
        for row in range(len(seeds))
    ]
    return model.start(histories, seeds=list(seeds))


def places(model, state, actions, temperature=1.0):
    """Proprioception ``(T, B, 4)`` of a rollout: a function of the tokens alone."""
    seen = []
    for action in actions:
        state, predictions = model.step(state, action, temperature=temperature)
        seen.append(predictions.observations()["proprio"])
    return np.stack(seen)


def test_types_and_shapes(model):
    assert isinstance(model, WorldModel)
    state = begin(model)
    assert len(state) == 4
    after, predictions = model.step(state, ACTIONS[0])
    assert isinstance(predictions, Predictions)
    assert len(after) == len(predictions) == 4
    stacked, one = predictions.observations(), predictions[2].observation
    for key in ("image", "proprio"):
        np.testing.assert_array_equal(stacked[key][2], one[key])
    assert predictions.states().shape[0] == 4


def test_a_state_never_changes(model):
    state = begin(model)
    first = places(model, state, ACTIONS[:3])
    places(model, state, -ACTIONS[:3])
    np.testing.assert_array_equal(places(model, state, ACTIONS[:3]), first)


def test_rows_do_not_know_of_each_other(model):
    together = places(model, begin(model), ACTIONS)
    alone = places(model, begin(model).select([2]), ACTIONS[:, 2:3])
    np.testing.assert_array_equal(alone[:, 0], together[:, 2])


def test_seeds_decide_at_temperature_one_and_not_at_zero(model):
    one, other = begin(model, (1, 2, 3, 4)), begin(model, (5, 6, 7, 8))
    np.testing.assert_array_equal(
        places(model, one, ACTIONS[:2], 0.0), places(model, other, ACTIONS[:2], 0.0)
    )
    assert (places(model, one, ACTIONS) != places(model, other, ACTIONS)).any()


def test_fork_and_select(model):
    state = begin(model)
    parent = places(model, state, ACTIONS[:3])
    np.testing.assert_array_equal(places(model, state.fork(1), ACTIONS[:3]), parent)
    children = places(model, state.fork(3), np.repeat(ACTIONS[:3], 3, axis=1))
    np.testing.assert_array_equal(children[:, ::3], parent)
    np.testing.assert_array_equal(places(model, state.select([3, 0]), ACTIONS[:3, [3, 0]]), parent[:, [3, 0]])


def test_append_rows_of_another_age(model):
    young = begin(model)
    old, _ = model.step(young, ACTIONS[0])
    mixed = places(model, old.append(young), np.concatenate([ACTIONS[1:4], ACTIONS[1:4]], axis=1))
    np.testing.assert_array_equal(mixed[:, :4], places(model, old, ACTIONS[1:4]))
    np.testing.assert_array_equal(mixed[:, 4:], places(model, young, ACTIONS[1:4]))
