"""Intervals: a jackknife over clusters, Woodruff's for quantiles."""

from __future__ import annotations

from math import isfinite

import numpy as np
import pytest
from hypothesis import given

from rcdiag.results import MetricValue
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.suite import Suite, SuiteState
from tests.builders import make_state, mismatch, summed
from tests.statistics.strategies import Batch, batches, seeded_batch

EXTREMES = (
    "log_ratio_abs_max",
    "prob_diff_max",
    "log_ppl_diff_max",
    "log_ppl_diff_min",
    "top_share",
    "ratio_mean_z",
    "ratio_mean_seq_z",
    "kappa_se",
)
OF_TOKENS_ALONE = ("khat_token", "khat_seq")


def grouped_batch(seed: int, groups: int = 30, size: int = 6) -> tuple[Batch, list[int]]:
    """Make strongly dependent sequences: those of one prompt share an offset."""
    random = np.random.default_rng(seed)
    behavior, target, cluster = [], [], []
    for group in range(groups):
        offset = random.normal(0.0, 0.3)
        for _ in range(size):
            row = -random.exponential(1.0, size=10) - 3.0
            behavior.append(row.tolist())
            target.append((row + offset + random.normal(0, 0.05, size=10)).tolist())
            cluster.append(group)
    return (behavior, target), cluster


def grouped_state(seed: int, groups: int = 30, size: int = 6) -> SuiteState:
    batch, cluster = grouped_batch(seed, groups, size)
    return make_state(*batch, cluster)


def ends(value: MetricValue) -> tuple[float | None, float | None]:
    return value.low, value.high


def test_intervals_are_the_same_every_time():
    state = grouped_state(0)
    assert mismatch(state) == mismatch(state)


def test_intervals_contain_the_value_of_well_behaved_metrics():
    for seed in range(5):
        result = mismatch(make_state(*seeded_batch(seed, sequences=100)))
        for name, value in result.items():
            rare = name == "log_ratio_abs_p99.9" or name.startswith("ratio_outside")
            if None not in ends(value) and not rare:
                assert value.low < value.value < value.high, name


@given(batches())
def test_no_interval_is_upside_down_or_not_a_number(batch):
    suite = Suite(make_state(*batch))
    for name, metric in METRICS.items():
        result = metric.value(suite)
        given_ends = [end for end in (result.low, result.high) if end is not None]
        assert all(map(isfinite, given_ends)), name
        assert given_ends == sorted(given_ends), name
        # One end is missing if ratios too rare for the sample could move it.
        if len(given_ends) == 1:
            assert (result.low is None) == (metric.giants_move == "low"), name
            assert metric.giants is not None, name


def test_every_metric_except_extremes_and_errors_has_an_interval():
    result = mismatch(make_state(*seeded_batch(0, sequences=100)))
    without = {name for name, value in result.items() if ends(value) == (None, None)}
    # A divergence with a negative estimate has none: the sample lacks the large ratios.
    below_zero = {
        name for name in ("hellinger2_seq", "chi2_seq") if (result[name].value or 0.0) < 0
    }
    assert without == set(EXTREMES) | below_zero


def test_a_single_cluster_has_no_interval():
    state = make_state([[-1.0], [-2.0]] * 20, [[-1.1], [-2.2]] * 20, cluster=[7] * 40)
    for name, value in mismatch(state).items():
        if name not in OF_TOKENS_ALONE:
            assert ends(value) == (None, None), name


def test_equal_policies_have_intervals_of_no_width():
    behavior, _ = seeded_batch(0)
    result = mismatch(make_state(behavior, behavior))
    assert ends(result["k3_kl"]) == (0.0, 0.0)
    assert ends(result["ess_seq"]) == pytest.approx((1.0, 1.0))


def test_doubling_each_cluster_within_itself_keeps_the_interval():
    state = grouped_state(0)
    once, twice = mismatch(state), mismatch(summed([state, state]))
    # Whether the sample can show large ratios depends on its size.
    ruled_by_giants = [name for name, metric in METRICS.items() if metric.giants is not None]
    depends_on_the_count = ("prob_diff_std", "prob_spearman", *EXTREMES, *OF_TOKENS_ALONE)
    depends_on_the_count = (*depends_on_the_count, *ruled_by_giants)
    for name in set(METRICS) - set(depends_on_the_count):
        if once[name].low is None:
            assert ends(twice[name]) == (None, None), name
            continue
        if "outside" in name and once[name].value == 0.0:
            continue  # what was never seen is taken to come token by token
        # Quantiles of doubled values lie a little elsewhere between their neighbours.
        rel = 0.05 if "_abs_p" in name else 1e-6
        assert ends(twice[name]) == pytest.approx(ends(once[name]), rel=rel), name


def test_doubled_data_as_new_clusters_narrow_the_interval():
    behavior, target = seeded_batch(0, sequences=200)
    once = mismatch(make_state(behavior, target))
    twice = mismatch(make_state(behavior * 2, target * 2))
    for name in ("k2_kl", "ess_token", "log_ratio_abs_p50"):
        narrower = (twice[name].high - twice[name].low) / (once[name].high - once[name].low)
        assert narrower == pytest.approx(2**-0.5, rel=0.2), name


def test_group_names_do_not_matter():
    """Except for ranks, whose jackknife merges clusters by name."""
    batch, cluster = grouped_batch(0)
    renamed = mismatch(make_state(*batch, [name * 1_000_003 + 17 for name in cluster]))
    result = mismatch(make_state(*batch, cluster))
    assert renamed["prob_spearman"].value == result["prob_spearman"].value
    for name in set(METRICS) - {"prob_spearman"}:
        assert renamed[name] == result[name], name


def test_a_quantile_that_no_cluster_exceeds_has_no_zero_width_interval():
    """Above 1 - 1 / n the sample has no information, so a width of zero would be wrong."""
    result = mismatch(make_state(*seeded_batch(0, sequences=20)))["log_ratio_abs_p99.9"]
    assert result.low is None or result.low < result.high


def covers_zero(state: SuiteState) -> bool:
    value = METRICS["k1_kl"].value(Suite(state))
    return value.low <= 0.0 <= value.high


def test_intervals_over_prompt_groups_cover_unlike_those_over_sequences():
    """The mean offset is 0, so E[k1] is 0, which 95% intervals should cover 95 times in 100."""
    grouped = alone = 0
    runs = 100
    for seed in range(runs):
        batch, cluster = grouped_batch(seed)
        grouped += covers_zero(make_state(*batch, cluster))
        alone += covers_zero(make_state(*batch))
    assert grouped / runs >= 0.88
    assert alone / runs <= 0.7
