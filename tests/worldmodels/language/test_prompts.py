"""Prompts: the published ones by their hashes, the template on made-up text, and ours without loss."""

import csv
import gzip
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_envs.simulators.text_games.catalogue import GAMES
from tests.worldmodels.language.tiny_slots import turns
from tests.worldmodels.language.toy_states import pairs, pot, record, state, states, water
from worldmodels.language.answers import answer_value, read_answer
from worldmodels.language.game_state import OBJECT_KEYS, build_state, record_states
from worldmodels.language.prompts import (
    PARTS,
    RULE_FILES,
    GameRules,
    PromptTemplate,
    compact_prompt,
    read_rules,
    rules_by_game,
)

README = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")
WRITTEN = {
    "object": {"kettle": "Pots get hot.\n==========\nWater boils.\n\n==========\nThe world is all.\n"},
    "action": {"kettle": "wait: nothing\n\n\n"},
    "score": {"kettle": "One point for steam."},
}
RULES = rules_by_game(WRITTEN)
TEMPLATE = PromptTemplate(
    pieces=(
        "Simulate.\nFor instance, with\nBoil it.\nand 3\nwait\nyou say nothing. Now the task:\n",
        "\nOf the objects:\n",
        "\nOf the actions:\n",
        "\nOf the points:\n",
        "\nNow:\n",
        "\n\nNew things start at ",
        "\nDo this, and wait:\n",
        "\n\nWhat happens?\n",
    ),
    rules=RULES,
    data_source="made-up",
    ability="guess",
)
TURN = record(state(pot(), water()), state(pot(is_on=True), score=1))


def example(turn=TURN):
    return TEMPLATE.official_record(turn, split="train", index=0)


@pytest.fixture(scope="module")
def published(conformance):
    """Prompt records with their game, test transitions, and rules."""
    with gzip.open(conformance("language/text_game_prompts.jsonl.gz")) as lines:
        rows = [json.loads(line) for line in lines]
    with gzip.open(conformance("language/bytesized32_test.jsonl.gz")) as lines:
        transitions = [json.loads(line) for line in lines]
    with gzip.open(conformance("language/text_game_prompt_assets.json.gz")) as file:
        rules = rules_by_game(json.load(file)["human_written_rules"])
    return rows, transitions, rules


def extract(row, transitions, rules):
    official = row["record"]
    return PromptTemplate.extract(official, transitions[official["extra_info"]["index"]], rules)


def test_all_published_records_are_made_byte_for_byte(published, conformance):
    rows, transitions, rules = published
    template = extract(rows[0], transitions, rules)
    with open(conformance("language/text_game_prompt_index.csv"), newline="") as lines:
        index = list(csv.DictReader(lines))
    for number, (turn, wanted) in enumerate(zip(transitions, index, strict=True)):
        made = template.official_record(turn, split="test", index=number)
        prompt = made["prompt"][0]["content"]
        assert len(prompt) == int(wanted["prompt_chars"]), wanted
        assert _hash(prompt) == wanted["prompt_sha256"], wanted
        assert _hash(made["reward_model"]["ground_truth"]) == wanted["ground_truth_sha256"], wanted
        assert _hash(made["extra_info"]["data_state"]) == wanted["data_state_sha256"], wanted
    assert len(index) == 2954
    for row in rows:
        if row["record"]["extra_info"]["split"] == "test":  # all fields, in their order
            number = row["record"]["extra_info"]["index"]
            made = template.official_record(transitions[number], split="test", index=number)
            assert json.dumps(made) == json.dumps(row["record"])


def test_the_example_of_the_readme_makes_a_template_of_a_users_own_files(
    published, conformance, tmp_path, monkeypatch
):
    rows, transitions, _ = published
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if ".extract(" in block
    ]
    with gzip.open(conformance("language/text_game_prompt_assets.json.gz")) as file:
        written = json.load(file)["human_written_rules"]
    rules = tmp_path / "GPT-simulator" / "rules" / "human_written_rules"
    rules.mkdir(parents=True)
    for kind, name in RULE_FILES.items():
        (rules / name).write_text(json.dumps(written[kind]))
    (tmp_path / "record.json").write_text(json.dumps(rows[7]["record"]))
    (tmp_path / "data" / "bytesized32").mkdir(parents=True)
    (tmp_path / "data" / "bytesized32" / "test.jsonl").write_text("\n".join(map(json.dumps, transitions)))
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    made = PromptTemplate.load("data/bytesized32/prompt.json").build(
        transitions[rows[3]["record"]["extra_info"]["index"]]
    )
    assert made == rows[3]["record"]["prompt"][0]["content"]


