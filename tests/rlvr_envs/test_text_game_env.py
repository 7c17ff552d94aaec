"""The text games as a Gymnasium environment, and the space of its texts."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlvr_envs.simulators.text_game_env import TextGameSimEnv
from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import solve, start
from rlvr_envs.spaces import Document, checked_action
from worldmodels.language.game_state import parse_state

every_game = pytest.mark.parametrize("game", GAMES)


@every_game
@pytest.mark.filterwarnings("error")
def test_check_env(game):
    check_env(TextGameSimEnv(game=game), skip_render_check=True)


@every_game
def test_the_solver_wins_in_the_environment(game):
    env = TextGameSimEnv(game=game)
    observation, info = env.reset(options={"variation": 7})
    total = 0.0
    for action in solve(GAMES[game], 7):
        assert not info["won"]
        assert action in info["valid_actions"]
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        assert not truncated
        total += reward
    assert terminated
    assert info["won"]
    assert total == info["score"] == len(GAMES[game].milestones)
    assert info["valid_actions"] == []


@every_game
def test_observations_are_the_canonical_text_of_the_state(game):
    env = TextGameSimEnv(game=game)
    observation, info = env.reset(seed=1)
    generator = np.random.default_rng(0)
    for _ in range(30):
        assert observation == info["state"].to_text()
        assert parse_state(observation) == info["state"]
        assert json.loads(observation)["gameOver"] is info["state"].game_over
        if info["state"].game_over:
            break
        observation, _, _, _, info = env.step(str(generator.choice(info["valid_actions"])))


def test_seeds_give_variations_and_options_choose():
    env = TextGameSimEnv()
    first, info = env.reset(seed=3)
    again, _ = env.reset(seed=3)
    assert first == again
    other, _ = env.reset()
    assert other != first
    same, _ = env.reset(options={"variation": info["variation"]})
    assert same == first
    bread, info = env.reset(options={"game": "bake-bread", "variation": 2})
    assert info["game"] == "bake-bread"
    assert info["state"] == start(GAMES["bake-bread"], 2)
    _, info = env.reset(seed=0)
    assert info["game"] == "boil-water"
    for given in (bread, json.loads(bread), parse_state(bread)):
        observation, info = env.reset(options={"game": "bake-bread", "state": given})
        assert observation == bread
        assert info["variation"] is None


@every_game
def test_snapshots_are_exact(game):
    env, other = TextGameSimEnv(game=game), TextGameSimEnv()
    env.reset(options={"variation": 4})
    plan = solve(GAMES[game], 4)
    for action in plan[:-2]:
        _, _, _, _, info = env.step(action)
    snapshot = env.snapshot()
    wanted = [env.step(action)[:3] for action in plan[-2:]]
    for way in (env.restore, other.restore, lambda moment: other.reset(options={"snapshot": moment})):
        observation, restored = way(snapshot)
        assert observation == info["state"].to_text()
        assert restored["message"] == info["message"]
        assert restored["valid_actions"] == info["valid_actions"]
        assert restored["game"] == game
        target = env if way == env.restore else other
        assert [target.step(action)[:3] for action in plan[-2:]] == wanted


def test_unknown_actions_are_answered_by_the_game():
    env = TextGameSimEnv()
    before, _ = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("fly to the moon")
    assert observation == before
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["message"].startswith("I do not understand 'fly to the moon'. Things to do: take ...")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("x" * 1_000_000, r"action has 1,000,000 characters; at most 1,000 are allowed"),
        ("take \ud800", r"action is not valid unicode: character 5 is a lone surrogate, U\+D800"),
        (3, r"action is 3; expected a text"),
        (b"wait", r"action is b'wait'; expected a text"),
        (None, r"action is None; expected a text"),
    ],
)
def test_bad_actions_are_refused_and_the_episode_goes_on(action, message):
    env = TextGameSimEnv()
    before, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.step(action)
    assert env.step("gibberish")[0] == before


def test_bad_options_are_refused():
    env = TextGameSimEnv()
    text, _ = env.reset(seed=0)
    snapshot = env.snapshot()
    for options, message in (
        ({"level": 1}, r"unknown reset option 'level'; the options are game, variation, state, snapshot"),
        ({"game": "chess"}, r"there is no game 'chess'; the games are bake-bread"),
        ({"variation": -1}, r"variation is -1"),
        ({"variation": 1.5}, r"variation is 1.5"),
        ({"variation": 1, "state": text}, r"both 'state' and 'variation'"),
        ({"state": "{"}, r"not JSON"),
        ({"state": {"objects": []}}, r"the score state lacks"),
        ({"state": text, "game": "bake-bread"}, r"no object of type"),
        ({"snapshot": snapshot, "game": "bake-bread"}, r"give it alone"),
        ({"snapshot": text}, r"snapshot is str"),
    ):
        with pytest.raises(ValueError, match=message):
            env.reset(options=options)
    with pytest.raises(ValueError, match=r"there is no game 'chess'"):
        TextGameSimEnv(game="chess")
    with pytest.raises(gym.error.ResetNeeded):
        TextGameSimEnv().step("wait")


def test_several_environments_step_as_one():
    envs = gym.vector.SyncVectorEnv([TextGameSimEnv for _ in range(3)])
    observations, _ = envs.reset(seed=5)
    assert list(observations) == [TextGameSimEnv().reset(seed=5 + place)[0] for place in range(3)]
    observations, rewards, terminated, _, _ = envs.step(("wait", "take sink", "turn on sink"))
    assert len(observations) == 3
    assert rewards.tolist() == [0.0, 0.0, 0.0]
    assert not terminated.any()
    envs.close()


def test_rendering_shows_what_holds_what():
    env = TextGameSimEnv(render_mode="ansi")
    env.reset(options={"variation": 0})
    env.step("turn on sink")
    lines = env.render().splitlines()
    assert lines[0].startswith("You turn on the sink.")
    assert sum(line.startswith("  ") for line in lines) == len(start(GAMES["boil-water"], 0).objects) - 1
    assert lines[-1] == "score 0"
    assert TextGameSimEnv().render() is None


def test_no_torch_and_no_other_simulator():
    code = (
        "import sys, rlvr_envs.simulators.text_game_env;"
        "print([name for name in ('torch', 'mujoco', 'pymunk') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@every_game
def test_speed(game):
    """Per second of processor time, the environment with texts and valid actions."""
    env = TextGameSimEnv(game=game)
    generator = np.random.default_rng(0)
    _, info = env.reset(seed=0)
    steps, began = 0, time.process_time()
    while time.process_time() - began < 1:
        actions = info["valid_actions"]
        _, _, terminated, _, info = env.step(actions[int(generator.integers(len(actions)))])
        if terminated:
            _, info = env.reset()
        steps += 1
    assert steps / (time.process_time() - began) > 1_000  # about 5,000 on a free core


def test_document_holds_any_text():
    space = Document(10)
    for text in ("", "{}", 'é"\n\t', "日本語", "😀" * 10):
        assert text in space
    for other in ("x" * 11, "\udc80", b"x", None, 3, ["x"]):
        assert other not in space
    assert space == Document(10)
    assert space != Document(11)
    assert repr(space) == "Document(10)"
    assert not space.is_np_flattenable
    assert space.from_jsonable(space.to_jsonable(["a", "b"])) == ["a", "b"]


def test_document_samples_are_its_own_and_reproducible():
    space, twin = Document(5, seed=1), Document(5, seed=1)
    samples = [space.sample() for _ in range(50)]
    assert samples == [twin.sample() for _ in range(50)]
    assert all(sample in space for sample in samples)
    assert len(set(samples)) > 20
    assert "" in samples
    with pytest.raises(ValueError, match="neither mask nor probability"):
        space.sample(mask=np.ones(3))
    for bad in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="max_characters is"):
            Document(bad)


def test_checked_action_of_a_document():
    assert checked_action(Document(10), "wait") == ("wait", 0)
    with pytest.raises(ValueError, match="action has 11 characters; at most 10 are allowed"):
        checked_action(Document(10), "x" * 11)
