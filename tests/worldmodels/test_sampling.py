from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from worldmodels.sampling import derive, race, sample, uniforms


def _seeds(n: int) -> torch.Tensor:
    return torch.arange(n)


def test_known_values_never_change():
    """Recorded rollouts are replayed by these numbers: a change of the mixer must be deliberate."""
    seeds = torch.tensor([0, 1, -1, 2**63 - 1])
    assert [f"{x:.12f}" for x in uniforms(seeds, 3, 7).tolist()] == KNOWN_UNIFORMS
    assert derive(seeds, 2).tolist() == KNOWN_CHILDREN


KNOWN_UNIFORMS = ["0.150467431807", "0.029381159021", "0.894315286292", "0.727048663114"]
KNOWN_CHILDREN = [7676224910800189246, 5007391265667559223, 8573207513599408280, 5475673639975908976]


@pytest.mark.parametrize("axis", ["seed", "step", "index"])
def test_uniform_along_every_counter(axis):
    n = 20_000
    line = torch.arange(n)
    zero = torch.zeros(1, dtype=torch.int64)
    u = {
        "seed": lambda: uniforms(line, 0, 0),
        "step": lambda: uniforms(zero, line, 0),
        "index": lambda: uniforms(zero, 0, line),
    }[axis]().numpy()
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    for lag in (1, 2, 64):  # neighbours are independent
        assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 4 / np.sqrt(n)
    cells = np.histogram2d(u[:-1], u[1:], bins=16, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.ravel()).pvalue > 1e-3


def test_counters_do_not_collide():
    seeds, steps, indices = torch.arange(-8, 8), torch.arange(32), torch.arange(32)
    u = uniforms(seeds[:, None, None], steps[:, None], indices)
    assert u.shape == (16, 32, 32)
    assert len(torch.unique(u)) == u.numel()
    assert abs(float(np.corrcoef(u[:, 1:, :-1].ravel(), u[:, :-1, 1:].ravel())[0, 1])) < 0.03


def test_a_row_draws_alone_what_it_draws_in_a_batch():
    seeds = derive(_seeds(64), 3)
    together = uniforms(seeds, torch.arange(64), 5)
    alone = torch.cat([uniforms(seeds[i : i + 1], i, 5) for i in range(64)])
    assert torch.equal(together, alone)


def test_children_are_distinct_and_child_zero_is_the_parent():
    seeds = _seeds(200)
    children = derive(seeds[:, None], torch.arange(50))
    assert torch.equal(children[:, 0], seeds)
    assert len(torch.unique(children)) == children.numel()
    assert torch.equal(children[:, 7], derive(seeds, 7))
    grandchildren = derive(derive(seeds, 1), 1)
    assert not set(grandchildren.tolist()) & set(children.ravel().tolist())
    assert (children >= 0).all()
    u = uniforms(children.ravel(), 0, 0).numpy()
    assert stats.kstest(u, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("draw", [sample, race])
def test_frequencies_follow_the_distribution(draw):
    n = 20_000
    logits = torch.tensor([0.3, -1.0, -torch.inf, 2.0, 0.0])
    for temperature in (1.0, 0.5):
        tokens, logprobs = draw(logits.expand(n, -1), uniforms(_seeds(n), 0, 0), temperature=temperature)
        expected = torch.softmax(logits / temperature, -1)
        counts = np.bincount(tokens, minlength=5)
        assert counts[2] == 0
        seen = expected.numpy() > 0
        assert (
            stats.chisquare(counts[seen], n * expected.double().numpy()[seen], sum_check=False).pvalue > 1e-3
        )
        torch.testing.assert_close(logprobs, expected.log()[tokens])


def test_edges_of_the_unit_interval_give_possible_tokens():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    for u, token in ((0.0, 1), (1 - 2.0**-53, 3)):
        assert sample(logits, torch.tensor([u], dtype=torch.float64), temperature=1.0)[0].item() == token


def test_temperature_zero_is_argmax_with_the_unscaled_logprob():
    logits = torch.randn(7, 30, generator=torch.Generator().manual_seed(1))
    tokens, logprobs = sample(logits, torch.zeros(7), temperature=0.0)
    assert torch.equal(tokens, logits.argmax(-1))
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).amax(-1))


