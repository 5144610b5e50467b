"""Cluster-bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.statistics.mismatch import mismatch
from rcdiag.statistics.table import SequenceTable, concatenate
from tests.builders import make_sequences
from tests.statistics.strategies import seeded_batch


def grouped_table(seed: int, groups: int = 30, size: int = 6) -> SequenceTable:
    """Sequences of one prompt share an offset of their log-ratio: strongly dependent."""
    random = np.random.default_rng(seed)
    behavior, target, cluster = [], [], []
    for group in range(groups):
        offset = random.normal(0.0, 0.3)
        for _ in range(size):
            row = -random.exponential(1.0, size=10) - 3.0
            behavior.append(row.tolist())
            target.append((row + offset + random.normal(0, 0.05, size=10)).tolist())
            cluster.append(group)
    return make_sequences(behavior, target, cluster)


def with_clusters(table: SequenceTable, cluster: np.ndarray) -> SequenceTable:
    parts = table.sums, table.maxima, table.logs
    return SequenceTable(table.lengths, *parts, cluster.astype(np.uint64), table.step)


def test_intervals_are_the_same_for_the_same_seed_and_differ_for_another():
    table = grouped_table(0)
    assert mismatch(table, seed=1) == mismatch(table, seed=1)
    assert mismatch(table, seed=1)["k2_kl"].low != mismatch(table, seed=2)["k2_kl"].low
    assert mismatch(table, seed=1)["k2_kl"].value == mismatch(table, seed=2)["k2_kl"].value


def test_intervals_contain_the_value_of_well_behaved_metrics():
    for seed in range(5):
        found = mismatch(make_sequences(*seeded_batch(seed, sequences=100)), seed=0)
        for name in ("k1_kl", "k2_kl", "k3_kl", "log_ratio_abs_mean", "prob_diff_mean"):
            value = found[name]
            assert value.low < value.value < value.high, name


def test_a_single_cluster_has_no_interval():
    table = make_sequences([[-1.0], [-2.0]], [[-1.1], [-2.2]], cluster=[7, 7])
    for name, value in mismatch(table, seed=0).items():
        assert (value.low, value.high) == (None, None), name


def test_maxima_have_no_interval():
    found = mismatch(grouped_table(0), seed=0)
    for name in ("log_ratio_abs_max", "prob_diff_max"):
        assert (found[name].low, found[name].high) == (None, None)


def test_equal_policies_have_intervals_of_no_width():
    behavior, _ = seeded_batch(0)
    found = mismatch(make_sequences(behavior, behavior), seed=0)
    assert (found["k3_kl"].low, found["k3_kl"].high) == (0.0, 0.0)
    assert (found["ess_seq"].low, found["ess_seq"].high) == pytest.approx((1.0, 1.0))


def test_each_cluster_doubled_within_itself_leaves_the_interval():
    table = grouped_table(0)
    once, twice = mismatch(table, seed=0), mismatch(concatenate([table, table]), seed=0)
    for name in ("k1_kl", "k2_kl", "k3_kl", "ess_token", "ess_seq", "behavior_ppl"):
        assert twice[name].low == pytest.approx(once[name].low), name
        assert twice[name].high == pytest.approx(once[name].high), name


def test_doubled_data_taken_for_independent_narrows_the_interval():
    table = make_sequences(*seeded_batch(0, sequences=200))
    doubled = concatenate([table, table])
    apart = with_clusters(doubled, np.arange(len(doubled)))
    once, twice = mismatch(table, seed=0)["k2_kl"], mismatch(apart, seed=0)["k2_kl"]
    narrower = (twice.high - twice.low) / (once.high - once.low)
    assert narrower == pytest.approx(2**-0.5, rel=0.15)


def test_group_names_do_not_matter():
    table = grouped_table(0)
    renamed = with_clusters(table, table.cluster * np.uint64(1_000_003) + np.uint64(17))
    assert mismatch(renamed, seed=0) == mismatch(table, seed=0)


def test_prompt_groups_cover_the_truth_where_sequences_alone_do_not():
    """The mean offset is 0, so E[k1] is 0: 95% intervals should hold it about 95 times in 100."""
    grouped = alone = 0
    runs = 150
    for seed in range(runs):
        table = grouped_table(seed, groups=30, size=6)
        value = mismatch(table, seed=0)["k1_kl"]
        grouped += value.low <= 0.0 <= value.high
        value = mismatch(with_clusters(table, np.arange(len(table))), seed=0)["k1_kl"]
        alone += value.low <= 0.0 <= value.high
    assert grouped / runs >= 0.88
    assert alone / runs <= 0.7
