"""Questions: entries of charts stand at positions of their own."""

from worldmodels.language.compact_questions import MAX_CHART_ENTRIES, Schema, ask
from worldmodels.language.game_state import GameState


def chart(**entries):
    objects = [
        {"name": "chart (ID: 3)", "uuid": 3, "type": "Chart", "properties": entries, "contains": []},
        {"name": "red (ID: 4)", "uuid": 4, "type": "Tube", "properties": {}, "contains": []},
    ]
    return GameState(objects={item["uuid"]: item for item in objects})


def facts_of(question, position):
    return set(question.facts[question.starts[position] : question.starts[position + 1]].tolist())


def test_an_entry_is_made_of_the_words_of_its_name():
    plain = ask(chart(size="big"), "wait", Schema())
    one, other, swapped = (
        ask(chart(**{name: value}), "wait", Schema())
        for name, value in (("blue + red", "pink"), ("blue + green", "pink"), ("red + blue", "pink"))
    )
    assert len(one) == len(plain) + 1
    entry = len(one) - 1
    assert len(facts_of(one, entry) & facts_of(other, entry)) == 4  # an entry, blue, +, pink
    assert facts_of(one, entry) == facts_of(swapped, entry)
    assert [row for row in one.relations.tolist() if row[0] == entry and row[2] == 0]


def test_an_entry_may_name_an_object_or_a_number():
    question = ask(chart(**{"a b": "red (ID: 4)", "c d": 12}), "wait", Schema())
    first, second = len(question) - 2, len(question) - 1
    assert {row[2] for row in question.relations.tolist() if row[0] == first} == {0, 1}
    assert facts_of(question, first) != facts_of(question, second)


def test_entries_that_never_varied_and_too_many_are_left_out():
    entries = {f"a {number}": "x" for number in range(40)}
    hidden = Schema(varied={"Chart": frozenset()})
    assert len(ask(chart(**entries), "wait", Schema())) == 2 + 1 + 1 + MAX_CHART_ENTRIES
    assert len(ask(chart(**entries), "wait", hidden)) == 2 + 1 + 1
