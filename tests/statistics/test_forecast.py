"""Forecasts by length against closed forms, simulations, and data that violate the model."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from rcdiag.statistics.forecast import (
    LENGTHS,
    TokenDistribution,
    expected_ess,
    expected_inside,
    forecast,
)

SEQ, GEO = (0.5, 2.0), (0.999, 1.001)

Table = tuple[np.ndarray, np.ndarray, np.ndarray]


def kl_of_sequences(random: np.random.Generator, count: int, kl: float, spread: float):
    return kl * np.exp(spread * random.standard_normal(count) - 0.5 * spread**2)


def sums_of(random: np.random.Generator, kl: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Draw sums of Gaussian log-ratios with E[ratio] = 1."""
    return random.standard_normal(len(lengths)) * np.sqrt(2 * kl * lengths) - kl * lengths


def table(
    seed: int,
    count: int = 4000,
    kl: float = 1e-3,
    spread: float = 0.0,
    offset: float = 0.0,
    lengths: tuple[int, int] = (100, 1600),
) -> Table:
    """Make sums at log-uniform lengths; `offset` per token is constant within a sequence."""
    random = np.random.default_rng(seed)
    drawn = np.round(np.exp(random.uniform(*np.log(lengths), count)))
    sums = sums_of(random, kl_of_sequences(random, count, kl, spread), drawn)
    sums += offset * drawn * random.standard_normal(count)
    return drawn.astype(np.int64), sums, np.arange(count, dtype=np.uint64) // np.uint64(4)


def inside(
    distribution: TokenDistribution, length: float, bounds: tuple[float, float], geometric: bool
) -> float:
    low, high = (np.array([np.log(bound)]) for bound in bounds)
    scale = length if geometric else 1.0
    return float(expected_inside(distribution, np.array([length]), low * scale, high * scale)[0])


# Closed forms of normal sums: KL per token, length, ESS, sequence window, geometric windows.
BY_LENGTH = [
    (1e-4, 1000, 0.82, 0.870, 0.971, 1.0),
    (1e-4, 8000, 0.20, 0.347, 1.000, 1.0),
    (5e-4, 1000, 0.37, 0.460, 0.625, 1.0),
    (5e-4, 8000, 3e-4, 0.073, 0.922, 1.0),
    (1e-3, 1000, 0.135, 0.299, 0.421, 1.0),
    (1e-3, 16000, 0.0, 0.002, 0.501, 1.0),
    (5e-3, 1000, 5e-5, 0.051, 0.074, 0.945),
    (5e-3, 8000, 0.0, 0.0, 0.0, 1.0),
    (1e-2, 1000, 2e-9, 0.010, 0.015, 0.504),
]


@pytest.mark.parametrize(("kl", "length", "ess", "seq", "narrow", "wide"), BY_LENGTH)
def test_closed_forms_of_one_kl(kl, length, ess, seq, narrow, wide):
    distribution = TokenDistribution(kl, kl, 0.0, -1.0)
    # The table gives one or two digits of the ESS and three of the shares.
    assert expected_ess(distribution, np.array([length]))[0] == pytest.approx(
        ess, rel=0.12, abs=1e-8
    )
    assert inside(distribution, length, SEQ, False) == pytest.approx(seq, abs=6e-4)
    assert inside(distribution, length, GEO, True) == pytest.approx(narrow, abs=6e-4)
    assert inside(distribution, length, (0.99, 1.01), True) == pytest.approx(wide, abs=6e-4)


# Closed forms of normal sums, tabulated: KL of a sequence, ESS, acceptance of [0.5, 2].
BY_KL = [(0.045, 0.914, 0.978), (0.125, 0.779, 0.821), (0.5, 0.368, 0.460), (2.0, 0.018, 0.168)]


