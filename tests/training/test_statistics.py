import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from training.statistics import (
    Estimate,
    bootstrap_mean,
    mcnemar,
    paired_bootstrap,
    ratio_of_means,
    wilson_interval,
)


def test_wilson_equals_the_formula_and_known_values():
    estimate = wilson_interval(42, 50)
    z, n, p = 1.959963984540054, 50, 0.84
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert (estimate.low, estimate.high) == pytest.approx((centre - half, centre + half), abs=1e-9)
    assert str(estimate) == "0.84 [0.71, 0.92] n=50"
    assert wilson_interval(0, 10).high == pytest.approx(0.27753, abs=1e-5)  # 0 of 10: a standard table value


@settings(deadline=None)
@given(st.integers(1, 400), st.data(), st.floats(0.5, 0.999))
def test_wilson_stays_inside_zero_one_and_mirrors(n, data, confidence):
    successes = data.draw(st.integers(0, n))
    estimate = wilson_interval(successes, n, confidence=confidence)
    assert -1e-12 <= estimate.low <= estimate.value + 1e-12
    assert estimate.value - 1e-12 <= estimate.high <= 1 + 1e-12
    mirrored = wilson_interval(n - successes, n, confidence=confidence)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - estimate.high, 1 - estimate.low), abs=1e-9)
    wider = wilson_interval(successes, n, confidence=(1 + confidence) / 2)
    assert wider.low <= estimate.low + 1e-12
    assert wider.high >= estimate.high - 1e-12


@pytest.mark.parametrize("p", [0.1, 0.5, 0.86])
@pytest.mark.parametrize("n", [30, 50])
def test_wilson_covers_the_truth_about_95_percent_of_the_time(n, p):
    # Exact coverage: sum over all outcomes of their probability where the interval holds p.
    held = [k for k in range(n + 1) if wilson_interval(k, n).low <= p <= wilson_interval(k, n).high]
    assert 0.92 <= stats.binom.pmf(held, n, p).sum() <= 0.985


def test_bootstrap_agrees_with_scipy():
    values = np.random.default_rng(0).gamma(2.0, size=60)
    mine = bootstrap_mean(values, seed=1)
    reference = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=10_000
    ).confidence_interval
    assert (mine.low, mine.high) == pytest.approx((reference.low, reference.high), abs=0.03)
    assert mine.value == pytest.approx(values.mean())


def test_bootstrap_covers_the_truth_about_95_percent_of_the_time():
    generator = np.random.default_rng(2)
    held = 0
    for trial in range(300):
        estimate = bootstrap_mean(generator.normal(1.0, 2.0, size=40), seed=trial, resamples=1000)
        held += estimate.low <= 1.0 <= estimate.high
    assert 0.90 <= held / 300 <= 0.98


def test_bootstrap_over_units_is_wider_where_values_of_a_unit_agree():
    generator = np.random.default_rng(3)
    episodes = np.repeat(np.arange(20), 10)
    values = generator.normal(size=20)[episodes]
    by_value, by_episode = bootstrap_mean(values), bootstrap_mean(values, units=episodes.tolist())
    assert by_episode.n == 20
    assert by_value.n == 200
    assert by_episode.value == pytest.approx(by_value.value)
    assert 2.5 < (by_episode.high - by_episode.low) / (by_value.high - by_value.low) < 4  # sqrt(10) in theory


def test_units_of_different_size_weigh_by_their_values_and_not_by_their_order():
    values, units = [1.0, 0.0, 0.0, 1.0], ["a", "b", "b", "c"]
    estimate = bootstrap_mean(values, units=units)
    assert estimate.value == 0.5
    assert estimate == bootstrap_mean([1.0, 0.0, 1.0, 0.0], units=["a", "b", "c", "b"])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.integers(0, 2**32))
