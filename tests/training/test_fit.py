"""The supervised loop: it learns, resumes exactly, and names a loss that is not finite."""

import numpy as np
import pytest
import torch
from torch import nn

from training.fit import FitConfig, fit, learning_rate, seeded
from training.run import Run

CONFIG = FitConfig(
    steps=40, learning_rate=0.05, warmup_steps=5, log_every=5, evaluate_every=20, checkpoint_every=10
)


def model():
    return seeded(lambda: nn.Linear(3, 1), 0)


def loss_of(module, stop_at=None):
    def loss(step, generator):
        if step == stop_at:
            raise RuntimeError("stop here")
        x = torch.from_numpy(generator.normal(size=(16, 3))).float()
        return (module(x) - x.sum(1, keepdim=True)).square().mean(), {"half": 0.5}

    return loss


def test_learns_and_logs(tmp_path):
    module, run = model(), Run(tmp_path / "run", CONFIG, 0)
    fit(
        run, module, loss_of(module), CONFIG, seed=0, evaluate=lambda: {"weight": float(module.weight.mean())}
    )
    logged = [line for line in run.metrics() if "loss" in line]
    assert logged[-1]["loss"] < 0.1 * logged[0]["loss"]
    assert logged[-1]["half"] == 0.5
    assert [line["step"] for line in run.metrics() if "validation/weight" in line] == [19, 39]


def test_resume_equals_an_uninterrupted_run(tmp_path):
    whole, run = model(), Run(tmp_path / "a", CONFIG, 0)
    fit(run, whole, loss_of(whole), CONFIG, seed=0)
    broken, run = model(), Run(tmp_path / "b", CONFIG, 0)
    with pytest.raises(RuntimeError, match="stop here"):
        fit(run, broken, loss_of(broken, stop_at=27), CONFIG, seed=0)
    resumed, run = model(), Run(tmp_path / "b", CONFIG, 0, resume=True)
    fit(run, resumed, loss_of(resumed), CONFIG, seed=0)
    assert torch.equal(whole.weight, resumed.weight)
    assert torch.equal(whole.bias, resumed.bias)


def test_a_loss_that_is_not_finite_names_the_step(tmp_path):
    module = model()
    with pytest.raises(FloatingPointError, match="at step 3"):
        fit(
            Run(tmp_path / "run", CONFIG, 0),
            module,
            lambda step, _: (module.weight.sum() * (np.nan if step == 3 else 1.0), {}),
            CONFIG,
            seed=0,
        )


def test_the_learning_rate_warms_up_holds_and_falls():
    rates = [learning_rate(step, CONFIG) for step in range(40)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[10] == rates[19] == 0.05
    assert rates[39] < 0.01
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_seeded_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    assert torch.equal(model().weight, model().weight)
    assert torch.equal(torch.random.get_rng_state(), before)
