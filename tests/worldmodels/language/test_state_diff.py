"""Differences of states: exact on every published transition, and on arbitrary states."""

import csv
import gzip
import json

import pytest
from hypothesis import given, settings

from tests.worldmodels.language.toy_states import pairs, pot, record, state, states, water
from worldmodels.language.game_state import GameState, parse_state, record_states, same_value
from worldmodels.language.state_diff import GONE, StateDifference, apply, difference, label_record


@given(pairs())
def test_applying_a_difference_gives_the_next_state_and_leaves_the_first_alone(pair):
    before, after = pair
    text = before.to_text()
    change = difference(before, after)
    assert apply(change, before) == after
    assert bool(change) == bool(change.facts()) == (before != after)
    assert before.to_text() == text


@given(states())
def test_canonical_text_is_a_fixed_point_and_says_the_same(one):
    text = one.to_text()
    assert parse_state(text) == one
    assert parse_state(text).to_text() == text
    published = {"game_state": [*reversed(one.objects.values()), one.scores()]}
    assert parse_state(published).to_text() == text


@given(pairs())
def test_states_are_equal_exactly_where_their_texts_are(pair):
    one, other = pair
    assert (one == other) == (one.to_text() == other.to_text())
    assert (one == other) == (not difference(one, other))


def test_all_published_test_transitions_are_recovered_and_labelled(conformance):
    with open(conformance("language/bytesized32_test_labels.csv"), newline="") as lines:
        labels = list(csv.DictReader(lines))
    with gzip.open(conformance("language/bytesized32_test.jsonl.gz")) as lines:
        for line, row in zip(lines, labels, strict=True):
            recorded = json.loads(line)
            before, after = record_states(recorded)
            assert apply(difference(before, after), before) == after, row
            found = label_record(recorded)
            flags = [found.action, found.tick, found.score, found.changed, found.gold]
            names = ["action_changed", "tick_changed", "score_changed", "changed", "gold"]
            assert flags == [row[name] == "1" for name in names], row
            assert [found.added, found.removed] == [int(row["n_added"]), int(row["n_removed"])], row
    assert len(labels) == 2954


@pytest.mark.slow
def test_all_published_training_transitions_are_recovered(conformance):
    count = 0
    with gzip.open(conformance("language/bytesized32_train_sample.jsonl.gz")) as lines:
        for line in lines:
            before, after = record_states(json.loads(line))
            assert apply(difference(before, after), before) == after
            count += 1
    assert count == 15630


def test_what_counts_as_the_same():
    assert same_value((1, [2.0]), [1.0, (2,)])
    assert same_value({"a": 1, "b": [None]}, {"b": [None], "a": 1.0})
    assert not same_value(True, 1)
    assert not same_value(0, False)
    assert not same_value([1, 2], [2, 1])
    assert not same_value(None, False)
    assert not same_value(float("nan"), float("nan"))
    boxes = state(pot(contains=("a", "b"))), state(pot(contains=("b", "a")))
    assert boxes[0] == boxes[1]
    assert state(pot(contains=("a", "a", "b"))) != state(pot(contains=("a", "b", "b")))


def test_a_difference_says_what_changes_and_nothing_else():
    before = state(pot(), water())
    after = state({**pot(temperature=21), "contains": ["x"]}, {**pot(), "uuid": 5}, score=1, over=True)
    change = difference(before, after)
    assert change.removed == (2,)
    assert [item["uuid"] for item in change.added] == [5]
    assert change.changed == {
        (1, "properties", "temperature"): 21,
        (1, "contains"): ["x"],
        ("score",): 1,
        ("gameOver",): True,
    }
    facts = change.facts()
    assert facts[2,] is GONE
    assert facts[5, "name"] == "pot (ID: 1)"
    assert len(facts) == 4 + 1 + 3 + 2


def test_a_property_can_be_dropped_even_if_it_was_null():
    before = state({**pot(), "properties": {"owner": None}})
    after = state({**pot(), "properties": {}})
    assert before != after
    assert difference(before, after).dropped == ((1, "properties", "owner"),)
    assert apply(difference(before, after), before) == after