def test_top_k_and_top_p_restrict_tokens_but_not_logprobs():
    n = 4000
    logits = torch.log(torch.tensor([0.05, 0.4, 0.1, 0.25, 0.2])).expand(n, -1)
    draws = uniforms(_seeds(n), 0, 0)
    for options, allowed in (
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.5}, {1, 3}),
        ({"top_p": 0.9}, {1, 3, 4, 2}),
        ({"top_p": 1e-9}, {1}),
        ({"top_k": 3, "top_p": 0.6}, {1, 3}),
    ):
        tokens, logprobs = sample(logits, draws, temperature=1.0, **options)
        assert set(tokens.tolist()) == allowed, options
        torch.testing.assert_close(logprobs, logits[0][tokens])


def test_a_row_does_not_depend_on_its_batch():
    logits = 3 * torch.randn(512, 1000, generator=torch.Generator().manual_seed(2))
    draws = uniforms(_seeds(512), 0, 0)
    tokens, logprobs = sample(logits, draws, temperature=0.9, top_p=0.95)
    for rows in (slice(0, 1), slice(5, 6), slice(100, 217)):
        alone, alone_logprobs = sample(logits[rows], draws[rows], temperature=0.9, top_p=0.95)
        assert torch.equal(alone, tokens[rows])
        torch.testing.assert_close(alone_logprobs, logprobs[rows])


def test_nan_logits_show_in_the_logprob():
    logits = torch.zeros(2, 4)
    logits[1, 2] = torch.nan
    tokens, logprobs = sample(logits, torch.tensor([0.5, 0.5]), temperature=1.0)
    assert tokens[0] == 2
    assert torch.isnan(logprobs).tolist() == [False, True]


def test_a_race_is_the_same_alone_and_in_a_batch():
    logits = 3 * torch.randn(64, 1000, generator=torch.Generator().manual_seed(2))
    draws = uniforms(_seeds(64), 0, 0)
    tokens, logprobs = race(logits, draws, temperature=0.9, top_k=50)
    alone, alone_logprobs = race(logits[5:6], draws[5:6], temperature=0.9, top_k=50)
    assert torch.equal(alone, tokens[5:6])
    torch.testing.assert_close(alone_logprobs, logprobs[5:6])
    assert (logits.gather(1, tokens[:, None]) >= logits.topk(50).values[:, -1:]).all()
    torch.testing.assert_close(
        race(logits, draws, temperature=0.0)[1], sample(logits, draws, temperature=0.0)[1]
    )
    assert torch.isnan(race(torch.full((1, 4), torch.nan), draws[:1])[1]).all()


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
def test_alike_distributions_win_the_same_races(noise):
    n, generator = 4000, torch.Generator().manual_seed(3)
    one = torch.randn(200, generator=generator)
    other = one + noise * torch.randn(200, generator=generator)
    draws = uniforms(_seeds(n), 1, 2)
    first, second = (race(logits.expand(n, -1), draws)[0] for logits in (one, other))
    distance = float((one.softmax(-1) - other.softmax(-1)).abs().sum()) / 2
    agreed = float((first == second).float().mean())
    assert agreed > (1 - distance) / (1 + distance) - 3 * (0.25 / n) ** 0.5
    assert agreed < 1 - distance + 3 * (0.25 / n) ** 0.5  # no coupling can do better


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 1.0, "top_k": 0}, "top_k"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        sample(torch.zeros(2, 3), torch.zeros(2), **options)


def test_bad_shapes_and_types():
    with pytest.raises(ValueError, match=r"\(B, V\)"):
        sample(torch.zeros(2, 3), torch.zeros(3), temperature=1.0)
    with pytest.raises(ValueError, match="int64"):
        uniforms(torch.zeros(2), 0, 0)
    with pytest.raises(ValueError, match="int64"):
        derive(torch.zeros(2, dtype=torch.int32), 0)