@pytest.mark.parametrize(("kl_seq", "ess", "seq"), BY_KL)
def test_closed_forms_depend_only_on_the_kl_of_sequences(kl_seq, ess, seq):
    for length in (10.0, 5000.0):
        distribution = TokenDistribution(0.0, kl_seq / length, 0.0, -1.0)
        assert expected_ess(distribution, np.array([length]))[0] == pytest.approx(ess, abs=6e-4)
        assert inside(distribution, length, SEQ, False) == pytest.approx(seq, abs=6e-4)


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_averages_over_lognormal_kl_equal_simulations(spread):
    distribution = TokenDistribution(1e-3, 1e-3, spread, -1.0)
    # k at midpoints of equal probabilities, with the closed forms at each.
    normal = ndtri((np.arange(500) + 0.5) / 500)
    kl = 1e-3 * np.exp(spread * normal - 0.5 * spread**2)
    for length in (500.0, 16000.0):
        expected = np.exp(-2 * kl * length).mean()
        assert expected_ess(distribution, np.array([length]))[0] == pytest.approx(
            expected, abs=1e-3
        )
        for geometric, bounds in ((True, GEO), (False, SEQ)):
            item = [
                inside(TokenDistribution(k, k, 0.0, -1.0), length, bounds, geometric) for k in kl
            ]
            result = inside(distribution, length, bounds, geometric)
            assert result == pytest.approx(np.mean(item), abs=4e-3)


@pytest.mark.parametrize("kl", [1e-4, 1e-3, 1e-2])
def test_one_kl_is_found_within_its_error(kl):
    lengths, sums, cluster = table(3, kl=kl)
    result = forecast(lengths, sums, cluster)
    by_mean = np.sqrt(2 * kl * lengths.sum()) / lengths.sum()
    assert result.kl_token_by_mean == pytest.approx(kl, abs=4 * by_mean)
    assert result.kl_token_by_variance == pytest.approx(kl, rel=4 * np.sqrt(2 / 2000))
    assert result.kl_token == result.kl_token_by_variance
    assert result.heterogeneity < 0.35
    assert "disagree" not in result.about
    distribution = TokenDistribution(kl, kl, 0.0, -1.0)
    for point in result.points:
        assert point.ess_seq == pytest.approx(np.exp(-2 * kl * point.response_length), abs=0.04)
        assert point.accepted_seq == pytest.approx(
            inside(distribution, point.response_length, SEQ, False), abs=0.03
        )


def test_unequal_kl_is_fitted_and_predicts_eight_times_the_length():
    for seed, spread in ((1, 0.5), (2, 1.0)):
        data = table(seed, count=20_000, spread=spread, lengths=(100, 1000))
        result = forecast(*data)
        assert result.heterogeneity == pytest.approx(spread, abs=0.1)
        assert result.kl_token == pytest.approx(1e-3, rel=0.08)
        assert "disagree" not in result.about
        point = next(item for item in result.points if item.response_length == 8192)
        random = np.random.default_rng(seed)
        kl = kl_of_sequences(random, 200_000, 1e-3, spread)
        sums = sums_of(random, kl, np.full(200_000, 8192.0))
        for bounds, scale, expected in (
            (SEQ, 1.0, point.accepted_seq),
            (GEO, 8192.0, point.accepted_geo),
        ):
            low, high = np.log(bounds)
            seen = np.mean((low * scale <= sums) & (sums <= high * scale))
            assert expected == pytest.approx(seen, abs=0.02)
        assert point.ess_seq == pytest.approx(np.exp(-2 * kl * 8192).mean(), abs=0.02)


@pytest.mark.parametrize(
    ("spread", "tables"), [pytest.param(0.0, 10, marks=pytest.mark.slow), (0.8, 5)]
)
def test_data_of_the_model_pass_the_test(spread, tables):
    verdicts = [forecast(*table(seed, 1200, spread=spread)).holds for seed in range(tables)]
    # At a joint level of 5%, 3 of 10 fail by chance once in 90 times, 2 of 5 once in 44.
    assert verdicts.count(True) >= 0.8 * tables


def test_offsets_of_whole_sequences_fail_the_test():
    verdicts = [forecast(*table(seed, 1200, 1e-4, offset=2e-3)) for seed in range(3)]
    assert [item.holds for item in verdicts] == [False] * 3
    for result in verdicts:
        longest = result.held_out[-1]
        assert longest.seen_std.low > longest.expected_std


def test_held_out_bins_are_the_longer_half_with_observed_values():
    lengths, sums, cluster = table(5, 2000, spread=0.5)
    result = forecast(lengths, sums, cluster)
    assert len(result.held_out) == 4
    longer = lengths > np.median(lengths)
    assert sum(item.num_sequences for item in result.held_out) == longer.sum()
    for item in result.held_out:
        low, high = map(int, item.label.split(" to "))
        rows = longer & (lengths >= low) & (lengths <= high)
        assert item.num_sequences == rows.sum()
        assert item.mean_length == pytest.approx(lengths[rows].mean())
        assert item.seen_seq.value == np.mean(np.abs(sums[rows]) <= np.log(2.0))
        kept = (sums[rows] >= np.log(0.999) * lengths[rows]) & (
            sums[rows] <= np.log(1.001) * lengths[rows]
        )
        assert item.seen_geo.value == kept.mean()
        deviations = sums[rows] - sums[rows].sum() / lengths[rows].sum() * lengths[rows]
        assert item.seen_std.value == pytest.approx(deviations.std(ddof=1), rel=0.01)
        for seen in (item.seen_seq, item.seen_geo, item.seen_std):
            assert 0.0 <= seen.low < seen.value < seen.high


