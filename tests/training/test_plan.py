from __future__ import annotations

import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from planners import CEMConfig, StateCost
from rlvr_envs.simulators.pusht import PushTWorld
from rlvr_envs.simulators.pusht_drawing import PushTDrawing
from rlvr_envs.tasks import proprio
from tests.training.tiny_pusht import tiny_data, tiny_model
from training.goals import Attempt, GoalSet, Problem, choose_problems
from training.plan import _MODELS, PlanConfig, _receive, plan_table, row_names
from training.plan_rows import PlanRow, SimulatorCost, cost_source, reader_of, true_state
from worldmodels.api import History

SEARCH = CEMConfig(num_samples=6, num_elites=2, iterations=2, sigma=0.25, action_low=-1.0, action_high=1.0)
CONFIG = PlanConfig(goals=3, budget_env_steps=10, horizon_steps=2, search=SEARCH)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_data(tmp_path_factory.mktemp("store"), episodes=8)


@pytest.fixture(scope="module")
def models():
    return {"base": tiny_model(seed=0), "rlvr": tiny_model(seed=1)}


def timeless(report):
    """Everything in a report that may not change from one computation to the next."""
    goals = {
        row: {k: _without_seconds(v) for k, v in of.items()} for row, of in report.details["goals"].items()
    }
    return goals, report.manifest["protocol_sha256"]


def _without_seconds(result):
    return {key: value for key, value in result.items() if key != "seconds"}


def test_goals_are_what_one_world_reaches(data):
    problems = choose_problems(data, count=6, goal_actions=5, seed=0)
    assert len({problem.episode for problem in problems}) == 6
    assert any(problem.moved for problem in problems)
    assert problems == choose_problems(data, count=6, goal_actions=5, seed=0)
    assert problems != choose_problems(data, count=6, goal_actions=5, seed=1)
    for problem in problems:
        row = data.ids.index(problem.episode)
        world = PushTWorld()
        world.set_state(data.states[row, problem.time])
        for action in data.actions[row, problem.time : problem.time + 5].reshape(25, 2):
            world.step(action)
        assert problem.goal == tuple(world.state().tolist())
    with pytest.raises(ValueError, match="9 goals.*8 of 12"):
        choose_problems(data, count=9, goal_actions=5, seed=0)


def test_a_seed_belongs_to_the_problem():
    problem = Problem(episode="e", time=1, start=(0.0,) * 7, goal=(0.0,) * 7)
    assert problem.seed(0) != problem.seed(1) != replace(problem, time=2).seed(1)
    assert 0 <= problem.seed(0) < 2**62


@pytest.mark.parametrize(
    ("change", "moved"), [((0, 0, 0), False), ((21, 0, 0), True), ((15, 15, 0), True), ((0, 0, 0.36), True)]
)
def test_moved_goals_differ_in_the_block(change, moved):
    goal = (300.0, 300.0, 200.0 + change[0], 200.0 + change[1], (6.2 + change[2]) % (2 * np.pi), 0.0, 0.0)
    problem = Problem(episode="e", time=0, start=(0.0, 0.0, 200.0, 200.0, 6.2, 0.0, 0.0), goal=goal)
    assert problem.moved == moved


def test_an_attempt_that_replays_the_recording_succeeds_and_then_stops(data):
    problem = next(p for p in choose_problems(data, count=8, goal_actions=5, seed=0) if p.moved)
    row = data.ids.index(problem.episode)
    attempt = Attempt(problem, observe=lambda state: state, budget_env_steps=50)
    for action in data.actions[row, problem.time : problem.time + 5]:
        attempt.act(action)
    assert attempt.done
    outcome = attempt.outcome()
    assert outcome.success
    assert outcome.success_step is not None
    assert 1 <= outcome.success_step <= 25
    assert np.hypot(outcome.block_px, outcome.agent_px) < 20
    assert outcome.angle_deg < 20


