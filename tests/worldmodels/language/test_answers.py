"""Reading answers: lenient about form, strict about content, and never an exception."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worldmodels.language.toy_states import pairs, pot, state, states, water
from worldmodels.language.answers import (
    MAX_ANSWER_CHARS,
    Answer,
    answer_value,
    apply_answer,
    parse_json_answer,
    read_answer,
    write_answer,
)
from worldmodels.language.game_state import record_states

BEFORE = state(pot(), water())
AFTER = state(pot(temperature=30, is_on=True), score=1, over=True, won=True)
GOOD = write_answer(BEFORE, AFTER)
NOTHING = '{"modified": [], "removed": [], "score": {}}'

FORMS = {
    "bare": GOOD,
    "marker": f"I think so. The final answer is: {GOOD}",
    "lower marker": f"so the final game state is:\n{GOOD}",
    "last marker wins": f"The final answer is: {NOTHING} no, the final answer is: {GOOD}",
    "think block": f"<think>maybe {NOTHING}</think>\n{GOOD}",
    "open think with marker": f"<think> hm. The final answer is: {GOOD}",
    "fence": f"Here:\n```json\n{GOOD}\n```\nDone.",
    "fence without language": f"```\n{GOOD}\n```",
    "unclosed fence": f"```json\n{GOOD}",
    "marker and fence": f"The final answer is:\n```JSON\n{GOOD}\n```",
    "prose before and after": f"The pot heats up. {GOOD} I hope this helps.",
    "trailing commas": GOOD.replace("}]", "},]").replace("true}", "true,}"),
    "Python": repr(answer_value(BEFORE, AFTER)),
    "Python words": GOOD.replace("true", "True").replace("false", "False"),
    "unquoted keys": GOOD.replace('"modified"', "modified").replace('"removed"', "removed"),
    "comments": GOOD.replace('"removed"', '// gone\n"removed"'),
    "one bracket cut off": GOOD[:-1],
    "special token": GOOD + "<|im_end|>",
    "two drafts": NOTHING + "\n" + GOOD,
    "key order": json.dumps(dict(reversed(json.loads(GOOD).items()))),
    "indented": json.dumps(json.loads(GOOD), indent=2),
    "extra key": GOOD[:-1] + ', "reason": "heat"}',
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_are_read(form):
    assert read_answer(FORMS[form], BEFORE) == Answer(state=AFTER)


REJECTED = {
    "empty": ("", "the answer is empty"),
    "blank": (" \n", "the answer is empty"),
    "marker only": ("The final answer is:", "the answer is empty"),
    "prose": ("Nothing is modified and nothing removed.", "the answer holds no JSON"),
    "never ends thinking": ("<think> " + "and then " * 2000, "the thinking never ended"),
    "never ends": ('{"modified": [' * 40_000, "characters; at most 65536 are read"),
    "1 MB": ("x" * 1_000_000, "1000000 characters; at most 65536 are read"),
    "deep": ("[" * 60_000, "beyond repair|not a JSON object"),
    "number": ("42", "is a int, not a JSON object"),
    "null": ("null", "is a NoneType, not a JSON object"),
    "key words": ('["modified", "removed", "score"]', "is a list, not a JSON object"),
    "whole state": ('{"game_state": []}', r"lacks \['modified', 'removed', 'score'\]"),
    "cut in half": (GOOD[: len(GOOD) // 2], "lacks|not a|score state"),
    "no score": ('{"modified": [], "removed": []}', r"lacks \['score'\]"),
    "NaN": (GOOD.replace("30", "NaN"), "property 'temperature' is nan, which no state can hold"),
    "infinite": (GOOD.replace("30", "1e999"), "property 'temperature' is inf"),
    "lone surrogate": (GOOD.replace("pot (ID: 1)", "\\ud800"), "'name' is .* not a text"),
    "modified is a dict": (
        '{"modified": {}, "removed": [], "score": {}}',
        "'modified' is a dict, not a list",
    ),
    "removed is a number": ('{"modified": [], "removed": 2, "score": {}}', "'removed' is a int, not a list"),
    "removed unknown": ('{"modified": [], "removed": [9], "score": {}}', r"can be removed: \[1, 2\]"),
    "removed twice": ('{"modified": [], "removed": [2, 2], "score": {}}', "'removed' names 2"),
    "removed true": ('{"modified": [], "removed": [true], "score": {}}', "'removed' names True"),
    "score is a number": ('{"modified": [], "removed": [], "score": 1}', "the score state is a int"),
    "extra score": ('{"modified": [], "removed": [], "score": {"bonus": 1}}', r"unknown fields \['bonus'\]"),
    "no name": ('{"modified": [{"uuid": 1}], "removed": [], "score": {}}', "entry 0 .* lacks"),
    "junk entry": ('{"modified": [null], "removed": [], "score": {}}', "entry 0 is missing"),
    "uuid twice": (
        json.dumps({"modified": [pot(), pot(is_on=True)], "removed": [], "score": {}}),
        "'modified' holds uuid 1 twice",
    ),
    "modified and removed": (
        json.dumps({"modified": [pot()], "removed": [1], "score": {}}),
        "uuid 1 is both modified and removed",
    ),
}


@pytest.mark.parametrize("form", REJECTED)
def test_answers_that_are_rejected_say_why(form):
    text, message = REJECTED[form]
    answer = read_answer(text, BEFORE)
    assert answer.state is None
    assert answer.error is not None
    with pytest.raises(ValueError, match=message):
        raise ValueError(answer.error)
    assert len(answer.error) < 400


def test_objects_can_be_added_and_scores_changed_in_part():
    new = {**water(), "uuid": 3, "name": "steam (ID: 3)"}
    answer = apply_answer({"modified": [new], "removed": [2.0], "score": {"score": 2}}, BEFORE)
    assert answer.state == state(pot(), new, score=2)


@given(pairs())
def test_a_perfect_answer_leads_to_the_next_state(pair):
    before, after = pair
    assert read_answer("The final answer is: " + write_answer(before, after), before) == Answer(state=after)
    assert apply_answer(answer_value(before, after), before) == Answer(state=after)


def test_perfect_answers_of_all_published_test_transitions_are_read_back(conformance):
    count = 0
    with gzip.open(conformance("language/bytesized32_test.jsonl.gz")) as lines:
        for line in lines:
            before, after = record_states(json.loads(line))
            assert read_answer(write_answer(before, after), before) == Answer(state=after)
            count += 1
    assert count == 2954


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["modified", "removed", "score", "uuid", "name"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(JSON, states())
def test_no_value_raises(value, before):
    answer = apply_answer(value, before)
    assert (answer.state is None) != (answer.error is None)


@settings(max_examples=200)
@given(st.text() | st.text("{}[]\"',:<>think/`\\True 1", max_size=80), states())
def test_no_text_raises(text, before):
    answer = read_answer(text, before)
    assert (answer.state is None) != (answer.error is None)


@settings(max_examples=100)
@given(st.integers(0, len(GOOD)), st.integers(0, 3), st.text("{}[]\"',x", max_size=3))
def test_no_damage_to_a_good_answer_raises(place, cut, put):
    answer = read_answer(GOOD[:place] + put + GOOD[place + cut :], BEFORE)
    assert (answer.state is None) != (answer.error is None)


def test_the_longest_answer_is_read_in_reasonable_time():
    value, error = parse_json_answer("x" * MAX_ANSWER_CHARS)
    assert value is None
    assert error is not None
    assert "no JSON" in error