def test_the_order_of_rows_does_not_matter():
    data = table(7, 600, spread=0.4)
    order = np.random.default_rng(0).permutation(600)
    assert forecast(*data) == forecast(*(item[order] for item in data))


def test_identical_policies():
    lengths, sums, cluster = table(0, 400)
    result = forecast(lengths, 0.0 * sums, cluster)
    assert (result.kl_token, result.kl_token_by_variance, result.heterogeneity) == (0.0, 0.0, 0.0)
    assert result.holds is True
    assert [point.response_length for point in result.points] == LENGTHS.astype(int).tolist()
    assert result.points[-1].response_length == 65_536
    for point in result.points:
        assert (point.ess_seq, point.accepted_seq, point.accepted_geo) == (1.0, 1.0, 1.0)
    outside = forecast(lengths, 0.0 * sums, cluster, geo_bounds=(1.1, 1.2))
    assert {point.accepted_geo for point in outside.points} == {0.0}
    shifted = forecast(lengths, np.log(1.15) * lengths, cluster, geo_bounds=(1.1, 1.2))
    assert {point.accepted_geo for point in shifted.points} == {1.0}


def test_one_length_and_few_sequences_are_not_checked():
    lengths, sums, cluster = table(1, 400, lengths=(500, 500))
    result = forecast(lengths, sums, cluster)
    assert (result.holds, result.held_out) == (None, [])
    assert result.kl_token == pytest.approx(1e-3, rel=0.3)
    assert "too few sequences of different lengths" in result.about
    few = forecast(*(item[:19] for item in table(1)))
    assert (few.holds, few.held_out) == (None, [])
    assert len(few.points) == len(LENGTHS)
    lengths, sums, _ = (item[:19] for item in table(1))
    assert forecast(lengths, sums, np.zeros(19, np.uint64)).holds is None
    one = forecast(*(item[:1] for item in table(1)))
    assert np.isnan(one.kl_token)
    assert (one.points, one.holds) == ([], None)


def test_sums_that_are_not_finite_are_left_out_and_reported():
    lengths, sums, cluster = table(2, 600)
    broken = sums.copy()
    broken[[3, 50, 300]] = np.nan, np.inf, -np.inf
    result = forecast(lengths, broken, cluster)
    rest = np.isfinite(broken)
    without = forecast(lengths[rest], sums[rest], cluster[rest])
    assert repr(result.points) == repr(without.points)
    assert "sequences left out because their sums are not finite: 3" in result.about
    assert "left out" not in without.about


def test_a_drift_unexplained_by_the_variance_is_taken_as_observed():
    """With a rescored policy as wrong as the target there is spread without drift, kappa 0."""
    lengths, sums, cluster = table(4, 4000)
    centred = sums + 1e-3 * lengths
    result = forecast(lengths, centred, cluster)
    assert result.kl_token == result.kl_token_by_variance
    assert abs(result.kl_token_by_mean) < 1e-4
    assert "the observed mean is used" in result.about
    # Around a ratio of 1 the window keeps more than around e^-k.
    point = next(item for item in result.points if item.response_length == 16384)
    assert point.accepted_geo > 0.99
    assert result.holds is True


def test_a_mean_unexplained_by_the_variance_is_used():
    lengths, sums, cluster = table(4, 4000)
    result = forecast(lengths, sums - 1e-3 * lengths, cluster)
    assert result.kl_token == result.kl_token_by_mean == pytest.approx(2e-3, rel=0.1)
    assert result.kl_token_by_variance == pytest.approx(1e-3, rel=0.1)
    assert "k is taken from the mean" in result.about
    assert result.holds is False


def test_a_kl_that_grows_with_the_length_fails_the_test():
    lengths, _, cluster = table(6, 2000)
    sums = sums_of(np.random.default_rng(6), 5e-7 * lengths, lengths)
    assert forecast(lengths, sums, cluster).holds is False
