"""MPC: golden data of DINO-WM's loop, replanning, budgets, and the policy that wraps it."""

import numpy as np
import pytest
import torch

from planners import CEM, MPC, CEMConfig, ImaginedCost, MPCConfig, MPCPolicy
from planners.cem import reference_config
from tests.planners.toy import GAIN, ToyWorldModel, observe, position_cost
from worldmodels.api import History


class PlantModel:
    """The golden data's model as a cost source: position += sum of the raw actions."""

    history_length = 1
    action_size = 4

    def __init__(self, mean, std):
        self.mean, self.std = torch.as_tensor(mean), torch.as_tensor(std)

    def __call__(self, histories, goals, *, seeds):
        now = torch.as_tensor(np.stack([h.observations[-1] for h in histories]))[:, None]
        goal = torch.as_tensor(np.stack(goals))[:, None]

        def cost(candidates):
            raw = candidates.unflatten(-1, (2, 2)) * self.std + self.mean
            squares = ((now + raw.sum((2, 3)) - goal) ** 2).sum(-1)
            return squares / 3 + squares / 2  # "visual" is the position and a zero, "proprio" the position

        return cost


class RecordedPlanner:
    """CEM with the recorded noise.

    The reference still searches for finished problems, so their noise is skipped here. It also stops a search
    when the true environment succeeds; the recording says after how many iterations.
    """

    def __init__(self, noise, inner_iterations, active, **sizes):
        self.noise, self.inner, self.active, self.sizes = noise, list(inner_iterations), active, sizes

    def plan(self, cost, *, horizon_steps, action_size, seeds, initial=None):
        iterations = int(self.inner.pop(0))
        used, self.noise = np.split(self.noise, [4 * iterations])
        noise = torch.as_tensor(used).double().unflatten(0, (iterations, 4))[:, self.active]
        config = reference_config(iterations=iterations, **self.sizes)
        return CEM(config, dtype=torch.float64).plan(
            cost,
            horizon_steps=horizon_steps,
            action_size=action_size,
            seeds=seeds,
            initial=initial,
            noise=lambda i: noise[i],
        )


@pytest.mark.parametrize("case", ["h5_take5", "h5_take2", "h5_take1_noeval"])
def test_golden_loop(case, conformance):
    archive = np.load(conformance("planning/mpc.npz"), allow_pickle=False)
    data = {k.split("/")[1]: archive[k] for k in archive.files if k.startswith(case + "/")}
    horizon, topk, samples, _, take, outer, _ = data["config"]
    positions, success_at = data["state_0"].astype(np.float64).copy(), np.full(4, np.inf)
    trajectory = [[p.copy()] for p in positions]
    active = [0, 1, 2, 3]
    executed = 0

    def act(problems, actions):
        """Two environment steps; success counts only at the end of an outer iteration."""
        nonlocal executed
        executed += 1
        for problem, action in zip(problems, actions, strict=True):
            for raw in action.reshape(2, 2) * data["action_std"] + data["action_mean"]:
                positions[problem] = positions[problem] + raw * data["dist"]
                trajectory[problem].append(positions[problem].copy())
        near = np.linalg.norm(positions - data["state_g"], axis=1) < data["success_radius"]
        done = [bool(near[p]) and executed % take == 0 for p in problems]
        for problem, stop in zip(problems, done, strict=True):
            if stop:
                success_at[problem] = executed
                active.remove(problem)
        return [positions[p].copy() for p in problems], done

    planner = RecordedPlanner(
        data["noise"], data["inner_iters"], active, num_samples=int(samples), num_elites=int(topk)
    )
    mpc = MPC(
        planner=planner,
        cost_source=PlantModel(data["action_mean"], data["action_std"]),
        config=MPCConfig(
            horizon_steps=int(horizon),
            replan_every=int(take),
            shrink_horizon=False,
            env_steps_per_action=2,
            budget_env_steps=int(2 * take * outer),
        ),
    )
    result = mpc.run(list(positions.copy()), list(data["state_g"]), act, seeds=[0] * 4)

    np.testing.assert_array_equal(result.done, data["final_success"])
    np.testing.assert_array_equal(success_at, data["action_len"])
    distance = np.linalg.norm(positions - data["state_g"], axis=1)
    np.testing.assert_allclose(distance, data["final_state_dist"], rtol=0, atol=1e-8)
    idle = np.tile(
        -data["action_mean"] / data["action_std"], 2
    )  # what the reference appends for finished problems
    for problem in range(4):
        planned, states = data["planned_actions"][problem], data["env_states"][problem]
        length = int(result.num_actions[problem])
        np.testing.assert_allclose(result.actions[problem], planned[:length], rtol=0, atol=1e-8)
        np.testing.assert_allclose(
            planned[length:], np.broadcast_to(idle, planned[length:].shape), atol=1e-12
        )
        np.testing.assert_allclose(trajectory[problem], states[: 2 * length + 1], rtol=0, atol=1e-8)
        np.testing.assert_allclose(
            states[2 * length :], np.tile(positions[problem], (len(states[2 * length :]), 1))
        )


