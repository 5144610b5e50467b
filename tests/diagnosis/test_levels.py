"""Levels: which metrics are judged, against which bounds, and when they are unknown."""

from __future__ import annotations

from math import expm1, inf, nan

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.stats import norm, t

from rcdiag.diagnosis.guides import _with_level, judged_metric, under_diagnosis
from rcdiag.diagnosis.rules import level, worst
from rcdiag.results.base import MetricValue
from rcdiag.results.diagnosis import Diagnosis
from rcdiag.results.guide import Guide
from rcdiag.statistics.metrics import BY_CLUSTERS, FAMILIES, METRICS
from rcdiag.statistics.suite import Suite
from tests.builders import make_state, metrics, mismatch
from tests.statistics.strategies import seeded_batch

UPWARD = Guide(warning=1.0, error=2.0, source="a test")
DOWNWARD = Guide(warning=0.5, error=0.1, source="a test")
AROUND = Guide(warning=0.3, error=0.7, source="a test", around=1.0)


SUITE = Suite(make_state([[-1.0]] * 1000, [[-1.5]] * 1000))


def guide_of(name: str, suite: Suite) -> Guide:
    guide = METRICS[name].guide_on(suite)
    assert guide is not None
    return guide


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("k3_kl", 0.0009, "ok"),
        ("k3_kl", 0.001, "warning"),
        ("k3_kl", 0.002, "warning"),
        ("k3_kl", 0.01, "error"),
        ("prob_diff_mean", 0.011, "error"),
        ("ess_seq", 0.9, "ok"),
        ("ess_seq", 0.5, "warning"),
        ("ess_seq", 0.1, "error"),
        ("chi2_token", 1e9, "warning"),
        ("ratio_mean_z", -2.5, "warning"),
        ("ratio_mean_z", 4.5, "error"),
        ("kappa", 1.2, "ok"),
        ("kappa", 0.5, "warning"),
        ("kappa", -1.0, "error"),
    ],
)
def test_levels_follow_the_guide_values(name, value, expected):
    assert level(guide_of(name, SUITE), value) == expected


@pytest.mark.parametrize(
    ("guide", "value", "low", "high", "expected"),
    [
        (UPWARD, 1.5, 0.9, 2.0, "unknown"),
        (UPWARD, 0.5, 0.4, 2.1, "unknown"),
        (UPWARD, 2.5, 0.9, 2.7, "unknown"),
        (UPWARD, 1.5, 0.9, 1.9, "warning"),
        (UPWARD, 2.5, 1.0, 2.7, "error"),
        (UPWARD, 0.5, 0.4, 0.9, "ok"),
        (UPWARD, inf, None, None, "error"),
        (UPWARD, nan, None, None, None),
        (UPWARD, None, None, None, None),
        (DOWNWARD, 0.3, 0.05, 0.6, "unknown"),
        (DOWNWARD, 0.3, 0.2, 0.6, "warning"),
        (AROUND, 1.0, 0.2, 1.1, "unknown"),
        (AROUND, 1.5, 0.9, 1.6, "warning"),
        # Both ends are errors, but values between them are not.
        (AROUND, 1.8, 0.1, 1.9, "unknown"),
    ],
)
def test_an_interval_from_ok_to_error_is_unknown(guide, value, low, high, expected):
    assert level(guide, value, low, high) == expected


def test_the_worst_of_levels():
    assert worst(["ok", "warning", "unknown"]) == "warning"
    assert worst(["ok", "unknown"]) == "unknown"
    assert worst([]) == "ok"


def test_kappa_is_judged_by_the_value_in_its_interval_nearest_to_1():
    guide = METRICS["kappa"].guide
    assert guide is not None
    assert level(guide, 0.1, -0.2, 0.4) == "warning"
    assert level(guide, 0.3, 0.0, 1.1) == "ok"
    assert level(guide, 1.9, 1.5, 2.4) == "warning"
    assert level(guide, 0.1) == "error"


def test_an_interval_wider_than_the_scale_is_unknown():
    guide = METRICS["kappa"].guide
    assert guide is not None
    assert level(guide, 3.4, -2.1, 26.9) == "unknown"
    assert level(guide, -9.0, -12.0, -6.0) == "error"  # all of it is
    state = make_state([[-1.0]] * 4, [[-1.001], [-1.01], [-1.0], [-3.0]])
    metric = METRICS["tv_token"]
    value = judged_metric(metric, Suite(state))
    assert metric.guide is None
    assert value.high - value.low > 0.5
    assert value.level == "unknown"


