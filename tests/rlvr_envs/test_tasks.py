"""Goals, success and rewards of PushT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlvr_envs.block_shapes import BLOCK_SHAPES, coverage
from rlvr_envs.tasks import (
    GOAL_POSE,
    PushTRules,
    angle_difference,
    covered_goal,
    full_state,
    goal_parts,
    reached_state,
)

GOAL = np.array([100.0, 100.0, *GOAL_POSE, 0.0, 0.0])


def test_reached_state_is_the_published_rule_but_for_whole_turns(conformance: Callable[[str], Path]) -> None:
    with np.load(conformance("planning/pusht_dinowm.npz"), allow_pickle=False) as file:
        goals, states, expected = file["eval_goal"], file["eval_cur"], file["eval_success"]
    ours = reached_state(states, goals)
    turns = np.abs(goals[:, 4] - states[:, 4]) > 2 * np.pi
    assert 0 < turns.sum() < len(turns) / 2
    np.testing.assert_array_equal(ours[~turns], expected[~turns])
    assert not (ours & ~expected).any()  # the published rule accepts more, never less


def test_coverage_is_the_published_one(conformance: Callable[[str], Path]) -> None:
    with np.load(conformance("planning/pusht_gym.npz"), allow_pickle=False) as file:
        poses, values, success = file["cov_pose"], file["cov_value"], file["cov_success"]
        rewards, goal = file["cov_reward"], file["goal_pose"]
        obs, run_coverage, run_success = file["obs"][:, 1:], file["coverage"], file["is_success"]
    np.testing.assert_allclose([coverage(pose, goal) for pose in poses], values, rtol=0, atol=1e-9)
    states = [np.array([0, 0, *pose, 0, 0]) for pose in poses]
    assert [covered_goal(state, goal) for state in states] == success.tolist()
    assert 0 < success.sum() < len(success)
    rules = PushTRules(success="coverage", reward="coverage")
    judged = [rules.judge(state, np.array([9, 9, *goal, 0, 0])) for state in states]
    assert [judgement.success for judgement in judged] == success.tolist()
    np.testing.assert_allclose([judgement.reward for judgement in judged], rewards, rtol=0, atol=1e-9)
    # Along whole episodes of that environment too: its block pose is ours, whatever order its reset used.
    ours = [[coverage(state[2:5], goal) for state in run] for run in obs[::3, ::8]]
    np.testing.assert_allclose(ours, run_coverage[::3, ::8], rtol=0, atol=1e-9)
    assert [[covered_goal(state, goal) for state in run] for run in obs[::3, ::8]] == run_success[
        ::3, ::8
    ].tolist()


def test_coverage_of_known_overlaps() -> None:
    for shape in BLOCK_SHAPES.values():
        assert coverage(GOAL_POSE, GOAL_POSE, shape=shape) == pytest.approx(1, abs=1e-12)
        assert coverage((0, 0, 0), (400, 400, 1), shape=shape) == 0
    square = BLOCK_SHAPES["square"]  # 80 x 80
    assert coverage((100, 100, 0), (120, 140, 0), shape=square) == pytest.approx(60 * 40 / 6400)
    assert coverage((100, 100, 0), (100, 100, np.pi / 4), shape=square) == pytest.approx(2 * (np.sqrt(2) - 1))
    assert coverage((100, 100, 3), (130, 90, 1), shape=square) == pytest.approx(
        coverage((130, 90, 1), (100, 100, 3), shape=square)
    )


def test_angles_wrap() -> None:
    assert angle_difference(0.1, 2 * np.pi - 0.1) == pytest.approx(0.2)
    assert angle_difference(0.1, 0.1 - 6 * np.pi) == pytest.approx(0, abs=1e-12)
    assert angle_difference(0, np.pi) == pytest.approx(np.pi)


@pytest.mark.parametrize(
    ("change", "reached"),
    [
        ((0, 0, 0, 0, 0, 500, 500), True),  # velocities do not count
        ((19, 0, 0, 0, 0, 0, 0), True),
        ((15, 0, 15, 0, 0, 0, 0), False),  # agent and block together
        ((20, 0, 0, 0, 0, 0, 0), False),  # strict
        ((0, 0, 0, 0, 0.34, 0, 0), True),
        ((0, 0, 0, 0, 0.36, 0, 0), False),
        ((0, 0, 0, 0, 2 * np.pi, 0, 0), True),
        ((0, 0, 0, 0, 2 * np.pi + 1, 0, 0), False),
    ],
)
def test_reached_state(change: tuple[float, ...], reached: bool) -> None:
    assert bool(reached_state(GOAL + change, GOAL)) is reached


def test_sparse_and_dense_rewards() -> None:
    far = GOAL + np.array([300, 0, 0, 400, np.pi, 0, 0])
    sparse, dense = PushTRules(), PushTRules(reward="dense")
    assert (sparse.judge(GOAL, GOAL).reward, sparse.judge(far, GOAL).reward) == (1.0, 0.0)
    assert dense.judge(GOAL, GOAL).reward == 0.0
    assert dense.judge(far, GOAL).reward == pytest.approx(-(500 / 512 + 1) / 2)
    assert dense.judge(GOAL + np.array([9e9, 0, 0, 0, np.pi, 0, 0]), GOAL).reward == pytest.approx(-1)
    assert sparse.judge(GOAL, GOAL).success
    agent_away = GOAL + np.array([300, 0, 0, 0, 0, 0, 0])
    assert not sparse.judge(agent_away, GOAL).success
    assert PushTRules(success="coverage").judge(agent_away, GOAL).success


@pytest.mark.parametrize(("reward", "least"), [("sparse", 0), ("dense", -1), ("coverage", 0)])
def test_what_is_not_known_earns_least(reward: str, least: float) -> None:
    unknown = np.array([1.0, 2.0, np.nan, np.nan, np.nan, 0.0, 0.0])
    judgement = PushTRules(reward=reward).judge(unknown, GOAL)
    assert (judgement.success, judgement.reward) == (False, least)
    assert np.isnan(judgement.coverage)


def test_states_of_five_numbers_are_at_rest() -> None:
    np.testing.assert_array_equal(full_state("state", [1, 2, 3, 4, 5]), [1, 2, 3, 4, 5, 0, 0])
    np.testing.assert_array_equal(full_state("state", np.arange(7)), np.arange(7.0))


@pytest.mark.parametrize("wrong", [[1, 2, 3], np.zeros((1, 7)), [1, 2, 3, 4, np.nan], "home", None, [[1], 2]])
def test_bad_states_are_named(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"options\['state'\]"):
        full_state("options['state']", wrong)


def test_bad_goals_are_named() -> None:
    with pytest.raises(ValueError, match=r"'pose'.*'state'"):
        goal_parts({"pose": [1, 2, 3]})
    with pytest.raises(ValueError, match="5 numbers"):
        goal_parts({"state": [1, 2, 3]})