STARTS = np.array([[0.0, 0.0], [1.0, -1.0], [-0.5, 0.8]])
GOALS = np.array([[1.2, -0.6], [0.0, 0.5], [0.4, 0.9]])


class Plant:
    """The toy world model's own dynamics as true environments that end near their goal."""

    def __init__(self, radius=0.05, gain=GAIN):
        self.positions, self.radius, self.gain = STARTS.copy(), radius, gain
        self.calls = []

    def act(self, problems, actions):
        self.calls.append((list(problems), np.array(actions)))
        for problem, action in zip(problems, actions, strict=True):
            self.positions[problem] += self.gain * action
        near = np.linalg.norm(self.positions - GOALS, axis=1) < self.radius
        return [observe(self.positions[p]) for p in problems], [bool(near[p]) for p in problems]


class Horizons:
    """A planner that notes what it was asked for."""

    def __init__(self, planner):
        self.planner, self.asked = planner, []

    def plan(self, cost, *, horizon_steps, action_size, seeds, initial=None):
        self.asked.append((horizon_steps, None if initial is None else initial.clone()))
        plan = self.planner.plan(
            cost, horizon_steps=horizon_steps, action_size=action_size, seeds=seeds, initial=initial
        )
        self.last = plan
        return plan


def make(config, *, planner=None, model=None):
    planner = planner or CEM(CEMConfig(num_samples=64, num_elites=8, iterations=6))
    source = ImaginedCost(world_model=model or ToyWorldModel(), goal_cost=position_cost)
    return MPC(planner=planner, cost_source=source, config=config)


def run(mpc, plant, rows=(0, 1, 2), seeds=(5, 6, 7)):
    return mpc.run([observe(p) for p in STARTS[list(rows)]], GOALS[list(rows)], plant.act, seeds=seeds)


@pytest.mark.parametrize(
    ("settings", "horizons"),
    [
        ({}, [5, 4, 3, 2, 1, 5, 4, 3, 2, 1]),
        ({"replan_every": 2}, [5, 3, 1, 5, 3, 1]),
        ({"replan_every": 5}, [5, 5]),
        ({"shrink_horizon": False}, [5] * 10),
        (
            {"budget_env_steps": 39},
            [5, 4, 3, 2, 1, 2, 1],
        ),  # 7 actions: the second plan must arrive in time, too
        ({"budget_env_steps": 39, "shrink_horizon": False, "replan_every": 4}, [5, 5]),
    ],
)
def test_horizons_and_budget(settings, horizons):
    planner = Horizons(CEM(CEMConfig(num_samples=16, num_elites=4, iterations=2)))
    plant = Plant(radius=0.0)  # nobody ever finishes
    config = MPCConfig(**settings)
    result = run(make(config, planner=planner), plant)
    assert [h for h, _ in planner.asked] == horizons
    budget = config.budget_env_steps // 5
    assert result.num_actions.tolist() == [budget] * 3
    assert len(plant.calls) == budget
    assert not result.done.any()
    assert [len(costs) for costs in result.planned_costs] == [len(horizons)] * 3


def test_warm_start_is_the_untaken_tail():
    planner = Horizons(CEM(CEMConfig(num_samples=16, num_elites=4, iterations=2)))
    plans = []
    inner = planner.planner

    class Recorder:
        def plan(self, cost, **problem):
            plans.append(inner.plan(cost, **problem))
            return plans[-1]

    planner.planner = Recorder()
    run(make(MPCConfig(replan_every=2), planner=planner), Plant(radius=0.0))
    initials = [initial for _, initial in planner.asked]
    assert initials[0] is None
    assert torch.equal(initials[1], plans[0].actions[:, 2:])
    assert torch.equal(initials[2], plans[1].actions[:, 2:])
    assert initials[3].shape == (3, 0, 2)  # a new cycle starts from nothing
    planner.asked.clear()
    run(make(MPCConfig(replan_every=2, warm_start=False), planner=planner), Plant(radius=0.0))
    assert all(initial is None for _, initial in planner.asked)


def test_reaches_goals_with_a_wrong_model_by_looking_again():
    plant = Plant(gain=0.9 * GAIN)
    result = run(make(MPCConfig(budget_env_steps=100)), plant)
    assert result.done.all()
    blind = run(make(MPCConfig(budget_env_steps=25, replan_every=5)), Plant(gain=0.9 * GAIN))
    assert not blind.done.any()


