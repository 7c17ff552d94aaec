"""CEM: golden data of DINO-WM's planner, and the properties that the published code does not have."""

import dataclasses
import time

import numpy as np
import pytest
import torch

from planners import CEM, CEMConfig
from planners.cem import reference_config

SPACE = {"horizon_steps": 5, "action_size": 2}
CASES = (
    "quadratic",
    "quadratic_var3",
    "rosenbrock",
    "rastrigin",
    "integrator_last",
    "integrator_alpha0",
    "integrator_all",
    "warm_start",
    "topk_all",
)


def golden_cost(case, data):
    """The cost functions that the golden data's README describes, in the dtype of the candidates."""
    names = [k for k in ("param_c", "param_w", "param_alpha", "z0", "zg") if f"{case}/{k}" in data]
    tensor = {k: torch.as_tensor(data[f"{case}/{k}"]) for k in names}

    def flat(actions):
        return actions.flatten(2), {k: v.to(actions.dtype) for k, v in tensor.items()}

    def quadratic(actions):
        x, t = flat(actions)
        return (t["param_w"] * (x - t["param_c"]) ** 2).sum(-1)

    def rosenbrock(actions):
        x, _ = flat(actions)
        return (100 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1 - x[..., :-1]) ** 2).sum(-1)

    def rastrigin(actions):
        x, t = flat(actions)
        d = x - t["param_c"]
        return (d**2 - 3 * torch.cos(2 * torch.pi * d) + 3).sum(-1)

    def integrator(actions):
        _, t = flat(actions)
        z0, goal = t["z0"][:, None], t["zg"][:, None]  # (P, 1, 1, A)
        z = torch.cat([z0.expand(-1, actions.shape[1], -1, -1), z0 + 0.3 * actions.cumsum(2)], dim=2)
        frames = ((z - goal) ** 2).mean(-1) + t["param_alpha"] * ((z.tanh() - goal.tanh()) ** 2).mean(-1)
        if case != "integrator_all":
            return frames[:, :, -1]
        weights = 2.0 ** torch.arange(frames.shape[2])  # float32 whatever the actions are
        return (frames * (weights / weights.sum())).mean(-1)

    functions = {"rosenbrock": rosenbrock, "rastrigin": rastrigin}
    return functions.get(case, integrator if case.startswith("integrator") else quadratic)


def golden_run(case, data, dtype, iterations):
    *_, samples, elites, _, sigma = data[f"{case}/config"]
    config = reference_config(
        num_samples=int(samples), num_elites=int(elites), iterations=iterations, sigma=float(sigma)
    )
    noise = torch.as_tensor(data[f"{case}/noise"]).to(dtype)
    seen = []

    def cost(candidates):
        costs = golden_cost(case, data)(candidates)
        seen.append(costs)
        return costs

    init = data.get(f"{case}/init")
    plan = CEM(config, dtype=dtype).plan(
        cost,
        seeds=[0] * noise.shape[1],
        noise=lambda i: noise[i],
        initial=None if init is None else torch.as_tensor(init).to(dtype),
        **SPACE,
    )
    return plan, seen


@pytest.mark.parametrize("case", CASES)
def test_golden_every_iteration(case, conformance):
    data = dict(np.load(conformance("planning/cem.npz"), allow_pickle=False))
    total = int(data[f"{case}/config"][5])
    for done in range(1, total + 1):
        plan, seen = golden_run(case, data, torch.float64, done)
        np.testing.assert_allclose(plan.mean, data[f"{case}/mu"][done - 1], rtol=0, atol=1e-9)
        np.testing.assert_allclose(plan.sigma, data[f"{case}/sigma"][done - 1], rtol=0, atol=1e-9)
    np.testing.assert_allclose(plan.actions, data[f"{case}/final"], rtol=0, atol=1e-9)
    assert len(seen) == total + 1  # the last call prices the mean itself
    torch.testing.assert_close(plan.cost, seen[-1][:, 0], rtol=0, atol=0)
    for i, costs in enumerate(seen[:-1]):
        order = costs.argsort(dim=1, stable=True)[:, : data[f"{case}/elite_idx"].shape[2]]
        np.testing.assert_array_equal(order, data[f"{case}/elite_idx"][i])
        np.testing.assert_allclose(costs.min(1).values, data[f"{case}/best_loss"][i], rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        [c.min(1).values.mean() for c in seen[:-1]], data[f"{case}/mean_best_loss"], rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("case", CASES)
def test_golden_float32(case, conformance):
    data = dict(np.load(conformance("planning/cem.npz"), allow_pickle=False))
    plan, _ = golden_run(case, data, torch.float32, int(data[f"{case}/config"][5]))
    tolerance = 1e-3 if case == "rosenbrock" else 2e-6
    np.testing.assert_allclose(plan.mean, data[f"{case}/mu_f32"][-1], rtol=0, atol=tolerance)
    np.testing.assert_allclose(plan.sigma, data[f"{case}/sigma_f32"][-1], rtol=0, atol=tolerance)


def bumpy(centres):
    """A cost with many local optima around one centre per problem."""

    def cost(candidates):
        d = candidates.flatten(2) - centres[:, None]
        return (d**2 - 3 * torch.cos(2 * torch.pi * d) + 3).sum(-1)

    return cost


CENTRES = torch.randn(5, 10, generator=torch.Generator().manual_seed(3))
SMALL = CEMConfig(num_samples=64, num_elites=8, iterations=6)


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        dataclasses.replace(SMALL, execute="mean"),
        dataclasses.replace(
            SMALL, restarts=3, keep_elites=4, sigma_floor=0.05, action_low=-1.0, action_high=0.8
        ),
    ],
)
def test_a_plan_does_not_depend_on_the_batch(config):
    seeds = [11, 12, 13, 14, 15]
    together = CEM(config).plan(bumpy(CENTRES), seeds=seeds, **SPACE)
    for order in ([2], [4, 0, 1]):
        some = CEM(config).plan(bumpy(CENTRES[order]), seeds=[seeds[i] for i in order], **SPACE)
        for field in dataclasses.fields(some):
            assert torch.equal(getattr(some, field.name), getattr(together, field.name)[order]), field.name
    other = CEM(config).plan(bumpy(CENTRES), seeds=[s + 1 for s in seeds], **SPACE)
    assert not torch.equal(other.actions, together.actions)