@pytest.mark.parametrize("guide", [None, Guide(warning=5.0, error=9.0, source="a test")])
def test_a_wide_k_hat_tells_nothing_by_whatever_guide_the_data_ask_for(guide):
    wide = replace(
        METRICS["khat_seq"],
        from_suite=lambda suite: (0.8, (-0.6, 2.2)),
        guide_for=lambda suite: guide,
        expects=None,
    )
    assert judged_metric(wide, SUITE).level == "unknown"


@pytest.mark.parametrize(("tokens", "error"), [(100, 0.5), (320, 0.60), (1000, 2 / 3), (2200, 0.7)])
def test_the_bound_of_k_hat_depends_on_the_number_of_ratios(tokens, error):
    # One giant ratio: the effective sample size is low, and the tail matters.
    state = make_state([[-1.0] * tokens], [[4.0] + [-1.5] * (tokens - 1)])
    guide = guide_of("khat_token", Suite(state))
    assert (guide.warning, guide.error) == pytest.approx((0.5, error), abs=2e-3)


@pytest.mark.parametrize("clusters", [3, 10, 100])
def test_few_clusters_need_a_larger_z_for_the_same_probability(clusters):
    guide = guide_of("ratio_mean_z", Suite(make_state([[-1.0]] * clusters, [[-1.5]] * clusters)))
    expected = [t.isf(norm.sf(errors), clusters - 1) for errors in (2.0, 4.0)]
    assert (guide.warning, guide.error) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("name", "clusters"), [("kappa", 19), ("ratio_mean_z", 7)])
def test_a_level_that_few_clusters_cannot_show_is_unknown(name, clusters):
    behavior, target = seeded_batch(0, sequences=60)
    few = mismatch(make_state(behavior, target, [row % clusters for row in range(60)]))[name]
    assert few.value is not None
    assert few.level == "unknown"
    assert mismatch(make_state(behavior, target))[name].level in ("ok", "warning", "error")


def test_a_wide_interval_is_an_error_only_where_all_of_it_is():
    """The way from 0 to an error is 0.01; 0.02 may be anything from a warning on."""
    metric = METRICS["k3_kl"]
    assert (
        _with_level(metric, MetricValue(value=0.02, low=0.004, high=6.1), SUITE).level == "unknown"
    )
    assert _with_level(metric, MetricValue(value=0.2, low=0.02, high=6.1), SUITE).level == "error"


@pytest.mark.parametrize(
    ("verdict", "pair", "expected"),
    [
        ("correctable", ("rollout", "old"), "unknown"),
        ("inconclusive", ("rollout", "old"), "unknown"),
        ("broken", ("rollout", "old"), "error"),
        ("correctable", ("old", "rollout"), "unknown"),
        ("correctable", ("rollout", "other"), "error"),
    ],
)
def test_who_sampled_has_one_judge(verdict, pair, expected):
    diagnosis = Diagnosis(
        verdict=verdict, summary="", pair={"sampler": "rollout", "trainer": "old"}, causes=[]
    )
    values = {"ratio_mean_z": MetricValue(value=-10.7, level="error")}
    assert under_diagnosis(values, diagnosis, pair)["ratio_mean_z"].level == expected


def test_one_kl_has_one_level():
    """k1 and k3 estimate one number: only k3 is judged, and it errs no later than k1 would."""
    behavior, target = seeded_batch(0, sequences=60)
    assert mismatch(make_state(behavior, target))["k1_kl"].level is None
    for k1 in (0.05, 0.1, 0.3):  # k3 of a column that is higher or lower throughout
        for log_ratio in (k1, -k1):
            assert level(guide_of("k3_kl", SUITE), expm1(log_ratio) - log_ratio) != "ok"


@pytest.mark.parametrize(("sd", "judged"), [(0.01, False), (1.0, True)])
def test_tails_of_a_harmless_mismatch_are_not_judged(sd, judged):
    values = mismatch(make_state(*seeded_batch(0, sequences=200, sd=sd)))
    for name in ("khat_token", "khat_seq", "top_share"):
        assert values[name].value is not None, name
        assert (values[name].level is not None) == judged, name


def test_with_one_cluster_levels_of_clustered_intervals_are_unknown():
    behavior, target = seeded_batch(0, sequences=60)
    values = mismatch(make_state(behavior, target, [0] * 60))
    for name, metric in METRICS.items():
        if values[name].value is None:
            assert values[name].level is None, name
        elif metric.interval == BY_CLUSTERS:
            assert values[name].level == "unknown", name
            assert values[name].low is None, name
    assert values["khat_seq"].level in ("ok", "warning", "error", "unknown", None)
    assert values["log_ratio_abs_max"].level is None


