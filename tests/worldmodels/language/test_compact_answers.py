"""Compact answers: exact on every published transition, on our games and on arbitrary states; never an exception."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_envs.simulators.text_games.catalogue import GAMES
from tests.worldmodels.language.tiny_slots import turns
from tests.worldmodels.language.toy_states import pairs, pot, state, water
from worldmodels.language.compact_answers import name_within, read_compact, write_compact
from worldmodels.language.game_state import record_states
from worldmodels.language.words import FIRST_BYTE, FIRST_WORD, MAX_OBJECTS, Sign, Vocabulary

WORDS = Vocabulary(["temperature", "isOn", "pot", "Container", "hot soup"])


@given(pairs())
def test_what_is_written_is_read(pair):
    before, after = pair
    tokens = write_compact(before, after, WORDS)
    assert tokens[-1] == Sign.END
    assert read_compact(tokens, before, WORDS).state == after
    if before == after:
        assert tokens == [Sign.END]


@given(st.lists(st.integers(0, WORDS.size + 8), max_size=30), pairs())
def test_reading_never_raises(tokens, pair):
    answer = read_compact(tokens, pair[0], WORDS)
    assert (answer.state is None) == bool(answer.error)


@pytest.mark.parametrize("game", sorted(GAMES))
def test_our_games_are_written_exactly_and_shortly(game):
    rows = turns(game, limit=150)
    lengths = []
    for row in rows:
        tokens = write_compact(row.before, row.after, WORDS)
        assert read_compact(tokens, row.before, WORDS).state == row.after
        assert Sign.UUID not in tokens  # a new object's number follows from the state
        assert Sign.HOLDS not in tokens  # one parent per object says it all
        lengths.append(len(tokens))
    assert max(lengths) < 192


@pytest.mark.slow
def test_all_published_test_transitions(conformance):
    with gzip.open(conformance("language/bytesized32_test.jsonl.gz")) as lines:
        for number, line in enumerate(lines, start=1):
            before, after = record_states(json.loads(line))
            assert read_compact(write_compact(before, after, WORDS), before, WORDS).state == after, number
    assert number == 2954


def test_numbers_are_changes_where_that_is_shorter():
    hot = state(pot(temperature=57))
    assert _written(hot, state(pot(temperature=74))) == "@0 temperature PLUS 1 7 END"
    assert _written(hot, state(pot(temperature=0))) == "@0 temperature EQUALS 0 END"
    assert _written(hot, state(pot(temperature=-3))) == "@0 temperature EQUALS MINUS 3 END"


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([], "did not end"),
        ([Sign.SCORE, Sign.EQUALS, Sign.END], "digits"),
        ([WORDS.size + 5, Sign.GONE, Sign.END], "object is expected"),
        ([WORDS.size, FIRST_WORD, Sign.SPELL, FIRST_BYTE + 0xFF, Sign.SPELLED, Sign.END], "UTF-8"),
        ([WORDS.size, Sign.DROP, FIRST_WORD + 3, Sign.END], "no property"),
        ([WORDS.size, Sign.GONE, WORDS.size, FIRST_WORD, Sign.TRUE, Sign.END], "after it is gone"),
        ([WORDS.size, FIRST_WORD + 1, Sign.PLUS, 33, Sign.END], "no number"),
        ([Sign.OVER, Sign.EQUALS, 33, Sign.END], "not true or false"),
    ],
)
def test_what_cannot_be_read_says_why(tokens, reason):
    answer = read_compact([int(token) for token in tokens], state(pot(temperature=5)), WORDS)
    assert answer.state is None
    assert reason in answer.error


def test_too_many_objects_are_refused():
    crowd = state(*(water(uuid=uuid, name=f"water (ID: {uuid})") for uuid in range(MAX_OBJECTS + 1)))
    with pytest.raises(ValueError, match="at most 64"):
        write_compact(crowd, crowd, WORDS)


def _written(before, after):
    return WORDS.show(write_compact(before, after, WORDS))


def test_a_name_within_a_text_is_a_pointer():
    connected = {**pot(), "properties": {"end": "left water (ID: 2)"}}
    before, after = state(pot(), water()), state(connected, water())
    assert len(_written(before, after).split()) < 24
    assert "@1 WORDS_END" in _written(before, after)
    assert name_within("left water (ID: 2)", ["water (ID: 2)"]) == (["left"], "water (ID: 2)", [])
    assert name_within("leftwater (ID: 2)", ["water (ID: 2)"]) is None
    assert (
        name_within("left  water (ID: 2)", ["water (ID: 2)"]) is None
    )  # joined by one space it would differ


def test_one_entry_of_a_dict_is_written_alone():
    old = {**pot(), "properties": {"ends": {"one": None, "two": "water (ID: 2)"}}}
    new = {**pot(), "properties": {"ends": {"one": [1, 0.5], "two": "water (ID: 2)"}}}
    assert " AT " in _written(state(old, water()), state(new, water()))
    assert " AT " not in _written(state(old, water()), state(pot(), water()))
    gone = {**pot(), "properties": {"ends": {"two": "water (ID: 2)"}}}
    assert " AT " not in _written(state(old, water()), state(gone, water()))
    tokens = [WORDS.size, FIRST_WORD + 1, Sign.AT, FIRST_WORD, Sign.TRUE, Sign.END]
    assert "no entries" in read_compact(tokens, state(pot()), WORDS).error