def test_noise_is_standard_normal_and_fresh():
    seen = []

    def cost(candidates):
        seen.append(candidates)
        return torch.zeros(candidates.shape[:2])

    CEM(CEMConfig(num_samples=2000, num_elites=2000, iterations=2)).plan(cost, seeds=[1, 2], **SPACE)
    draws = seen[0][:, 1:]
    assert abs(draws.mean()) < 0.02
    assert abs(draws.std() - 1) < 0.02
    first, second = draws[0].flatten(), draws[1].flatten()
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.03
    assert abs(torch.corrcoef(torch.stack([first, seen[1][0, 1:].flatten()]))[0, 1]) < 0.03


def test_cost_is_that_of_the_actions():
    for execute in ("best", "mean"):
        config = dataclasses.replace(SMALL, execute=execute, restarts=2)
        plan = CEM(config).plan(bumpy(CENTRES), seeds=range(5), **SPACE)
        torch.testing.assert_close(bumpy(CENTRES)(plan.actions[:, None])[:, 0], plan.cost)


def test_best_sample_is_the_lowest_cost_ever_seen():
    lowest = torch.full((5,), torch.inf)

    def cost(candidates):
        costs = bumpy(CENTRES)(candidates)
        lowest.copy_(torch.minimum(lowest, costs.min(1).values))
        return costs

    plan = CEM(SMALL).plan(cost, seeds=range(5), **SPACE)
    assert torch.equal(plan.cost, lowest)


def test_restarts_are_folded_into_the_batch_and_help():
    shapes = []

    def cost(candidates):
        shapes.append(tuple(candidates.shape))
        return bumpy(CENTRES)(candidates)

    one = CEM(SMALL).plan(cost, seeds=range(5), **SPACE)
    four = CEM(dataclasses.replace(SMALL, restarts=4)).plan(cost, seeds=range(5), **SPACE)
    assert shapes == [(5, 64, 5, 2)] * 6 + [(5, 256, 5, 2)] * 6
    assert (four.cost <= one.cost).all()  # restart 0 is the search without restarts
    assert four.cost.sum() < one.cost.sum()


def test_kept_elites_never_get_worse_and_cost_no_evaluation():
    """With kept elites the best sample of an iteration is the best so far, so the elites' costs only fall."""
    calls = []

    def cost(candidates):
        calls.append(candidates.shape[1])
        return bumpy(CENTRES)(candidates)

    config = dataclasses.replace(SMALL, keep_elites=8, sigma_floor=0.5, execute="mean")
    kept = CEM(config).plan(cost, seeds=range(5), **SPACE)
    assert calls == [64] * 6 + [1]
    fresh = CEM(dataclasses.replace(config, keep_elites=0)).plan(bumpy(CENTRES), seeds=range(5), **SPACE)
    assert kept.cost.mean() < fresh.cost.mean()


def test_sigma_floor_and_bounds():
    config = dataclasses.replace(
        SMALL, iterations=20, sigma_floor=0.1, action_low=(-0.5, -0.2), action_high=0.3, restarts=2
    )
    initial = torch.full((5, 5, 2), 4.0)

    def cost(candidates):
        assert (candidates >= torch.tensor([-0.5, -0.2])).all()
        assert (candidates <= 0.3).all()
        return bumpy(CENTRES)(candidates)

    for execute in ("best", "mean"):
        plan = CEM(dataclasses.replace(config, execute=execute)).plan(
            cost, seeds=range(5), initial=initial, **SPACE
        )
        assert (plan.sigma >= 0.1).all()
        assert (plan.actions <= 0.3).all()