def test_two_clusters_give_a_level():
    behavior, target = seeded_batch(0, sequences=60)
    suite = Suite(make_state(behavior, target, [row % 2 for row in range(60)]))
    assert judged_metric(METRICS["log_ratio_abs_mean"], suite).level is None
    assert judged_metric(METRICS["k2_kl"], suite).level in ("ok", "warning", "error", "unknown")


@pytest.mark.parametrize(
    ("value", "high", "expected"),
    [(0.6, 0.8, "unknown"), (0.3, 0.4, "unknown"), (0.05, 0.09, "error"), (0.05, 0.6, "unknown")],
)
def test_an_interval_without_a_lower_end_reaches_down_to_error(value, high, expected):
    guide = METRICS["ess_seq"].guide
    assert guide is not None
    assert level(guide, value, None, high) == expected


@pytest.mark.parametrize(
    ("value", "low", "expected"), [(2e-3, 5e-4, "unknown"), (0.2, 0.1, "error")]
)
def test_an_interval_without_an_upper_end_reaches_up_to_error(value, low, expected):
    guide = METRICS["k3_kl"].guide
    assert guide is not None
    assert level(guide, value, low, None) == expected


def test_a_number_with_one_end_and_no_guide_is_unknown():
    """A few sequences with log-ratios of 2 nats rms cannot estimate E[ratio^2]."""
    random = np.random.default_rng(0)
    behavior = [[-3.0] * 4] * 40
    target = [(-3.0 + random.normal(size=4)).tolist() for _ in range(40)]
    values = mismatch(make_state(behavior, target))
    assert METRICS["chi2_seq_self_normalised"].guide is None
    assert values["chi2_seq_self_normalised"].low is not None
    assert values["chi2_seq_self_normalised"].high is None
    assert values["chi2_seq_self_normalised"].level == "unknown"
    assert values["ess_seq"].low is None
    assert values["ess_seq"].high is not None
    assert values["ess_seq"].level == "unknown"


def test_every_guide_warns_before_it_gives_an_error():
    suite = Suite(make_state(*seeded_batch(0, sequences=200)))
    guides = {name: item for name, metric in METRICS.items() if (item := metric.guide_on(suite))}
    assert len(guides) >= 12
    for name, guide in guides.items():
        assert guide.warning != guide.error, name
        assert level(guide, nan) is None, name
        ideal = METRICS[name].ideal
        if ideal is not None:
            assert level(guide, ideal) == "ok", name


def test_every_family_has_a_guide_and_a_headline():
    for name, family in FAMILIES.items():
        assert any(metric.guide for metric in family.metrics.values()), name
        assert any(metric.headline for metric in family.metrics.values()), name


# Two sequences with a mean ratio below 1, as if the rare large ratio was not sampled.
LOW_RATIOS = ([[-1.0, -1.0], [-1.0]] * 15, [[-1.1, -1.2], [-1.3]] * 15)


@pytest.mark.parametrize("name", ["chi2_token", "chi2_seq"])
def test_a_divergence_with_a_negative_estimate_is_unknown(name):
    metric = METRICS[name]
    suite = Suite(make_state(*LOW_RATIOS))
    value = judged_metric(metric, suite)
    assert value.value is not None
    assert value.value < 0.0
    assert (value.low, value.high, value.level) == (None, None, "unknown")
    assert judged_metric(METRICS[f"{name}_self_normalised"], suite).value >= 0.0


def test_no_interval_of_a_divergence_reaches_below_zero():
    random = np.random.default_rng(3)
    behavior = [[-3.0] * 20] * 40
    target = [(-3.0 + 0.01 * random.normal(size=20)).tolist() for _ in range(40)]
    suite = Suite(make_state(behavior, target))
    raw, judged = METRICS["chi2_seq"].value(suite), judged_metric(METRICS["chi2_seq"], suite)
    assert judged.value == raw.value
    assert raw.low is not None
    assert raw.low < 0.0
    assert (judged.low, judged.high) == (0.0, raw.high)


def test_k2_is_judged_by_the_bound_of_m2po_on_the_squared_log_ratio():
    """M2PO keeps E[log_ratio^2] below 0.04; k2 is half of that."""
    guide = METRICS["k2_kl"].guide
    assert guide is not None
    assert "M2PO" in guide.source
    size = 0.04**0.5  # every log-ratio has this size, so E[log_ratio^2] is M2PO's bound
    k2 = metrics([[-1.0] * 4], [[-1.0 + size, -1.0 - size] * 2])["k2_kl"]
    assert k2 == pytest.approx(guide.error)
