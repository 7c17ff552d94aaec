"""States read object by object are the states, whatever the text."""

import gzip
import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.worldmodels.language.toy_states import VALUES, pairs, pot, state, states, water
from worldmodels.language.game_state import GameState, parse_state
from worldmodels.language.state_texts import forget, read_listed, read_state

AWKWARD = st.sampled_from(
    ["}, {", '}, {"', "}]}", '{"game_state": [{', "{", "}", '"', "\\", ", ", "[", "]", "é"]
)
TRICKY = st.lists(AWKWARD, max_size=4).map("".join)


def published(one: GameState) -> str:
    return json.dumps({"game_state": [*one.objects.values(), one.scores()]})


@given(pairs())
def test_a_state_reads_as_it_is_parsed_whatever_was_read_before(pair):
    for one in (*pair, pair[0]):
        again = read_state(published(one))
        assert again == one
        assert list(again.objects) == list(one.objects)


@given(states(min_objects=1), TRICKY, TRICKY, VALUES)
def test_texts_that_look_like_borders_are_no_borders(one, name, text, value):
    uuid, item = next(iter(one.objects.items()))
    odd = {
        **item,
        "name": name,
        "properties": {**item["properties"], text: text, "inner": [{"a": value}, {text: 1}]},
    }
    held = GameState(objects={**one.objects, uuid: odd, 9: {**odd, "uuid": 9}})
    assert read_state(published(held)) == held
    assert read_listed(published(held)) == json.loads(published(held))["game_state"]


@given(
    st.recursive(
        VALUES | TRICKY, lambda inner: st.lists(inner) | st.dictionaries(TRICKY, inner), max_leaves=8
    )
)
def test_any_list_reads_as_json_does(listed):
    text = json.dumps({"game_state": [listed, {"a": listed}, {"score": 0}]})
    assert read_listed(text) == json.loads(text)["game_state"]
    text = json.dumps({"game_state": [{"a": listed}, {"b": listed}]})
    assert read_listed(text) == json.loads(text)["game_state"]


@given(st.lists(AWKWARD | st.sampled_from(['"uuid": 1', '"name": "x"', "1"]), max_size=8).map("".join))
def test_a_damaged_text_fails_as_it_always_does(middle):
    text = '{"game_state": [{' + middle + "}]}"
    assert outcome(read_listed, text) == outcome(lambda text: json.loads(text)["game_state"], text)
    assert outcome(read_state, text) == outcome(parse_state, text)


def outcome(read: Callable[[str], Any], text: str) -> Any:
    """What a reader returns or, in words, what it raises."""
    try:
        return read(text)
    except ValueError as error:
        return str(error)


def test_what_is_written_alike_is_read_once():
    first, second = (
        read_state(published(state(pot(), water()))),
        read_state(published(state(pot(), water(name="ice (ID: 2)")))),
    )
    assert first.objects[pot()["uuid"]] is second.objects[pot()["uuid"]]
    assert first.objects[water()["uuid"]] is not second.objects[water()["uuid"]]
    forget()
    third = read_state(published(state(pot(), water())))
    assert third.objects[pot()["uuid"]] is not first.objects[pot()["uuid"]]
    assert third == first


def test_a_state_in_this_projects_own_format_is_read_too():
    assert read_state(state(pot(), water()).to_text()) == state(pot(), water())


def test_every_published_state_reads_as_it_is_parsed(conformance):
    with gzip.open(conformance("language/text_game_reward.jsonl.gz")) as lines:
        rows = [json.loads(line) for line in lines]
    texts = {row[key] for row in rows for key in ("data_state", "ground_truth")}
    assert len(texts) > 50
    for text in texts:
        assert read_state(text) == parse_state(text)
        assert read_listed(text) == json.loads(text)["game_state"]
