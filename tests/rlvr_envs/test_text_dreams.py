"""Dreams of text games."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlvr_envs.simulators.text_games.catalogue import GAMES, game_named
from rlvr_envs.simulators.text_games.engine import step, valid_actions
from rlvr_envs.text_dreams import (
    bundled_first_states,
    recorded_first_states,
    text_game,
    text_game_vector,
)
from tests.worldmodels.language.test_prompts import TEMPLATE, TURN
from tests.worldmodels.language.test_published_prompt import folder_of
from tests.worldmodels.language.tiny_lms import tiny_net, toy_tokenizer
from tests.worldmodels.language.tiny_slots import tiny_slot_world, turns
from worldmodels.language.causal_lm import CausalLM
from worldmodels.language.causal_lm_files import save_causal_lm
from worldmodels.language.game_state import parse_state
from worldmodels.language.state_diff import apply
from worldmodels.language.transitions import write_transitions


@pytest.fixture(scope="module")
def model():
    return tiny_slot_world()


class Rules:
    """The truth in place of a world model: what a perfect one would say."""

    history_length, action_shape = 1, None

    def start(self, histories, *, seeds):
        return [parse_state(history.observations[-1]) for history in histories]

    def step(self, state, actions, *, temperature=1.0):
        from worldmodels.language.answers import Answer
        from worldmodels.language.slot_world import StatePredictions

        later = []
        for before, action in zip(state, actions, strict=True):
            task = next(item for item in before.objects.values() if item["type"] == "Task")
            later.append(step(game_named(task["properties"]["game"]), before, action).state)
        return later, StatePredictions(state, [Answer(state=after) for after in later])


def test_is_a_correct_environment(model):
    check_env(text_game(world_model=model, render_mode="ansi"), skip_render_check=True)


def test_a_perfect_model_dreams_the_truth():
    env = text_game(
        world_model=Rules(), valid_actions=lambda state: valid_actions(GAMES["boil-water"], state)
    )
    sim = gym.make("RLVRWorld/TextGame-Sim-v0", game="boil-water")
    seen, info = sim.reset(seed=3)
    dreamt, dream_info = env.reset(seed=0, options={"observation": seen, "game": "boil-water"})
    assert dreamt == seen
    assert dream_info["valid_actions"] == info["valid_actions"]
    assert not dream_info["difference"]
    for action in ("look around", *info["valid_actions"][:4], "wait"):
        before = dream_info["state"]
        seen, reward, terminated, _, info = sim.step(action)
        dreamt, own_reward, own_end, _, dream_info = env.step(action)
        assert (dreamt, own_reward, own_end) == (seen, reward, terminated)
        assert apply(dream_info["difference"], before) == dream_info["state"] == info["state"]
        assert dream_info["prediction_error"] == ""
        assert dream_info["score"] == info["score"]


def test_an_unreadable_answer_keeps_the_state(model):
    env = text_game(world_model=model)
    errors = 0
    observation, info = env.reset(seed=0)
    for _ in range(20):
        before = observation
        observation, reward, terminated, _, info = env.step("wait")
        if info["prediction_error"]:
            errors += 1
            assert (observation, reward, terminated) == (before, 0.0, False)
            assert not info["difference"]
        if terminated:
            observation, info = env.reset()
    assert errors


def test_a_batch_equals_singles(model):
    envs = text_game_vector(world_model=model, num_envs=3, game="open-vault")
    singles = [text_game(world_model=model, game="open-vault") for _ in range(3)]
    together, _ = envs.reset(seed=5)
    alone = [env.reset(seed=5 + row)[0] for row, env in enumerate(singles)]
    assert list(together) == alone
    for action in ("wait", "take the key", "look"):
        together, rewards, *_ = envs.step([action] * 3)
        stepped = [env.step(action) for env in singles]
        assert list(together) == [one[0] for one in stepped]
        np.testing.assert_array_equal(rewards, [one[1] for one in stepped])


def test_every_game_has_first_states_and_no_simulator_is_needed():
    assert {start.game for start in bundled_first_states()} == set(GAMES)
    for start in bundled_first_states()[::40]:
        assert not start.state.game_over


def test_recorded_transitions_begin_dreams(model, tmp_path):
    write_transitions(tmp_path / "rows.jsonl.gz", turns(limit=5))
    env = text_game(world_model=model, episodes=tmp_path)
    _, info = env.reset(seed=0)
    assert info["game"] == "boil-water"
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "bad.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="no usable transition"):
        text_game(world_model=model, episodes=tmp_path / "empty")


def test_a_broken_recorded_line_is_named_and_the_rest_begins_dreams(tmp_path, caplog):
    write_transitions(tmp_path / "rows.jsonl.gz", turns(limit=3))
    (tmp_path / "more.jsonl").write_bytes(b'{"game": 3}\n\xff\n')
    assert len(recorded_first_states(tmp_path)) == 3
    assert [message.split(": ")[1] for message in caplog.messages] == [
        f"{tmp_path / 'more.jsonl'}:{line}" for line in (1, 2)
    ]
    content = (tmp_path / "rows.jsonl.gz").read_bytes()
    (tmp_path / "rows.jsonl.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"rows\.jsonl\.gz is no whole gzip archive"):
        recorded_first_states(tmp_path)


def test_bad_input(model):
    with pytest.raises(ValueError, match="there are bake-bread, "):
        text_game(world_model=model, game="chess")
    with pytest.raises(ValueError, match="render_mode"):
        text_game(world_model=model, render_mode="rgb_array")
    env = text_game(world_model=model)
    with pytest.raises(ValueError, match="not JSON"):
        env.reset(options={"observation": "a kettle"})
    with pytest.raises(ValueError, match="no first state belongs"):
        env.reset(options={"game": "chess"})
    env.reset(seed=0)
    with pytest.raises(ValueError, match="at most 1,000"):
        env.step("x" * 1_000_000)
    with pytest.raises(ValueError, match="lone surrogate"):
        env.step("\ud800")
    with pytest.raises(ValueError, match="expected a text"):
        env.step(3)


def test_render_is_text(model):
    env = text_game(world_model=model, render_mode="ansi")
    env.reset(seed=0)
    assert "score 0" in env.render()


@pytest.fixture
def speaker(tmp_path):
    """A language model in the layout of Hugging Face, as published ones are."""
    lm = CausalLM(tiny_net(positions=8192), toy_tokenizer())
    return save_causal_lm(tmp_path / "speaker", lm, card="made on the spot")


def test_a_language_model_is_asked_by_the_published_prompt(speaker, tmp_path, monkeypatch):
    asked = []
    build = type(TEMPLATE).build
    monkeypatch.setattr(
        type(TEMPLATE), "build", lambda self, row: asked.append(build(self, row)) or asked[-1]
    )
    episodes = folder_of(tmp_path / "episodes", [TURN])
    for env in (
        gym.make("RLVRWorld/TextGame-v0", world_model=speaker, episodes=episodes),
        gym.make_vec("RLVRWorld/TextGame-v0", num_envs=1, world_model=speaker, episodes=episodes),
    ):
        env.unwrapped.world_model.max_new_tokens = 8
        observation, _ = env.reset(seed=0)
        later, reward, terminated, *_, info = env.step("wait" if isinstance(observation, str) else ["wait"])
        assert asked.pop() == TEMPLATE.build(TURN)
        asked.clear()
        # A model that was never trained says nothing that can be read, and the state stays.
        assert np.all(np.array(later) == np.array(observation))
        assert not np.any(terminated)
        assert not np.any(reward)
        assert "had not ended after 8 tokens" in str(info["prediction_error"])


def test_a_language_model_without_the_published_prompt_is_asked_in_our_words(speaker):
    with pytest.warns(UserWarning, match=r"has no prompt\.json"):
        env = text_game(world_model=speaker)
    env.world_model.max_new_tokens = 8
    env.reset(seed=0)
    _, _, _, _, info = env.step("wait")
    assert info["prediction_error"]