def test_one_elite_gives_no_nan_and_keeps_sigma():
    plan = CEM(dataclasses.replace(SMALL, num_elites=1)).plan(bumpy(CENTRES), seeds=range(5), **SPACE)
    assert torch.equal(plan.sigma, torch.ones(5, 5, 2))
    start = bumpy(CENTRES)(torch.zeros(5, 1, 5, 2))[:, 0]
    assert (plan.cost < start).all()


def test_equal_costs_take_the_first_samples():
    """All costs equal: the elites are samples 0..K-1, of which sample 0 is the mean."""
    noise = torch.randn(1, 1, 8, 5, 2, generator=torch.Generator().manual_seed(0))
    plan = CEM(CEMConfig(num_samples=8, num_elites=3, iterations=1, execute="mean")).plan(
        lambda c: torch.zeros(c.shape[:2]), seeds=[0], noise=lambda i: noise[i], **SPACE
    )
    torch.testing.assert_close(plan.mean[0], noise[0, 0, 1:3].sum(0) / 3)


def test_nan_costs_are_worst_and_inputs_stay_untouched():
    initial = torch.full((5, 5, 2), 0.5)
    noise = torch.randn(6, 5, 64, 5, 2, generator=torch.Generator().manual_seed(0))
    before = noise.clone()

    def cost(candidates):
        costs = bumpy(CENTRES)(candidates)
        return torch.where(candidates[..., 0, 0] > 0.5, torch.nan, costs)

    plan = CEM(SMALL).plan(cost, seeds=range(5), initial=initial, noise=lambda i: noise[i], **SPACE)
    assert (plan.actions[:, 0, 0] <= 0.5).all()
    assert torch.equal(initial, torch.full((5, 5, 2), 0.5))
    assert torch.equal(noise, before)


def test_errors_say_what_is_wrong():
    plan = CEM(SMALL).plan
    with pytest.raises(ValueError, match=r"no finite cost for problem\(s\) \[1\]"):
        plan(lambda c: torch.tensor([[0.0], [torch.nan]]).expand(c.shape[:2]), seeds=[1, 2], **SPACE)
    with pytest.raises(ValueError, match=r"returned shape \(64,\); expected .* \(1, 64\)"):
        plan(lambda c: torch.zeros(c.shape[1]), seeds=[1], **SPACE)
    with pytest.raises(ValueError, match=r"initial actions have shape \(1, 6, 2\)"):
        plan(bumpy(CENTRES), seeds=[1], initial=torch.zeros(1, 6, 2), **SPACE)
    with pytest.raises(ValueError, match="NaN"):
        plan(bumpy(CENTRES), seeds=[1], initial=torch.full((1, 5, 2), torch.nan), **SPACE)
    with pytest.raises(ValueError, match="seeds is empty"):
        plan(bumpy(CENTRES), seeds=[], **SPACE)
    with pytest.raises(ValueError, match="3 action bounds for actions of 2 numbers"):
        CEM(CEMConfig(action_low=(0.0, 0.0, 0.0))).plan(bumpy(CENTRES), seeds=[1], **SPACE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_elites": 65, "num_samples": 64}, "num_elites must be in 0..num_samples = 0..64, got 65"),
        ({"keep_elites": 31}, "keep_elites must be in 0..num_elites = 0..30, got 31"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"sigma": float("nan")}, "sigma must be positive, got nan"),
        ({"sigma_floor": -1.0}, "sigma_floor must be at least 0"),
        ({"execute": "median"}, "execute must be 'best' or 'mean', got 'median'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        CEMConfig(**settings)


def toy_mlp():
    """The network that the peers were timed with: 26 -> 64 -> 64 -> 16, GELU."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(i, o, generator=generator) / i**0.5 for i, o in ((26, 64), (64, 64), (64, 16))]

    def step(z, a):
        x = torch.cat([z, a], dim=-1)
        for weight in weights[:-1]:
            x = torch.nn.functional.gelu(x @ weight)
        return x @ weights[-1]

    def cost(candidates):
        z = torch.zeros(*candidates.shape[:2], 16)
        for t in range(candidates.shape[2]):
            z = step(z, candidates[:, :, t])
        return (z - 1).square().mean(-1)

    return cost


def cpu_seconds(function, repeats=3):
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


@torch.no_grad()
def test_bookkeeping_is_cheap_beside_a_small_model():
    """Peers need 0.03-0.04 CPU seconds for one problem of this size, most of it in the network."""
    model, candidates = toy_mlp(), torch.zeros(1, 300, 5, 10)
    space = {"horizon_steps": 5, "action_size": 10, "seeds": [0]}
    alone = cpu_seconds(lambda: [model(candidates) for _ in range(30)])
    planned = cpu_seconds(lambda: CEM().plan(model, **space))
    assert planned < 3 * alone  # measured: 1.6


def test_many_problems_cost_much_less_than_many_times_one():
    planner = CEM(CEMConfig(num_samples=32, num_elites=8))

    def plan(problems):
        return planner.plan(lambda c: c.square().sum((2, 3)), seeds=range(problems), **SPACE)

    assert cpu_seconds(lambda: plan(40)) < 13 * cpu_seconds(lambda: plan(1))  # measured: 3 to 5
