"""Effective sample sizes that depend on ratios too rare for the sample."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.second_moment import (
    ess,
    is_observable,
    largest_entropy,
    largest_growth,
    largest_mean_square,
    variance,
)
from rcdiag.statistics.suite import Suite
from tests.builders import make_state


def gaussian_suite(spread: float, sequences: int, tokens: int = 16, seed: int = 0) -> Suite:
    """Make a suite of sequences of equal length with independent N(-s^2 / 2, s^2) log-ratios."""
    random = np.random.default_rng(seed)
    noise = random.normal(-(spread**2) / 2.0, spread, (sequences, tokens))
    return Suite(make_state([[-3.0] * tokens] * sequences, (-3.0 + noise).tolist()))


def test_variances_are_those_of_tokens_and_of_sums():
    random = np.random.default_rng(1)
    rows = [random.normal(size=size).tolist() for size in (3, 5, 2, 7)]
    suite = Suite(
        make_state([[-9.0] * len(row) for row in rows], [[-9.0 + x for x in row] for row in rows])
    )
    tokens = np.concatenate(rows)
    assert variance(suite.point, "token")[0] == pytest.approx(tokens.var())
    sums = np.array([sum(row) for row in rows])
    lengths = np.array([len(row) for row in rows])
    squares = np.square(sums - tokens.mean() * lengths).sum()
    assert variance(suite.point, "seq")[0] == pytest.approx(squares / lengths.sum())


def test_the_distribution_is_that_of_lognormal_ratios():
    """Of equal lengths E[ratio^2] is e^{v T} and E[ratio log ratio] v T / 2."""
    suite = gaussian_suite(0.1, 5000)
    growth = largest_growth(suite, "seq", 1.0)
    assert 0.0 < np.log(growth) - 0.16 < 0.012
    assert 0.0 < np.log(largest_growth(suite, "token", 1.0)) - 0.01 < 2e-4
    assert largest_entropy(suite, "seq", 0.0) == pytest.approx(np.log(growth) / 2)
    assert 1.0 / growth < ess(suite.point, "seq")[0]


def test_an_end_of_the_sample_that_is_further_out_grows_by_what_the_tail_may_have_beyond():
    random = np.random.default_rng(2)
    noise = 0.03 * random.standard_t(3, (200, 16))
    suite = Suite(make_state([[-3.0] * 16] * 200, (-3.0 + noise).tolist()))
    beyond = suite.squares_beyond
    assert beyond > suite.likely_squares_beyond > 0.0
    assert largest_growth(suite, "seq", 5.0) == pytest.approx(5.0 * np.exp(16.0 * beyond))
    assert largest_entropy(suite, "token", 5.0) == pytest.approx(5.0 + beyond / 2.0)


def test_a_mean_square_is_as_large_as_its_tail_makes_likely():
    random = np.random.default_rng(2)
    noise = 0.03 * random.standard_t(3, (200, 16))
    suite = Suite(make_state([[-3.0] * 16] * 200, (-3.0 + noise).tolist()))
    seen = float(np.square(noise).mean())
    likely = seen + suite.likely_squares_beyond
    assert largest_mean_square(suite, "k2", 0.0) == pytest.approx(likely)
    assert largest_mean_square(suite, "k2", 2.0 * likely) == pytest.approx(2.0 * likely)
    assert METRICS["k2_kl"].value(suite).high >= likely / 2.0
    spread = METRICS["log_ratio_std"].value(suite).high
    assert spread**2 >= likely - noise.mean() ** 2 - 1e-12


@pytest.mark.parametrize(
    ("spread", "sequences", "observable"),
    [
        (0.1, 30, True),  # v = 0.16: 10 e^{2 v} are 14
        (0.1, 8, False),
        (0.25, 300, True),  # v = 1: 74
        (0.25, 40, False),
        (0.5, 3000, False),  # v = 4: 30,000
    ],
)
def test_as_many_sequences_as_the_distribution_asks_show_the_second_moment(
    spread, sequences, observable
):
    assert is_observable(gaussian_suite(spread, sequences), "seq") == observable


def test_the_longest_responses_decide_whether_a_second_moment_is_shown():
    """v is 0.01 per token: e^{2 v T} is 1.4 for 16 tokens and 2,981 for 400, on the average 301."""
    noise = np.random.default_rng(0).normal(-0.005, 0.1, (300, 400))
    lengths = [400 if row % 10 == 0 else 16 for row in range(300)]
    rows = [noise[row, :length].tolist() for row, length in enumerate(lengths)]
    recorded = [[-3.0] * length for length in lengths]
    suite = Suite(make_state(recorded, [[-3.0 + x for x in row] for row in rows]))
    assert np.log(300) > np.log(10) + 0.02 * np.mean(lengths)  # the mean length would suffice
    assert not is_observable(suite, "seq")
    assert is_observable(suite, "token")


def test_a_tail_without_a_second_moment_does_not_show_it():
    """Ratios are Pareto with the index 1: their variance is infinite, that of their log is 1."""
    random = np.random.default_rng(2)
    sums = random.exponential(size=2000) - 1.0
    suite = Suite(make_state([[-9.0]] * 2000, [[-9.0 + item] for item in sums]))
    assert np.log(2000) > np.log(10.0) + 2.0 * sums.var()
    assert not is_observable(suite, "seq")
    # The same tail of ratios that are all near 1 moves no weighted mean.
    near = Suite(make_state([[-9.0]] * 2000, [[-9.0 + item / 100.0] for item in sums]))
    assert is_observable(near, "seq")
