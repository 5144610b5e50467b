"""Levels: what is judged, against which bounds, and where there is nothing to judge."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, t

from rcdiag.statistics.metrics import FAMILIES, METRICS, mismatch
from rcdiag.statistics.suite import Suite
from tests.builders import make_state
from tests.statistics.strategies import seeded_batch


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("k3_kl", 0.0009, "ok"),
        ("k3_kl", 0.002, "warning"),
        ("k3_kl", 0.02, "error"),
        ("k1_kl", -0.07, "warning"),
        ("k1_kl", 0.2, "error"),
        ("prob_diff_mean", 0.011, "error"),
        ("ess_seq", 0.9, "ok"),
        ("ess_seq", 0.3, "warning"),
        ("ess_seq", 0.05, "error"),
        ("chi2_token", 1e9, "warning"),
        ("ratio_mean_z", -2.5, "warning"),
        ("ratio_mean_z", 4.5, "error"),
        ("kappa", 1.2, "ok"),
        ("kappa", 0.5, "warning"),
        ("kappa", -1.0, "error"),
    ],
)
def test_levels_follow_the_guide_values(name, value, level):
    guide = METRICS[name].guide
    assert guide is not None
    bounds = guide.bounds(Suite(make_state([[-1.0]] * 1000, [[-1.5]] * 1000), 0))
    assert guide.level(value, bounds) == level


def test_kappa_is_judged_by_the_nearest_value_that_its_interval_allows():
    guide = METRICS["kappa"].guide
    assert guide is not None
    assert guide.judged(0.1, (-0.2, 0.4)) == 0.4
    assert guide.judged(0.1, (-0.2, 1.4)) == 1.0
    assert guide.judged(1.9, (1.5, 2.4)) == 1.5
    assert guide.judged(0.1, (None, None)) == 0.1


@pytest.mark.parametrize(("tokens", "error"), [(100, 0.5), (320, 0.60), (1000, 2 / 3), (2200, 0.7)])
def test_k_hat_is_judged_by_how_many_ratios_there_are(tokens, error):
    guide = METRICS["khat_token"].guide
    assert guide is not None
    state = make_state([[-1.0] * tokens], [[-1.5] * tokens])
    assert guide.bounds(Suite(state, 0)) == pytest.approx((0.5, error), abs=2e-3)


@pytest.mark.parametrize("clusters", [3, 10, 100])
def test_few_clusters_need_a_larger_z_of_the_same_rarity(clusters):
    guide = METRICS["ratio_mean_z"].guide
    assert guide is not None
    suite = Suite(make_state([[-1.0]] * clusters, [[-1.5]] * clusters), 0)
    wanted = [t.isf(norm.sf(errors), clusters - 1) for errors in (2.0, 4.0)]
    assert guide.bounds(suite) == pytest.approx(wanted, rel=1e-6)


def test_kappa_of_few_clusters_is_not_judged():
    behavior, target = seeded_batch(0, sequences=60)
    few = mismatch(make_state(behavior, target, [row % 5 for row in range(60)]), 0)["kappa"]
    assert few.value is not None
    assert few.level is None
    assert mismatch(make_state(behavior, target), 0)["kappa"].level is not None


@pytest.mark.parametrize(("sd", "judged"), [(0.01, False), (1.0, True)])
def test_tails_of_a_mismatch_that_does_no_harm_are_not_judged(sd, judged):
    found = mismatch(make_state(*seeded_batch(0, sequences=200, sd=sd)), 0)
    for name in ("khat_token", "khat_seq", "top_share"):
        assert found[name].value is not None, name
        assert (found[name].level is not None) == judged, name


def test_every_guide_begins_to_warn_before_it_says_error_and_names_a_source():
    suite = Suite(make_state(*seeded_batch(0, sequences=200)), 0)
    guides = {name: metric.guide for name, metric in METRICS.items() if metric.guide}
    assert len(guides) >= 12
    for name, guide in guides.items():
        warning, error = guide.bounds(suite)
        assert warning != error, name
        assert guide.source, name
        assert guide.level(np.nan, (warning, error)) is None, name
        ideal = METRICS[name].ideal
        if ideal is not None:
            assert guide.level(ideal, (warning, error)) == "ok", name


def test_every_family_has_a_guide_and_a_headline():
    for name, family in FAMILIES.items():
        assert any(metric.guide for metric in family.metrics.values()), name
        assert any(metric.headline for metric in family.metrics.values()), name
