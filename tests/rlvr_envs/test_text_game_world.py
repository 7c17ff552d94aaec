"""The true text games as a world model: the environment step by step, and the contract of rollout states."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rlvr_envs.simulators.text_game_env import TextGameSimEnv
from rlvr_envs.simulators.text_game_world import TextGameWorld
from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import solve, start, valid_actions
from worldmodels.api import History, Predictions, WorldModel
from worldmodels.language.game_state import parse_state

every_game = pytest.mark.parametrize("game", GAMES)
VARIATION = 3
NONSENSE = "sing a song"


def begin(*games: str, variation: int = VARIATION):
    histories = [History(observations=[start(GAMES[game], variation).to_text()]) for game in games]
    return TextGameWorld().start(histories, seeds=range(len(games)))


def texts(state, actions) -> list[list[str]]:
    """What is predicted after each step, ``actions[t][row]``."""
    world, seen = TextGameWorld(), []
    for now in actions:
        state, predictions = world.step(state, now)
        seen.append(predictions.observations())
    return seen


@every_game
def test_it_is_the_environment_step_by_step(game):
    env, world = TextGameSimEnv(game=game), TextGameWorld()
    observation, info = env.reset(options={"variation": VARIATION})
    state = world.start([History(observations=["{}", observation], actions=["wait"])], seeds=[0])
    generator = np.random.default_rng(0)
    way = solve(GAMES[game], VARIATION)
    detours = generator.choice(info["valid_actions"], 5).tolist()
    for action in [NONSENSE, *detours, *way, "take the void"]:
        observation, reward, terminated, _, info = env.step(action)
        state, predictions = world.step(state, [action], temperature=0.0)
        prediction = predictions[0]
        assert prediction.observation == observation
        assert (prediction.reward, prediction.terminated) == (reward, terminated)
        assert prediction.error is None


@every_game
def test_the_solver_wins_and_then_nothing_changes(game):
    world, state = TextGameWorld(), begin(game)
    for action in solve(GAMES[game], VARIATION):
        state, predictions = world.step(state, [action])
    assert predictions[0].terminated
    assert parse_state(predictions[0].observation).game_won
    _, later = world.step(state, ["wait"])
    assert later[0].observation == predictions[0].observation
    assert (later[0].reward, later[0].terminated) == (0.0, True)


def test_it_keeps_the_contract_of_world_models():
    world = TextGameWorld()
    assert isinstance(world, WorldModel)
    state = begin(*GAMES)
    after, predictions = world.step(state, ["wait"] * len(GAMES))
    assert isinstance(predictions, Predictions)
    assert len(after) == len(predictions) == len(GAMES) == len(state)
    assert predictions.observations() == [predictions[row].observation for row in range(len(GAMES))]
    assert predictions.states() is None


def test_fork_select_append():
    games = ["boil-water", "mix-paint", "open-vault"]
    state = begin(*games)
    first = [valid_actions(GAMES[game], start(GAMES[game], VARIATION))[0] for game in games]
    steps = [first, ["wait"] * 3]
    parent = texts(state, steps)
    assert texts(state, steps) == parent  # an old state stays valid
    forked = texts(state.fork(2), [[action for action in now for _ in range(2)] for now in steps])
    assert [now[::2] for now in forked] == [now[1::2] for now in forked] == parent
    assert texts(state.fork(1), steps) == parent
    chosen = texts(state.select([2, 0, 0]), [[now[row] for row in (2, 0, 0)] for now in steps])
    assert chosen == [[now[row] for row in (2, 0, 0)] for now in parent]
    older, _ = TextGameWorld().step(state, first)
    mixed = texts(older.append(state), [["wait"] * 3 + first])
    assert mixed == [parent[1] + parent[0]]


def test_a_bad_action_changes_nothing():
    world, state = TextGameWorld(), begin("bake-bread", "grow-plant", "call-help", "boil-water")
    before = [game_state.to_text() for game_state in state.states]
    bad = [NONSENSE, "", "wait" * 1000, "take \ud800"]
    after, predictions = world.step(state, bad)
    assert predictions.observations() == before
    assert [game_state.to_text() for game_state in after.states] == before
    assert [predictions[row].error is None for row in range(4)] == [True, True, False, False]
    assert [predictions[row].observation for row in range(4)] == [*before[:2], None, None]
    assert "4,000 characters" in predictions[2].error
    assert "not valid unicode" in predictions[3].error
    later, _ = world.step(after, ["wait"] * 4)  # and a row with an error goes on
    assert len(later) == 4


def test_what_it_cannot_start_or_step_from_is_named():
    world, state = TextGameWorld(), begin("boil-water", "mix-paint")
    with pytest.raises(ValueError, match="one seed per history"):
        world.start([History(observations=[state.states[0]])], seeds=[])
    with pytest.raises(ValueError, match="not JSON"):
        world.start([History(observations=["hello"])], seeds=[0])
    with pytest.raises(ValueError, match="0 objects of type 'Task'"):
        world.start(
            [History(observations=['{"objects": [], "score": 0, "gameOver": false, "gameWon": false}'])],
            seeds=[0],
        )
    foreign = state.states[0].to_text().replace('"boil-water"', '"chess"')
    with pytest.raises(ValueError, match="there is no game 'chess'"):
        world.start([History(observations=[foreign])], seeds=[0])
    lacking = state.states[0].to_text().replace('"boil-water"', '"mix-paint"')
    with pytest.raises(ValueError, match="no object of type"):
        world.start([History(observations=[lacking])], seeds=[0])
    for actions in (["wait"], ["wait", 3], "no"):
        with pytest.raises(ValueError, match="for 2 rows"):
            world.step(state, actions)
    with pytest.raises(TypeError, match="state is a list"):
        world.step([], ["wait"])
    with pytest.raises(TypeError, match="state is a list"):
        state.append([])
    with pytest.raises(IndexError, match="with 2 rows"):
        state.select([2])
    with pytest.raises(ValueError, match="at least 1"):
        state.fork(0)


def test_it_needs_no_torch():
    code = "import sys; import rlvr_envs.simulators.text_game_world; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