def test_every_example_gives_the_same_template(published):
    rows, transitions, rules = published
    of_test = [row for row in rows if row["record"]["extra_info"]["split"] == "test"]
    assert len({row["game"] for row in of_test}) == 31
    first = extract(of_test[0], transitions, rules)
    assert all(extract(row, transitions, rules) == first for row in of_test[1:])


def test_published_training_records_are_made_and_serve_as_examples(published, conformance):
    rows, transitions, rules = published
    template = extract(rows[0], transitions, rules)
    of_train = [row for row in rows if row["record"]["extra_info"]["split"] == "train"]
    wanted = {(row["game"], row["state_id"]): row["record"] for row in of_train}
    count = 0
    with gzip.open(conformance("language/bytesized32_train_sample.jsonl.gz")) as lines:
        for turn in map(json.loads, lines):
            official = wanted.get((turn["game"], turn["state_id"]))
            if (
                official is None
                or official["extra_info"]["data_action"] != turn["action_state"]["lastAction"]
            ):
                continue
            made = template.official_record(turn, split="train", index=official["extra_info"]["index"])
            assert json.dumps(made) == json.dumps(official)
            assert PromptTemplate.extract(official, turn, rules) == template
            count += 1
    assert count == len(of_train) == 8


def test_records_and_transitions_that_do_not_belong_together_are_refused(published):
    rows, transitions, rules = published
    with pytest.raises(ValueError, match="do not belong together"):
        PromptTemplate.extract(rows[0]["record"], transitions[0], rules)


def test_the_parts_stand_where_they_should():
    assert TEMPLATE.build(TURN) == (
        f"{TEMPLATE.pieces[0]}Boil it.\nOf the objects:\nPots get hot.\n\nWater boils.\nOf the actions:\n"
        "wait: nothing\nOf the points:\nOne point for steam.\nNow:\n"
        "{'game_state': [{'name': 'pot (ID: 1)', 'uuid': 1, 'type': 'Pot', 'properties': {'temperature': 20, "
        "'isOn': False}, 'contains': []}, {'name': 'water (ID: 2)', 'uuid': 2, 'type': 'Water', 'properties': {}, "
        "'contains': []}, {'score': 0, 'gameOver': False, 'gameWon': False}]}\n\nNew things start at 3\n"
        "Do this, and wait:\nwait\n\nWhat happens?\n"
    )
    made = example()
    assert made["reward_model"]["style"] == "rule"
    truth = json.loads(made["reward_model"]["ground_truth"])["game_state"]
    assert build_state(truth[:-1], truth[-1]) == state(pot(is_on=True), score=1)
    assert json.loads(made["extra_info"]["data_state"])["game_state"][-1]["score"] == 0


@given(pairs(), st.sampled_from(["wait", "take pot (ID: 1)", "look", "say 'Now:'"]))
def test_a_template_is_read_off_its_own_records(pair, action):
    turn = record(*pair, action=action)
    assert PromptTemplate.extract(example(turn), turn, RULES) == TEMPLATE


@pytest.mark.parametrize("place", range(len(PARTS)), ids=PARTS)
def test_a_part_that_is_not_there_is_named_with_where_it_was_looked_for(place):
    pieces = list(TEMPLATE.pieces)
    pieces[0] = "Simulate:\n"
    broken = replace(TEMPLATE, pieces=tuple(pieces)).official_record(TURN, split="train", index=0)
    text = broken["prompt"][0]["content"]
    at = text.rindex(pieces[place]) + len(pieces[place])
    broken["prompt"][0]["content"] = text[:at] + "~" + text[at:]  # no longer a line, or a number, of its own
    with pytest.raises(
        ValueError, match=f"{PARTS[place]} not found in the example's prompt: looked for "
    ) as caught:
        PromptTemplate.extract(broken, TURN, RULES)
    landmark = [*PARTS, "end"][place + 1]
    assert f"characters before the {landmark};" in str(caught.value)
    assert len(str(caught.value)) < 450