def test_a_difference_of_another_state_is_refused():
    with pytest.raises(ValueError, match=r"cannot remove object 9: the state holds \[1\]"):
        apply(StateDifference(removed=(9,)), state(pot()))
    with pytest.raises(ValueError, match="cannot change object 9"):
        apply(StateDifference(changed={(9, "name"): "x"}), state(pot()))
    with pytest.raises(ValueError, match="cannot add object 1"):
        apply(StateDifference(added=(pot(),)), state(pot()))


def test_a_change_and_its_undoing_by_time_count_as_changed():
    recorded = record(state(pot()), state(pot()))
    recorded["action_state"]["objects"] = [pot(is_on=True)]
    found = label_record(recorded)
    assert found.action
    assert found.tick
    assert found.changed
    assert not found.gold
    assert not found.score


BROKEN = [
    ("nonsense", "not JSON"),
    ("[1]", "a state is a JSON object, not a list"),
    ("{}", "needs a list 'objects'; found missing"),
    ('{"game_state": []}', "score as its last element"),
    ('{"objects": [3], "score": 0, "gameOver": false, "gameWon": false}', "object 0 is a int"),
    ('{"objects": [], "score": 0, "gameOver": false}', r"lacks \['gameWon'\]"),
    (
        '{"objects": [], "score": "1", "gameOver": false, "gameWon": false}',
        "'score' is '1', not a finite number",
    ),
    ('{"objects": [], "score": 0, "gameOver": 0, "gameWon": false}', "'gameOver' is 0, not true or false"),
    ('{"objects": [], "score": 1e999, "gameOver": true, "gameWon": false}', "not a finite number"),
    ("[" * 100_000, "not JSON"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_not_a_state_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_state(text)


OBJECTS = [
    ({"type": None}, "'type' is None, not a text"),
    ({"uuid": True}, "'uuid' is True, not a whole number"),
    ({"uuid": 1.5}, "not a whole number"),
    ({"properties": []}, "'properties' is .* not a dict"),
    ({"contains": [1]}, "'contains' is .* not a list of names"),
    ({"contains": "ab"}, "not a list of names"),
    ({"properties": {"t": float("nan")}}, "property 't' is nan, which no state can hold"),
    ({"name": "\ud800"}, "'name' is .* not a text"),
    ({"colour": 1}, r"unknown fields \['colour'\]"),
]


@pytest.mark.parametrize(("change", "message"), OBJECTS, ids=range(len(OBJECTS)))
def test_a_malformed_object_is_named(change, message):
    listed = {"objects": [water(), {**pot(), **change}], "score": 0, "gameOver": False, "gameWon": False}
    with pytest.raises(ValueError, match=message) as caught:
        parse_state(listed)
    assert "object 1" in str(caught.value)


def test_a_value_nested_beyond_reason_is_named():
    deep = '{"objects": [{"name": "a", "uuid": 1, "type": "b", "properties": {"x": %s}, "contains": []}]}'
    with pytest.raises(ValueError, match="property 'x' is .* which no state can hold"):
        parse_state(deep % ("[" * 900 + "]" * 900))


def test_missing_fields_and_double_uuids_are_named():
    with pytest.raises(ValueError, match=r"object 0 \(uuid 1, .*lacks \['contains'\]"):
        parse_state({"objects": [{key: value for key, value in pot().items() if key != "contains"}]})
    with pytest.raises(ValueError, match="uuid 1 occurs twice"):
        parse_state({"objects": [pot(), pot()], "score": 0, "gameOver": False, "gameWon": False})
    with pytest.raises(ValueError, match="the record is not a transition: KeyError 'tick_state'"):
        record_states({"current_state": {"objects": []}, "current_score_state": {}})


@settings(max_examples=30)
@given(states())
def test_a_state_is_never_equal_to_something_else(one):
    assert one != "state"
    assert isinstance(one, GameState)
