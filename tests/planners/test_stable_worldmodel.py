"""stable-worldmodel's contract, and its real CEM solver on our world model where the package is installed."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

import worldmodels
from planners import ImaginedCost, StableWorldModelCost, StateCost, imagine
from tests.planners.toy import GAIN, ToyWorldModel, observe, position_cost, start_histories

STARTS = np.array([[0.0, 0.0], [1.0, -1.0]])
GOALS = np.array([[1.2, -0.6], [0.0, 0.5]], dtype=np.float32)


def infos():
    """What stable-worldmodel's World hands to a policy: (environments, 1 time step, ...)."""
    now = observe(STARTS)
    return {
        "pixels": torch.from_numpy(now["image"])[:, None],
        "proprio": torch.from_numpy(now["proprio"])[:, None],
        "goal_state": torch.from_numpy(GOALS)[:, None],
    }


def make(model=None):
    cost = ImaginedCost(world_model=model or ToyWorldModel(), goal_cost=position_cost)
    return StableWorldModelCost(cost=cost, goal_keys="goal_state")


def expanded(samples):
    return {k: v[:, None].expand(-1, samples, *v.shape[1:]) for k, v in infos().items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_get_cost_is_the_imagined_cost(dtype):
    model = ToyWorldModel()
    candidates = torch.randn(2, 9, 4, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = candidates.clone()
    costs = make(model).get_cost(expanded(9), candidates)
    state = model.start(start_histories(STARTS), seeds=[0, 0])
    assert torch.equal(costs, imagine(model, state, candidates, position_cost, GOALS))
    assert costs.shape == (2, 9)
    assert costs.dtype == dtype
    assert torch.equal(candidates, before)


def test_dict_goals_and_action_blocks():
    seen = []

    def goal_cost(predictions, goals):
        seen.extend(goals)
        return torch.zeros(len(predictions))

    cost = ImaginedCost(world_model=ToyWorldModel(action_shape=(2, 1)), goal_cost=goal_cost)
    info = expanded(3) | {"goal": expanded(3)["pixels"], "goal_proprio": expanded(3)["proprio"].numpy()}
    StableWorldModelCost(cost=cost).get_cost(info, torch.zeros(2, 3, 4, 2))
    assert [g["image"].shape for g in seen] == [(32, 32, 3)] * 2
    np.testing.assert_array_equal([g["proprio"] for g in seen], STARTS.astype(np.float32))


def test_missing_keys_are_named():
    info = expanded(3)
    del info["proprio"]
    with pytest.raises(ValueError, match=r"no 'proprio', only \['goal_state', 'pixels'\]"):
        make().get_cost(info, torch.zeros(2, 3, 4, 2))


@pytest.mark.parametrize("solver_name", ["CEMSolver", "ICEMSolver", "MPPISolver"])
def test_its_solvers_plan_in_our_world_model(solver_name):
    try:
        from stable_worldmodel import solver as solvers
    except ImportError as error:
        pytest.skip(f"stable-worldmodel is not installed: {error}")
    options = {"temperature": 0.05, "var_scale": 0.3} if solver_name == "MPPISolver" else {}
    solver = getattr(solvers, solver_name)(
        make(), batch_size=2, num_samples=64, n_steps=10, topk=8, **options
    )
    space = gym.spaces.Box(-3, 3, (2, 1), dtype=np.float32)
    config = SimpleNamespace(horizon=4, action_block=2)
    solver.configure(action_space=space, n_envs=2, config=config)
    actions = solver.solve(infos())["actions"]
    assert actions.shape == (2, 4, 2)
    ends = STARTS + GAIN * actions.sum(1).numpy()
    assert np.linalg.norm(ends - GOALS, axis=1).max() < 0.15


def test_its_cem_plans_in_the_bundled_world_model():
    try:
        from stable_worldmodel.solver import CEMSolver
    except ImportError as error:
        pytest.skip(f"stable-worldmodel is not installed: {error}")
    sims = [gym.make("rlvr_envs:RLVRWorld/PushT-Sim-v0") for _ in range(2)]
    seen = [sim.reset(seed=seed) for seed, sim in enumerate(sims)]
    entries = [
        {"pixels": o["image"], "proprio": o["proprio"], "goal_state": i["goal_state"]} for o, i in seen
    ]
    info = {key: torch.from_numpy(np.stack([e[key] for e in entries]))[:, None] for key in entries[0]}
    cost = StableWorldModelCost(
        cost=ImaginedCost(world_model=worldmodels.load("pusht-base"), goal_cost=StateCost()),
        goal_keys="goal_state",
    )
    solver = CEMSolver(cost, batch_size=2, num_samples=32, n_steps=3, topk=4, var_scale=0.3)
    space = gym.spaces.Box(-1, 1, (2, 2), dtype=np.float32)
    solver.configure(action_space=space, n_envs=2, config=SimpleNamespace(horizon=2, action_block=5))
    plans = solver.solve(info)["actions"]
    assert plans.shape == (2, 2, 10)
    candidates = torch.stack([plans.float(), torch.zeros(2, 2, 10)], 1)  # the plan, and staying
    planned, stayed = cost.get_cost({k: v[:, None] for k, v in info.items()}, candidates).T
    assert (planned < stayed).all()
