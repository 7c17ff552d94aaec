"""Questions, slot models and slot worlds."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import transitions
from tests.worldmodels.language.tiny_slots import tiny_slot_model, tiny_slot_world, turns
from worldmodels.api import History
from worldmodels.checkpoints import load, save
from worldmodels.language.compact_questions import Schema, ask
from worldmodels.language.game_state import GameState
from worldmodels.language.slot_model import padded
from worldmodels.language.slot_world import SlotWorldModel, slot_config
from worldmodels.language.transitions import GameTransition
from worldmodels.language.words import Sign, Vocabulary
from worldmodels.nets.slot_transformer import SlotTransformerConfig


@pytest.fixture(scope="module")
def rows():
    return turns(limit=12)


def test_questions_need_no_torch():
    code = (
        "import sys, worldmodels.language.compact_questions\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_question_tells_states_and_actions_apart(rows):
    schema = Schema()
    first = rows[0]
    same, other = ask(first.before, first.action, schema), ask(first.before, rows[1].action, schema)
    again = ask(first.before, first.action.upper(), schema)
    np.testing.assert_array_equal(same.facts, again.facts)
    assert same.facts.tolist() != other.facts.tolist() or same.relations.tolist() != other.relations.tolist()
    assert same.objects == len(first.before.objects)
    assert len(same) == len(same.starts) - 1 > same.objects


def test_an_action_may_say_anything(rows):
    for action in ("", "  ", "\0 7", "x" * 100_000, "take \ud800", "(ID: 3)" * 200, "日本"):
        question = ask(rows[0].before, action, Schema())
        assert len(question) <= question.objects + 1 + 24


def test_what_never_varied_is_left_out_of_known_types_only(rows):
    schema = Schema.of([row.before for row in rows])
    assert len(ask(rows[0].before, "wait", schema).facts) < len(ask(rows[0].before, "wait", Schema()).facts)
    assert schema.shows("a type of another game", "anything")
    stove = next(item for item in rows[0].before.objects.values() if item["type"] == "Stove")
    assert {"capacity", "heatPerTick"} <= stove["properties"].keys()
    assert schema.shows("Stove", "heatPerTick")
    assert not schema.shows("Stove", "capacity")


def test_likelihoods_of_sampling_and_of_training_agree(rows):
    model = tiny_slot_model()
    questions = [ask(row.before, row.action, model.schema) for row in rows]
    said = model.answer(questions, seeds=torch.arange(2 * len(rows)), num_samples=2)
    with torch.no_grad():
        losses = model.nll(questions, said.tokens, num_samples=2)
    torch.testing.assert_close(-losses[said.mask], said.logprobs[said.mask], atol=1e-4, rtol=1e-4)
    assert (said.tokens[said.mask] != Sign.PAD).all()
    assert (said.tokens[~said.mask] == Sign.PAD).all()


def test_a_row_draws_the_same_alone(rows):
    model = tiny_slot_model()
    questions = [ask(row.before, row.action, model.schema) for row in rows]
    together = model.answer(questions, seeds=torch.arange(len(rows)), steps=torch.arange(len(rows)))
    for row in range(0, len(rows), 3):
        alone = model.answer([questions[row]], seeds=torch.tensor([row]), steps=row)
        ended = int(alone.mask.sum())
        torch.testing.assert_close(alone.tokens[0, :ended], together.tokens[row, :ended])


def test_a_pointer_reaches_objects_of_its_own_state_only(rows):
    model = tiny_slot_model()
    small = GameState(objects=dict(list(rows[0].before.objects.items())[:2]))
    questions = [ask(small, "wait", model.schema), ask(rows[0].before, "wait", model.schema)]
    said = model.answer(questions * 40, seeds=torch.arange(80))
    pointed = said.tokens[::2][said.tokens[::2] >= model.vocabulary.size] - model.vocabulary.size
    assert len(pointed)
    assert pointed.max() < 2


def test_learning_reaches_the_right_answer(rows):
    model = tiny_slot_model().train()
    questions = [ask(row.before, row.action, model.schema) for row in rows[:4]]
    answers = padded([[Sign.SCORE, Sign.EQUALS, 32 + row, Sign.END] for row in range(4)])
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        loss = model.nll(questions, answers).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    said = model.answer(questions, seeds=torch.zeros(4, dtype=torch.int64), temperature=0.0)
    torch.testing.assert_close(said.tokens, answers)


def test_the_world_keeps_a_state_whose_answer_cannot_be_read(rows):
    world = tiny_slot_world()
    state = world.start(
        [History(observations=[row.before.to_text()]) for row in rows], seeds=range(len(rows))
    )
    later, predictions = world.step(state, [row.action for row in rows])
    for row in range(len(rows)):
        answer = predictions[row]
        if answer.observation is None:
            assert answer.error
            assert later.states[row] == rows[row].before
    assert any(predictions[row].error for row in range(len(rows)))  # random weights
    assert all(isinstance(text, str) for text in predictions.observations())
    assert predictions.states() is None


def test_nothing_happens_after_the_end(rows):
    world = tiny_slot_world()
    over = dataclasses.replace(rows[0].before, game_over=True)
    state = world.start([History(observations=[over])], seeds=[0])
    _, predictions = world.step(state, ["take kettle"])
    assert predictions[0].observation == over.to_text()
    assert predictions[0].terminated
    assert predictions[0].reward == 0


def test_bad_input(rows):
    world, other = tiny_slot_world(), tiny_slot_world()
    state = world.start([History(observations=[rows[0].before])], seeds=[0])
    with pytest.raises(ValueError, match="one text each"):
        world.step(state, [b"wait"])
    with pytest.raises(ValueError, match="one seed per history"):
        world.start([], seeds=[])
    with pytest.raises(ValueError, match="not JSON"):
        world.start([History(observations=["no state"])], seeds=[0])
    with pytest.raises(TypeError, match="of another model"):
        other.step(state, ["wait"])
    with pytest.raises(ValueError, match="the language has"):
        type(world.model)(SlotTransformerConfig(vocab_size=3), Vocabulary(["a"]), Schema())


def test_a_checkpoint_gives_the_same_answers(rows, tmp_path):
    model = tiny_slot_model(schema=Schema.of([row.before for row in rows]))
    config = {**slot_config(model), "protocol": {"environment": "TextGame"}}
    folder = save(tmp_path / "tiny", model, config, card="tiny\n", dtype=torch.float32)
    again = load(folder)
    assert again.protocol == {"environment": "TextGame"}
    assert again.model.schema == model.schema
    questions = [ask(row.before, row.action, model.schema) for row in rows]
    one = model.answer(questions, seeds=torch.arange(len(rows)))
    two = again.model.answer(questions, seeds=torch.arange(len(rows)))
    torch.testing.assert_close(one.tokens, two.tokens)
    with pytest.raises(ValueError, match="has its own words"):
        load(folder, tokenizer="pusht-tokenizer")


def test_answers_are_asked_for_again_in_other_numberings():
    model = load("textgame-base").model
    rows = [
        GameTransition(id=f"{variation}/{n}", game="boil-water", before=before, action=action, after=after)
        for variation in (800_001, 800_002)
        for n, (before, action, after) in enumerate(transitions(GAMES["boil-water"], variation))
        if after.score > before.score or n % 9 == 0
    ]
    histories = [History(observations=[row.before]) for row in rows]
    actions = [row.action for row in rows]

    def asked(**settings):
        world = SlotWorldModel(model, **settings)
        return world.step(world.start(histories, seeds=range(len(rows))), actions, temperature=0.0)[1]

    plain, again = asked(), asked(views=3)
    promising = []
    for row, transition in enumerate(rows):
        said = plain.answers[row].state
        assert said == again.answers[row].state
        if said is not None and said.score > transition.before.score:
            promising.append(row)
            assert again[row].probability in {0.25, 0.5, 0.75, 1.0}
        else:
            assert again[row].probability == plain[row].probability
    right = [row for row in promising if plain.answers[row].state == rows[row].after]
    assert right
    assert sum(again[row].probability == 1 for row in right) > 0.8 * len(right)
    with pytest.raises(ValueError, match="views is -1"):
        SlotWorldModel(model, views=-1)
