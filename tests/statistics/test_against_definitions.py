"""The metrics against an independent oracle (`tests.statistics.oracle`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr

from rcdiag.statistics.metrics import FAMILIES, METRICS
from tests.builders import make_state, metrics, values_of
from tests.examples import dear
from tests.statistics.oracle import by_definition
from tests.statistics.strategies import Batch, batches, seeded_batch

# Differences of nearly equal sums, which keep fewer digits.
CANCELLING = ("log_ratio_abs_std", "log_ratio_std", "prob_diff_std", "variance_ratio")


def assert_as_defined(batch: Batch, cluster: Sequence[int] | None = None) -> set[str]:
    """Compare metrics with the oracle; returns the names of those compared."""
    result, expected = values_of(make_state(*batch, cluster)), by_definition(batch, cluster)
    for name, value in expected.items():
        if value is None:
            assert result[name] is None, name
            continue
        if name.endswith("_z") and abs(value) > 1e5:
            # A standard error at the size of the mean's rounding keeps few digits.
            assert result[name] == pytest.approx(value, rel=1e-2), name
            continue
        rel, absolute = (1e-4, 1e-6) if name in CANCELLING else (1e-6, 1e-9)
        assert result[name] == pytest.approx(value, rel=rel, abs=absolute), name
    return set(expected)


@dear(500)
@given(batches())
def test_metrics_equal_their_definitions(batch):
    compared = assert_as_defined(batch)
    assert len(compared) > len(METRICS) - 10


@pytest.mark.parametrize("seed", range(5))
def test_every_metric_of_a_larger_batch_equals_its_definition(seed):
    assert assert_as_defined(seeded_batch(seed, sequences=200)) == set(METRICS)


@pytest.mark.parametrize("seed", range(3))
def test_every_metric_of_grouped_sequences_equals_its_definition(seed):
    clusters = np.random.default_rng(seed).integers(0, 12, size=90).tolist()
    batch = seeded_batch(seed, sequences=90, sd=0.05)
    assert assert_as_defined(batch, clusters) == set(METRICS)


def test_every_metric_is_in_one_family_and_has_a_description():
    names = [name for family in FAMILIES.values() for name in family.metrics]
    assert sorted(names) == sorted(METRICS)
    assert len(names) == len(METRICS) > 50
    for name, metric in METRICS.items():
        assert metric.label, name
        assert metric.says, name


@pytest.mark.parametrize("spread", [1e-4, 1e-5, 1e-6, 1e-7])
def test_pearson_of_a_very_confident_policy_is_accurate_or_nan(spread):
    random = np.random.default_rng(3)
    behavior = -spread * random.exponential(size=2000)
    target = behavior * random.uniform(0.5, 1.5, size=2000)
    expected = pearsonr(-np.expm1(behavior), -np.expm1(target)).statistic
    result = metrics([behavior.tolist()], [target.tolist()])["prob_pearson"]
    assert np.isnan(result) or result == pytest.approx(expected, abs=1e-3)


@given(batches())
def test_pearson_is_within_its_range_or_undefined(batch):
    result = values_of(make_state(*batch))["prob_pearson"]
    assert result is None or -1 - 1e-3 <= result <= 1 + 1e-3


@given(st.floats(-20.0, 0.0), st.lists(st.floats(-20.0, 0.0), min_size=1, max_size=10))
def test_pearson_with_a_constant_side_is_undefined(constant, other):
    assert values_of(make_state([[constant] * len(other)], [other]))["prob_pearson"] is None