WRONG = {
    "not a record": (
        {"prompt": []},
        TURN,
        r"the example has no \['prompt', 0, 'content'\]; it has \['prompt'\]",
    ),
    "a transition": (TURN, TURN, r"the example has no \['prompt', 0, 'content'\]; it has \['game'"),
    "a text": ("hello", TURN, "the example has no .* it has str"),
    "no state": ({**example(), "extra_info": {}}, TURN, r"no \['extra_info', 'data_state'\]"),
    "prompt is text": ({**example(), "prompt": "x"}, TURN, r"the example has no \['prompt', 0, 'content'\]"),
    "content is a list": (
        {**example(), "prompt": [{"content": []}]},
        TURN,
        "of the example is \\[\\], not of type str",
    ),
    "state is no JSON": (
        {**example(), "extra_info": {"data_state": "{", "data_action": "wait"}},
        TURN,
        "'data_state' of the example is not JSON",
    ),
    "other action": (
        example(),
        record(*record_states(TURN), action="jump"),
        "'data_action' of the example is 'wait', 'lastAction' of the transition's 'action_state' 'jump'",
    ),
    "other state": (
        example(),
        record(state(pot(temperature=9)), state()),
        "'data_state' of the example is not",
    ),
    "no transition": (
        example(),
        {"game": "kettle"},
        r"the transition has no \['current_state', 'taskDesc'\]",
    ),
    "unknown game": (
        example(),
        {**TURN, "game": "x"},
        "no rules for the game 'x'; there are rules for kettle",
    ),
    "no task": (example(), {**TURN, "current_state": {"taskDesc": None}}, "is None, not of type str"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_records_are_refused_in_words(case):
    official, turn, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        PromptTemplate.extract(official, turn, RULES)


def test_an_empty_part_cannot_be_located():
    rules = {"kettle": replace(RULES["kettle"], score="")}
    with pytest.raises(ValueError, match="score rules not found in the example's prompt: looked for ''"):
        PromptTemplate.extract(
            replace(TEMPLATE, rules=rules).official_record(TURN, split="x", index=0), TURN, rules
        )


def test_a_transition_without_all_its_fields_builds_nothing():
    with pytest.raises(ValueError, match=r"no \['action_state', 'lastAction'\]"):
        TEMPLATE.build({**TURN, "action_state": {}})
    bad = {**TURN, "current_state": {**TURN["current_state"], "max_UUID": True}}
    with pytest.raises(ValueError, match="is True, not of type int"):
        TEMPLATE.build(bad)


def test_save_and_load(tmp_path):
    path = tmp_path / "new folder" / "template.json"
    TEMPLATE.save(path)
    assert PromptTemplate.load(path) == TEMPLATE
    assert [file.name for file in path.parent.iterdir()] == ["template.json"]


def test_save_and_load_of_the_published_template(tmp_path, published):
    rows, transitions, rules = published
    template = extract(rows[3], transitions, rules)
    template.save(tmp_path / "template.json")
    again = PromptTemplate.load(tmp_path / "template.json")
    assert again == template
    assert again.build(transitions[-1]) == template.build(transitions[-1])


DAMAGE = [
    ("{", "is not JSON"),
    ("[]", "is not a 'text-game prompt template 1': expected the fields"),
    (json.dumps({"format": "text-game prompt template 1"}), "expected the fields"),
    ({"format": "text-game prompt template 0"}, "is not a 'text-game prompt template 1'"),
    ({"pieces": ["a", "b"]}, "damaged: a template has 8 fixed pieces"),
    ({"pieces": [None] * 8}, "damaged: a template consists of texts only"),
    ({"pieces": 8}, "damaged"),
    ({"rules": []}, "damaged"),
    ({"rules": {"kettle": {"object": "x"}}}, "damaged"),
    (
        {"rules": {"kettle": {"object": 1, "action": "", "score": ""}}},
        "damaged: a template consists of texts only",
    ),
]


@pytest.mark.parametrize(("change", "message"), DAMAGE, ids=range(len(DAMAGE)))
def test_files_that_are_no_template_are_refused(tmp_path, change, message):
    path = tmp_path / "template.json"
    TEMPLATE.save(path)
    text = change if isinstance(change, str) else json.dumps({**json.loads(path.read_text()), **change})
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        PromptTemplate.load(path)
    assert str(path) in str(caught.value)


def test_a_missing_template_says_how_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no template at .* PromptTemplate\.extract"):
        PromptTemplate.load(tmp_path / "none.json")


def test_rules_are_read_from_a_folder(tmp_path):
    for kind, name in RULE_FILES.items():
        with pytest.raises(FileNotFoundError, match=f"has no {name}"):
            read_rules(tmp_path)
        (tmp_path / name).write_text(json.dumps({**WRITTEN[kind], f"only {kind}": "x"}))
    assert read_rules(tmp_path) == RULES
    assert RULES["kettle"] == GameRules(
        object="Pots get hot.\n\nWater boils.", action="wait: nothing", score="One point for steam."
    )
    (tmp_path / RULE_FILES["score"]).write_text("[")
    with pytest.raises(ValueError, match=r"score_rules\.json is not JSON"):
        read_rules(tmp_path)
    with pytest.raises(ValueError, match="the score rules are not a dict from game to text: None"):
        rules_by_game({**WRITTEN, "score": None})
    with pytest.raises(ValueError, match="of 'kettle' have no line of ten '='"):
        rules_by_game({**WRITTEN, "object": {"kettle": "Pots get hot."}})


def _read_compact(text):
    """A state and an action back from our prompt."""
    lines = text.split("\n")
    end = next(number for number, line in enumerate(lines) if line.startswith("Points: "))
    objects = []
    for line in lines[1:end]:
        values, at = [], 0
        while at < len(line):
            value, at = json.JSONDecoder().raw_decode(line, at)
            values.append(value)
            at += 1
        uuid, name, *others = values
        objects.append(dict(zip(OBJECT_KEYS, (name, uuid, *others), strict=True)))
    scores = json.loads(lines[end].removeprefix("Points: "))
    return build_state(objects, scores), json.loads(lines[end + 1].removeprefix("The player does: "))


@given(states(), st.text())
def test_our_prompt_loses_nothing(one, action):
    again, said = _read_compact(compact_prompt(one, action))
    assert again.to_text() == one.to_text()
    assert list(again.objects) == list(one.objects)
    assert said == action


@pytest.mark.parametrize("game", sorted(GAMES))
def test_our_prompt_loses_nothing_of_our_games(game):
    for turn in turns(game, limit=60):
        text = compact_prompt(turn.before, turn.action)
        assert _read_compact(text) == (turn.before, turn.action)
        assert f"new uuids are {max(turn.before.objects) + 1}, " in text


def test_our_prompt_loses_nothing_of_published_states_and_is_much_shorter(published):
    rows, transitions, rules = published
    template = extract(rows[0], transitions, rules)
    for turn in transitions[::50]:
        before, action = record_states(turn)[0], turn["action_state"]["lastAction"]
        text = compact_prompt(before, action, uuid_base=turn["current_state"]["max_UUID"])
        assert _read_compact(text) == (before, action)
        assert len(text) < len(template.build(turn)) / 2


@settings(max_examples=50)
@given(pairs())
def test_an_answer_as_our_prompt_asks_for_it_is_read(pair):
    before, after = pair
    assert read_answer(json.dumps(answer_value(before, after)), before).state == after


def test_new_uuids_do_not_collide():
    assert "new uuids are 9, 10 and" in compact_prompt(state(pot()), "wait", uuid_base=9)
    assert "new uuids are 0, 1 and" in compact_prompt(state(), "wait")
    with pytest.raises(ValueError, match="uuid_base is 2, but the state has an object 2; give 3 or more"):
        compact_prompt(state(pot(), water()), "wait", uuid_base=2)


def _hash(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]