def test_bootstrap_is_reproducible_and_inside_the_data(values, seed):
    estimate = bootstrap_mean(values, seed=seed, resamples=200)
    assert estimate == bootstrap_mean(values, seed=seed, resamples=200)
    assert min(values) - 1e-9 <= estimate.low <= estimate.high <= max(values) + 1e-9


def test_paired_bootstrap_sees_a_difference_that_unpaired_noise_hides():
    generator = np.random.default_rng(4)
    difficulty = generator.normal(0, 10, size=50)
    a, b = difficulty + 1 + generator.normal(0, 0.5, 50), difficulty + generator.normal(0, 0.5, 50)
    paired = paired_bootstrap(a, b)
    assert paired.excludes_zero
    assert paired.value == pytest.approx((a - b).mean())
    reversed_ = paired_bootstrap(b, a)
    assert (reversed_.low, reversed_.high) == pytest.approx((-paired.high, -paired.low))
    assert not paired_bootstrap(a, a[::-1]).excludes_zero


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_equals_the_binomial_sum(pairs):
    a, b = (np.array(column) for column in zip(*pairs, strict=True))
    result = mcnemar(a, b)
    discordant, low = result.only_a + result.only_b, min(result.only_a, result.only_b)
    tail = sum(math.comb(discordant, k) for k in range(low + 1)) / 2**discordant
    assert result.p_value == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar(b, a).p_value == pytest.approx(result.p_value)


def test_mcnemar_known_values():
    a, b = np.zeros(20, bool), np.zeros(20, bool)
    a[:8], b[7:10] = True, True
    result = mcnemar(a, b)
    assert (result.only_a, result.only_b) == (7, 2)
    assert result.p_value == pytest.approx(2 * (1 + 9 + 36) / 512)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="5 successes of 4"):
        wilson_interval(5, 4)
    with pytest.raises(ValueError, match="n >= 1"):
        wilson_interval(0, 0)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        wilson_interval(1, 2, confidence=95)
    with pytest.raises(ValueError, match="all finite"):
        bootstrap_mean([1.0, float("nan")])
    with pytest.raises(ValueError, match="one unit per value"):
        bootstrap_mean([1.0, 2.0], units=["a"])
    with pytest.raises(ValueError, match="one of each per question"):
        paired_bootstrap([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="bool"):
        mcnemar(np.zeros(3), np.zeros(3))


def test_format_has_the_digits_asked_for():
    assert Estimate(0.84, 0.7149, 0.9166, 50).format(3) == "0.840 [0.715, 0.917] n=50"


def test_a_ratio_of_success_rates_pairs_the_questions():
    solved = np.random.default_rng(0).random(200) < 0.5
    same = ratio_of_means(solved, solved)
    assert same is not None
    assert (same.value, same.low, same.high, same.n) == (1.0, 1.0, 1.0, 200)  # paired: no spread at all
    half = solved & (np.arange(200) % 2 == 0)
    ratio = ratio_of_means(half, solved)
    assert ratio is not None
    assert ratio.value == half.sum() / solved.sum()
    # Half of about 100 solved questions: the ratio is a share of 100, whose deviation is 0.05.
    assert ratio.high - ratio.low == pytest.approx(2 * 1.96 * 0.05, rel=0.15)
    assert ratio_of_means(solved, np.zeros(200)) is None
    with pytest.raises(ValueError, match=">= 0"):
        ratio_of_means([1.0, -1.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("low", "high", "higher", "words"),
    [
        (0.1, 0.3, True, "better"),
        (0.1, 0.3, False, "worse"),
        (-0.3, -0.1, True, "worse"),
        (-0.3, -0.1, False, "better"),
        (-0.1, 0.3, True, "not distinguishable"),
        (-0.1, 0.3, False, "not distinguishable"),
    ],
)
def test_a_difference_says_which_is_better(low: float, high: float, higher: bool, words: str):
    found = Estimate(value=(low + high) / 2, low=low, high=high, n=9)
    assert found.verdict(higher_is_better=higher) == words
