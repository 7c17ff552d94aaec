"""Scripted behaviour in the drawer world: experts succeed, failures fail as they should; nothing here draws."""

from __future__ import annotations

import numpy as np
import pytest

from rlvr_envs.drawer_rules import HAND, HORIZON_STEPS, TASKS, DrawerTask, drawer_task, succeeded
from rlvr_envs.simulators.drawer import DrawerWorld, sample_state
from rlvr_envs.simulators.drawer_env import act_in
from rlvr_envs.simulators.drawer_policies import KINDS, make_policy
from rlvr_envs.spaces import rt1_action_space

SPACE = rt1_action_space()


def run(kind: str, task: DrawerTask, seed: int, steps: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """States ``(T+1, 10)`` and actions ``(T, 13)`` of one episode, cut where an action ends it."""
    generator = np.random.default_rng(seed)
    world = DrawerWorld()
    world.reset(sample_state(task, generator))
    policy = make_policy(kind, task, generator)
    states, actions = [world.state()], []
    for _ in range(steps):
        actions.append(policy.act(states[-1]))
        act_in(world, actions[-1])
        states.append(world.state())
    return np.stack(states), np.stack(actions)


def end_of(actions: np.ndarray) -> int | None:
    """The step whose action ends the episode."""
    stops = np.flatnonzero((actions[:, 7:10] == (1, 0, 0)).all(1))
    return int(stops[0]) if len(stops) else None


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_experts_succeed_and_say_so(task: DrawerTask) -> None:
    ends = []
    for seed in range(6):
        states, actions = run("expert", task, seed, HORIZON_STEPS)
        ends.append(end_of(actions))
        assert ends[-1] is not None
        assert succeeded(states[ends[-1] + 1], task)
        assert succeeded(states[-1], task)  # hovering afterwards disturbs nothing
    assert 10 <= np.mean(ends) <= 50


def test_failures_fail() -> None:
    tasks = list(TASKS.values())
    final = {
        kind: [succeeded(run(kind, tasks[seed % 6], seed)[0][-1], tasks[seed % 6]) for seed in range(12)]
        for kind in ("miss", "wrong", "half", "slip")
    }
    assert sum(final["miss"]) == sum(final["wrong"]) == 0
    assert sum(final["half"]) <= 2
    assert sum(final["slip"]) <= 3


def test_what_goes_wrong() -> None:
    opens = drawer_task("open_middle_drawer")
    column = opens.column
    moved = {
        kind: np.array([np.ptp(run(kind, opens, seed)[0][:, 7:], axis=0) for seed in range(6)])
        for kind in ("miss", "slip", "half", "wrong")
    }
    assert moved["miss"].max() < 0.02
    for kind in ("slip", "half"):
        assert (moved[kind][:, column - 7] > 0.02).all()
        assert (moved[kind][:, column - 7] < 0.16).all()
    assert moved["wrong"][:, column - 7].max() < 0.02
    # The wrong drawer may have stood open already, but most come along.
    assert (moved["wrong"].max(1) > 0.05).sum() >= 4


def test_kinds_without_a_purpose() -> None:
    task = drawer_task("open_top_drawer")
    hover, _ = run("hover", task, 0)
    assert np.ptp(hover[:, 7:], axis=0).max() < 1e-3
    assert 0.01 < np.ptp(hover[:, HAND], axis=0).max() < 0.3
    assert sum(np.ptp(run("play", task, seed)[0][:, 7:], axis=0).max() > 0.1 for seed in range(5)) >= 3
    assert sum(np.ptp(run("smooth", task, seed)[0][:, 7:], axis=0).max() > 0.02 for seed in range(10)) >= 3
    for kind in ("hover", "smooth", "noise", "play", "half"):
        assert end_of(run(kind, task, 1)[1]) is None
    assert all(end_of(run("early", task, seed)[1]) <= 16 for seed in range(5))


@pytest.mark.parametrize("kind", KINDS)
def test_actions_are_rt1s_and_seeded(kind: str) -> None:
    task = drawer_task("close_bottom_drawer")
    _, actions = run(kind, task, 3, steps=25)
    assert actions.dtype == np.float32
    for action in actions:
        assert SPACE.contains(np.clip(action, SPACE.low, SPACE.high))
        np.testing.assert_allclose(action, np.clip(action, SPACE.low, SPACE.high))
    assert (actions[:, :3] == 0).all()
    np.testing.assert_array_equal(run(kind, task, 3, steps=25)[1], actions)
    assert not np.array_equal(run(kind, task, 4, steps=25)[1], actions)


def test_unknown_kinds_list_the_known() -> None:
    assert sum(KINDS.values()) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"'expret'; did you mean 'expert'\?.*hover"):
        make_policy("expret", drawer_task("open_top_drawer"), np.random.default_rng(0))