def test_finished_problems_leave_and_change_nothing_for_others():
    config = MPCConfig(budget_env_steps=80)
    together = run(make(config), Plant(gain=0.8 * GAIN))
    assert len(set(together.num_actions.tolist())) > 1  # otherwise nobody left early
    for row, seed in enumerate((5, 6, 7)):
        lone = Plant(gain=0.8 * GAIN)
        result = make(config).run(
            [observe(STARTS[row])],
            GOALS[row : row + 1],
            lambda _, actions, row=row, lone=lone: lone.act([row], actions),
            seeds=[seed],
        )
        np.testing.assert_array_equal(result.actions[0], together.actions[row])
        assert result.planned_costs[0] == together.planned_costs[row]


def test_history_is_what_was_seen_and_done():
    seen = []

    class Source:
        history_length = 3
        action_size = 2

        def __call__(self, histories, goals, *, seeds):
            seen.append(histories[0])
            return lambda candidates: candidates.square().sum((2, 3))

    mpc = MPC(
        planner=CEM(CEMConfig(num_samples=8, num_elites=2, iterations=1)),
        cost_source=Source(),
        config=MPCConfig(budget_env_steps=25),
    )
    plant = Plant(radius=0.0)
    result = mpc.run([observe(STARTS[0])], GOALS[:1], plant.act, seeds=[0])
    assert [len(h.observations) for h in seen] == [1, 2, 3, 3, 3]
    assert [len(h.actions) for h in seen] == [0, 1, 2, 2, 2]
    np.testing.assert_array_equal(seen[-1].actions, result.actions[0][2:4])
    moved = np.diff([o["proprio"] for o in seen[-1].observations], axis=0)
    np.testing.assert_allclose(moved, GAIN * result.actions[0][2:4], atol=1e-6)


def test_bad_settings_and_callbacks():
    with pytest.raises(ValueError, match="replan_every must be at most horizon_steps = 5, got 6"):
        MPCConfig(replan_every=6)
    with pytest.raises(ValueError, match="budget_env_steps must allow one action of 5"):
        MPCConfig(budget_env_steps=4)
    with pytest.raises(ValueError, match="horizon_steps must be at least 1, got 0"):
        MPCConfig(horizon_steps=0)
    mpc = make(MPCConfig())
    with pytest.raises(
        ValueError, match="one observation, goal and seed per problem are needed, got 3, 3 and 2"
    ):
        run(mpc, Plant(), seeds=(1, 2))
    with pytest.raises(ValueError, match="act got 3 problems and returned 1 observations and 1 done"):
        mpc.run(
            [observe(p) for p in STARTS], GOALS, lambda p, a: ([observe(STARTS[0])], [False]), seeds=(1, 2, 3)
        )


def drive(policy, *, steps, seed, frame_skip=1):
    policy.reset(seed=seed)
    position, actions = STARTS[0].copy(), []
    for _ in range(steps):
        action = policy.act(observe(position))
        actions.append(action)
        position += GAIN * action.reshape(2) if frame_skip == 1 else 0
    return np.stack(actions), position


def test_policy_acts_as_the_batched_loop():
    mpc = make(MPCConfig(env_steps_per_action=1, budget_env_steps=10, replan_every=2))
    result = mpc.run([observe(STARTS[0])], GOALS[:1], Plant(radius=0.0).act, seeds=[3])
    policy = MPCPolicy(mpc, GOALS[0], action_shape=(2,))
    actions, position = drive(policy, steps=10, seed=3)
    np.testing.assert_array_equal(actions, result.actions[0])
    assert actions.dtype == np.float32
    assert np.linalg.norm(position - GOALS[0]) < 0.05
    again, _ = drive(policy, steps=10, seed=3)
    np.testing.assert_array_equal(again, actions)
    other, _ = drive(policy, steps=10, seed=4)
    assert not np.array_equal(other, actions)


def test_policy_splits_an_action_into_environment_steps():
    mpc = make(MPCConfig(env_steps_per_action=2), model=ToyWorldModel(action_shape=(2, 1)))
    policy = MPCPolicy(mpc, GOALS[0], action_shape=(1,))
    policy.reset(seed=0)
    parts = [policy.act(observe(STARTS[0])) for _ in range(4)]
    assert [p.shape for p in parts] == [(1,)] * 4
    plan = mpc.plan([History(observations=(observe(STARTS[0]),))], GOALS[:1], seeds=[0])
    np.testing.assert_array_equal(np.concatenate(parts[:2]), plan.actions[0, 0].numpy())
    with pytest.raises(ValueError, match="2 numbers, which are not 2 environment actions"):
        MPCPolicy(mpc, GOALS[0], action_shape=(2,))