def test_an_attempt_ends_with_its_budget():
    far = Problem(
        episode="e", time=0, start=(50.0, 50.0, 300.0, 300.0, 0, 0, 0), goal=(400.0,) * 4 + (0.0,) * 3
    )
    attempt = Attempt(far, observe=lambda state: state, budget_env_steps=7)
    attempt.act(np.full(10, 0.1))
    assert not attempt.done
    attempt.act(np.full(10, 0.1))
    assert attempt.done
    world = PushTWorld()
    world.set_state(far.start)
    for _ in range(7):
        state = world.step((0.1, 0.1))
    np.testing.assert_array_equal(attempt.observation(), state)
    outcome = attempt.outcome()
    assert not outcome.success
    assert outcome.success_step is None
    assert not outcome.success_at_end


def test_the_oracle_prices_what_really_happens(data):
    start = data.states[0, 2]
    plans = torch.from_numpy(data.actions[:5, 2:4]).double() * 0.5
    goal = np.array([250.0, 250.0, 200.0, 200.0, 1.0, 0, 0])
    source = SimulatorCost(StateCost(), true_state, None, 5)
    cost = source([History(observations=[{"state": start}])], [goal], seeds=[0])
    first = cost(plans[None])
    torch.testing.assert_close(
        cost(plans[None]), first, atol=0, rtol=0
    )  # no contacts left from the last rollout
    world, expected = PushTWorld(), []
    for plan in plans.numpy():
        world.set_state(start)
        for action in plan.reshape(-1, 2):
            state = world.step(action)
        difference = state[:5] - goal[:5]
        angle = (difference[4] + np.pi) % (2 * np.pi) - np.pi
        expected.append(np.square(difference[:4]).sum() / 400 + np.square(angle / (np.pi / 9)))
    np.testing.assert_allclose(first[0].numpy(), expected, atol=0.05, rtol=0.01)


def test_held_actions_are_repeated_for_each_environment_step(data):
    row = PlanRow(dynamics="simulator", search=SEARCH)
    whole, held = (cost_source(replace(row, held=h), {}, frame_skip=5) for h in (False, True))
    assert (whole.action_size, held.action_size) == (10, 2)
    history, goal = [History(observations=[{"state": data.states[1, 0]}])], [data.states[1, 3]]
    plans = torch.rand(1, 4, 2, 2) - 0.5
    torch.testing.assert_close(
        held(history, goal, seeds=[0])(plans), whole(history, goal, seeds=[0])(plans.repeat(1, 1, 1, 5))
    )


def test_a_model_reads_its_own_view(models, data):
    read = reader_of(models["base"])
    state = data.states[0, 0]
    seen = {"image": PushTDrawing(size=64).frame(state), "proprio": proprio(state)}
    found = read(seen)
    assert found.shape == (7,)
    np.testing.assert_allclose(found[[0, 1, 5, 6]], state[[0, 1, 5, 6]], atol=2.1)  # half of the bins


def test_the_table_has_all_rows_and_is_resumed(models, data, tmp_path):
    rows = [
        "random policy",
        "stay",
        "oracle",
        "base",
        "rlvr",
        "oracle, poses read by base",
        "base, true goal",
    ]
    arguments = {"rows": rows, "compare": ("rlvr", "base"), "folder": tmp_path, "progress": False}
    report = plan_table(models, data, CONFIG, **arguments)
    table = report.table("success")
    assert list(table.rows) == rows
    assert table.rows["base"]["n"] == 3
    assert table.rows["base"]["tokens"] == 8 * table.rows["base"]["model_steps"] > 0
    assert table.rows["oracle"]["tokens"] == 0 < table.rows["oracle"]["model_steps"]
    assert table.rows["stay"]["model_steps"] == 0
    assert "rlvr / base" in report.table("comparison").rows
    assert len(report.manifest["protocol"]["problems"]) == 3
    written = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(written) == len(rows)
    again = plan_table(models, data, CONFIG, **arguments)
    assert again.details == report.details  # seconds too: nothing was computed again
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == written
    lost = next(path for path in written if path.name.startswith("base-"))
    lost.write_text("".join(lost.read_text().splitlines(keepends=True)[:2]))  # two of three problems are gone
    third = plan_table(models, data, CONFIG, **arguments)
    assert timeless(third) == timeless(report)
    assert third.details["goals"]["rlvr"] == report.details["goals"]["rlvr"]


