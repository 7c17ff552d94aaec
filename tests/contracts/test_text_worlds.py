"""What every world model of texts must do: the bundled ones, a random tiny one, and the rules themselves."""

from __future__ import annotations

import pytest

import worldmodels
from rlvr_envs.simulators.text_game_world import TextGameWorld
from tests.worldmodels.language.tiny_slots import tiny_slot_world, turns
from worldmodels.api import History, Predictions, WorldModel
from worldmodels.checkpoints import bundled, find, read_config

BUNDLED = [name for name in bundled() if read_config(find(name))["kind"] == "slot_world"]
ROWS = turns("boil-water", 3, 4) + turns("wash-clothes", 5, 2)
SEEDS = tuple(range(len(ROWS)))
ACTIONS = [[row.action for row in ROWS], ["wait"] * len(ROWS), [row.action for row in ROWS[::-1]]]


@pytest.fixture(scope="module", params=[*BUNDLED, "tiny", "rules"])
def model(request):
    if request.param == "tiny":
        return tiny_slot_world()
    return TextGameWorld() if request.param == "rules" else worldmodels.load(request.param)


def begin(model, seeds=None):
    return model.start(
        [History(observations=[row.before.to_text()]) for row in ROWS], seeds=list(seeds or SEEDS)
    )


def texts(model, state, actions, temperature=1.0):
    """What was predicted, turn by turn, errors among it."""
    seen = []
    for turn in actions:
        state, predictions = model.step(state, turn, temperature=temperature)
        seen.append([(predictions[row].observation, predictions[row].error) for row in range(len(turn))])
    return seen


def test_types(model):
    assert isinstance(model, WorldModel)
    assert model.action_shape is None
    state = begin(model)
    after, predictions = model.step(state, ACTIONS[0])
    assert isinstance(predictions, Predictions)
    assert len(state) == len(after) == len(predictions) == len(ROWS)
    for row, seen in enumerate(predictions.observations()):
        one = predictions[row]
        assert isinstance(seen, str)
        assert seen == (one.observation or ROWS[row].before.to_text())
        assert (one.observation is None) == bool(one.error)


def test_a_state_never_changes(model):
    state = begin(model)
    first = texts(model, state, ACTIONS)
    texts(model, state, ACTIONS[::-1])
    assert texts(model, state, ACTIONS) == first


def test_rows_do_not_know_of_each_other(model):
    together = texts(model, begin(model), ACTIONS)
    alone = texts(model, begin(model).select([2]), [[turn[2]] for turn in ACTIONS])
    assert [turn[2] for turn in together] == [turn[0] for turn in alone]


def test_temperature_zero_needs_no_seed(model):
    assert texts(model, begin(model), ACTIONS, 0.0) == texts(model, begin(model, range(50, 56)), ACTIONS, 0.0)


def test_fork_and_select(model):
    state = begin(model)
    parent = texts(model, state, ACTIONS)
    assert texts(model, state.fork(1), ACTIONS) == parent
    children = texts(model, state.fork(2), [[a for a in turn for _ in range(2)] for turn in ACTIONS])
    assert [turn[::2] for turn in children] == parent
    chosen = texts(model, state.select([3, 0, 3]), [[turn[3], turn[0], turn[3]] for turn in ACTIONS])
    assert chosen == [[turn[3], turn[0], turn[3]] for turn in parent]


def test_append_rows_of_another_age(model):
    young = begin(model)
    old, _ = model.step(young, ACTIONS[0])
    mixed = texts(model, old.append(young), [turn + turn for turn in ACTIONS[1:]])
    count = len(ROWS)
    assert [turn[:count] for turn in mixed] == texts(model, old, ACTIONS[1:])
    assert [turn[count:] for turn in mixed] == texts(model, young, ACTIONS[1:])


def test_foreign_states_are_refused(model):
    with pytest.raises(TypeError):
        tiny_slot_world().step(begin(model), ACTIONS[0])
