"""The published prompt for bare states: the record's own as often as a state tells its order, and errors in words."""

import gzip
import json

import pytest

from tests.worldmodels.language.test_prompts import RULES, TEMPLATE, TURN, extract, published  # noqa: F401
from tests.worldmodels.language.toy_states import pot, record, state, water
from worldmodels.language.game_state import parse_state, record_states
from worldmodels.language.published_prompt import TEMPLATE as TEMPLATE_NAME
from worldmodels.language.published_prompt import PublishedPrompt


def folder_of(tmp_path, turns, template=TEMPLATE):
    template.save(tmp_path / TEMPLATE_NAME)
    with gzip.open(tmp_path / "train.jsonl.gz", "wt") as file:
        for turn in turns:
            file.write(json.dumps(turn) + "\n")
    return tmp_path


def test_a_state_in_canonical_order_gets_the_prompt_of_its_record(tmp_path):
    inner = record(state(pot(contains=["water (ID: 2)"]), water()), state(pot(is_on=True), score=1))
    prompt = PublishedPrompt.read(folder_of(tmp_path, [TURN, inner]))
    for turn in (TURN, inner):
        before, _ = record_states(turn)
        canonical = parse_state(before.to_text())
        assert list(canonical.objects[1]["properties"]) != list(before.objects[1]["properties"])
        assert prompt(canonical, "wait", "kettle") == TEMPLATE.build(turn)


def test_a_state_in_another_order_is_shown_as_it_stands(tmp_path):
    turn = record(state(water(), pot()), state(pot(is_on=True), score=1))
    prompt = PublishedPrompt.read(folder_of(tmp_path, [turn]))
    assert prompt(record_states(turn)[0], "wait", "kettle") == TEMPLATE.build(turn)


def test_a_thing_inside_itself_is_shown_once(tmp_path):
    prompt = PublishedPrompt.read(folder_of(tmp_path, [TURN]))
    odd = state(pot(contains=["pot (ID: 1)", "nothing (ID: 9)"]), water())
    assert prompt(odd, "wait", "kettle").count("'uuid': 1,") == 1


def test_unknown_games_and_folders_without_records_are_named(tmp_path):
    prompt = PublishedPrompt.read(folder_of(tmp_path, [{"game": 3}, TURN]))
    for game in ("", "tennis"):
        with pytest.raises(ValueError, match=f"none for {game!r}, only for kettle"):
            prompt(state(pot()), "wait", game)
    with pytest.raises(ValueError, match="no ByteSized32 record"):
        PublishedPrompt.read(folder_of(tmp_path / "empty", [{"game": "kettle"}]))
    with pytest.raises(FileNotFoundError, match="no template"):
        PublishedPrompt.read(tmp_path / "nowhere")


def test_how_many_official_states_get_the_prompt_of_their_record(published, tmp_path):  # noqa: F811
    rows, transitions, rules = published
    template = extract(rows[0], transitions, rules)
    prompt = PublishedPrompt.read(folder_of(tmp_path, transitions, template))
    same = numbered = 0
    for turn in transitions:
        before, _ = record_states(turn)
        action, game = turn["action_state"]["lastAction"], turn["game"]
        wanted = template.build(turn)
        numbered += prompt(before, action, game) == wanted
        said = prompt(parse_state(before.to_text()), action, game)
        same += said == wanted
    assert (numbered, same) == (2713, 1745)
    assert RULES
