"""iCEM and MPPI: their own pieces, and the properties that they share with CEM."""

import dataclasses

import pytest
import torch

from planners import CEM, ICEM, MPPI, CEMConfig, ICEMConfig, MPPIConfig
from planners.icem import colour
from planners.mppi import soft_mean

SPACE = {"horizon_steps": 8, "action_size": 2}
CENTRES = 0.5 * torch.randn(4, 1, 8, 2, generator=torch.Generator().manual_seed(1))
PLANNERS = [
    ICEM(ICEMConfig(num_samples=64, num_elites=8, iterations=15)),
    ICEM(
        ICEMConfig(
            num_samples=64, num_elites=8, iterations=15, noise_exponent=0.0, restarts=2, execute="mean"
        )
    ),
    MPPI(MPPIConfig(num_samples=64, num_elites=8, iterations=15, sigma=0.3, temperature=0.1)),
    MPPI(
        MPPIConfig(num_samples=64, num_elites=64, iterations=15, sigma=0.3, temperature=0.1, execute="best")
    ),
]


def quadratic(centres):
    return lambda candidates: (candidates - centres).square().sum((2, 3))


@pytest.mark.parametrize("planner", PLANNERS)
def test_improves_and_does_not_depend_on_the_batch(planner):
    start = CENTRES.square().sum((1, 2, 3))
    together = planner.plan(quadratic(CENTRES), seeds=[1, 2, 3, 4], **SPACE)
    assert (together.cost < 0.5 * start).all()
    torch.testing.assert_close(together.cost, (together.actions - CENTRES[:, 0]).square().sum((1, 2)))
    some = planner.plan(quadratic(CENTRES[[3, 1]]), seeds=[4, 2], **SPACE)
    for field in dataclasses.fields(some):
        assert torch.equal(getattr(some, field.name), getattr(together, field.name)[[3, 1]]), field.name


@pytest.mark.parametrize("horizon", [2, 5, 8])
@pytest.mark.parametrize("exponent", [1.0, 2.0])
def test_coloured_noise_has_unit_variance_and_the_spectrum(horizon, exponent):
    generator = torch.Generator().manual_seed(0)
    white = torch.randn(1, 40000, horizon, 2, generator=generator, dtype=torch.float64)
    noise = colour(lambda _: white, exponent, horizon)(0)
    torch.testing.assert_close(noise.std((0, 1)), torch.ones(horizon, 2).double(), rtol=0, atol=0.02)
    power = torch.fft.rfft(noise, dim=2).abs().square().mean((0, 1, 3))
    frequencies = torch.arange(len(power)).clamp(min=1).double()
    torch.testing.assert_close(power / power[1], frequencies**-exponent, rtol=0.05, atol=0)


def test_white_noise_and_one_step_stay_as_they_are():
    white = torch.randn(1, 4, 5, 2)
    assert colour(lambda _: white, 0.0, 5)(0) is white
    assert colour(lambda _: white[:, :, :1], 2.0, 1)(0).shape == (1, 4, 1, 2)


def test_smooth_noise_finds_smooth_plans_sooner():
    target = torch.ones(4, 1, 8, 2)
    found = [
        ICEM(ICEMConfig(num_samples=64, num_elites=8, iterations=3, noise_exponent=e))
        .plan(quadratic(target), seeds=range(4), **SPACE)
        .cost.mean()
        for e in (0.0, 2.0)
    ]
    assert found[1] < 0.7 * found[0]


def test_momentum_mixes_old_and_new():
    cost, white = quadratic(CENTRES), {"noise_exponent": 0.0, "keep_elites": 0, "execute": "mean"}
    sizes = {"num_samples": 64, "num_elites": 8, "iterations": 1}
    elites = CEM(CEMConfig(**sizes, execute="mean")).plan(cost, seeds=range(4), **SPACE)
    mixed = ICEM(ICEMConfig(**sizes, **white, momentum=0.25)).plan(cost, seeds=range(4), **SPACE)
    torch.testing.assert_close(mixed.mean, 0.75 * elites.mean)  # the old mean is 0
    torch.testing.assert_close(mixed.sigma, 0.25 + 0.75 * elites.sigma)  # the old sigma is 1


def test_mppi_weights():
    elites = torch.tensor([1.0, 5.0, 7.0]).view(1, 3, 1, 1)
    costs = torch.tensor([[0.0, 0.5 * torch.log(torch.tensor(3.0)), torch.nan]])
    torch.testing.assert_close(soft_mean(elites, costs, 0.5), torch.tensor([[[(3 * 1.0 + 5.0) / 4]]]))
    huge = soft_mean(elites, torch.tensor([[1e30, 2e30, torch.inf]]), 0.5)  # no overflow
    torch.testing.assert_close(huge, torch.ones(1, 1, 1))


def test_mppi_keeps_sigma():
    plan = PLANNERS[2].plan(quadratic(CENTRES), seeds=range(4), **SPACE)
    assert torch.equal(plan.sigma, torch.full_like(plan.sigma, 0.3))


def test_bad_settings():
    with pytest.raises(ValueError, match=r"ICEMConfig.momentum must be in \[0, 1\), got 1"):
        ICEMConfig(momentum=1.0)
    with pytest.raises(ValueError, match=r"MPPIConfig.temperature must be positive, got 0"):
        MPPIConfig(temperature=0.0)
    with pytest.raises(ValueError, match=r"MPPIConfig.num_elites"):
        MPPIConfig(num_samples=10)