def test_scores_do_not_depend_on_which_other_goals_there_are(models, data):
    rows = ["oracle", "base", "random policy"]
    all_goals = plan_table(models, data, CONFIG, rows=rows, progress=False)
    one_goal = plan_table(models, data, replace(CONFIG, goals=1), rows=rows, progress=False)
    for row in rows:
        for name, result in one_goal.details["goals"][row].items():
            assert _without_seconds(result) == _without_seconds(all_goals.details["goals"][row][name])


@pytest.mark.slow
def test_scores_do_not_depend_on_the_number_of_processes(models, data):
    rows = ["oracle", "base"]
    alone, together = (
        plan_table(models, data, CONFIG, rows=rows, progress=False, processes=n) for n in (1, 2)
    )
    assert timeless(alone) == timeless(together)


def test_workers_leave_ctrl_c_to_the_first_process(models):
    before = signal.getsignal(signal.SIGINT)
    try:
        _receive(models)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
        _MODELS.clear()


def test_the_protocol_hash_names_the_goals(data):
    config = replace(CONFIG, goals=2)
    hashes = [
        plan_table({}, data, c, rows=["stay"], progress=False).manifest["protocol_sha256"]
        for c in (config, config, replace(config, goal_seed=1), replace(config, goals=3))
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_another_checkpoint_never_meets_old_numbers(data, tmp_path):
    reports = [
        plan_table({"base": tiny_model(seed=s)}, data, CONFIG, rows=["base"], folder=tmp_path, progress=False)
        for s in (0, 1)
    ]
    assert len(list(tmp_path.iterdir())) == 2
    assert reports[0].manifest["weights_sha256"] != reports[1].manifest["weights_sha256"]


def test_an_unknown_row_is_refused_with_the_known_ones(models, data):
    with pytest.raises(ValueError, match=r"no row 'orakel'.*oracle, larger search"):
        plan_table(models, data, CONFIG, rows=["orakel"], progress=False)
    assert {"oracle", "base", "base, DINOv2", "oracle, poses read by rlvr"} <= set(row_names(list(models)))


def test_image_costs_plan_in_a_world_model(models, data):
    config = replace(CONFIG, goals=1, budget_env_steps=5, horizon_steps=1)
    report = plan_table(models, data, config, rows=["base, pixels"], progress=False)
    assert report.table("success").rows["base, pixels"]["model_steps"] == 12
    with pytest.raises(ValueError, match="must be 'state', not 'pixels'"):
        cost_source(PlanRow(dynamics="simulator", cost="pixels"), {}, frame_skip=5)


def test_the_oracle_beats_chance(data):
    search = replace(SEARCH, num_samples=32, num_elites=5, iterations=4, keep_elites=2)
    config = PlanConfig(goals=5, budget_env_steps=25, search=search)
    report = plan_table({}, data, config, rows=["oracle", "random policy"], progress=False)
    rates = {row: cells["success"].value for row, cells in report.table("success").rows.items()}
    assert rates["oracle"] >= 0.6 > 0.2 >= rates["random policy"]
    for problem, result in report.details["goals"]["oracle"].items():
        assert result["success"] == (result["success_step"] is not None), problem


def test_bundled_goals_are_enough_for_the_published_evaluation(data, tmp_path):
    goals = GoalSet.load()
    assert len(goals.problems) >= 50
    assert goals.source["split"] == "test"
    assert 20 <= sum(problem.moved for problem in goals.problems[:50]) < 50
    own = GoalSet.choose(data, count=4, goal_actions=5, seed=0)
    own.save(tmp_path / "goals.json")
    assert GoalSet.load(tmp_path / "goals.json") == own
    with pytest.raises(ValueError, match=r"5 goals.*has 4"):
        own.first(5)


def test_goals_apart_from_their_data_give_the_same_table(data, tmp_path):
    own = GoalSet.choose(data, count=3, goal_actions=5, seed=0)
    own.save(tmp_path / "goals.json")
    rows = {"rows": ["stay", "random policy"], "progress": False}
    assert timeless(plan_table({}, GoalSet.load(tmp_path / "goals.json"), CONFIG, **rows)) == timeless(
        plan_table({}, data, CONFIG, **rows)
    )
