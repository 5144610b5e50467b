"""Sums by cluster are the same by either way to add them up."""

from __future__ import annotations

import numpy as np

from rcdiag.statistics import clusters
from rcdiag.statistics.clusters import added_by_index, cluster_sums


def test_many_rows_add_up_as_few_do(monkeypatch):
    draw = np.random.default_rng(0)
    rows, index = draw.normal(size=(1000, 7)), draw.integers(0, 40, 1000)
    few = added_by_index(index, rows, 40)
    monkeypatch.setattr(clusters, "MANY", 100)
    monkeypatch.setattr(clusters, "ROWS_AT_ONCE", 64)
    np.testing.assert_allclose(added_by_index(index, rows, 40), few, rtol=1e-12, atol=1e-12)
    counts = draw.integers(0, 9, (1000, 7)).astype(np.float32)
    expected = np.stack([counts[index == one].sum(axis=0) for one in range(40)])
    np.testing.assert_array_equal(added_by_index(index, counts, 40), expected)


def test_too_many_clusters_share_rows_from_the_start():
    keys = np.arange(10, dtype=np.uint64)
    sums = cluster_sums(keys, np.arange(20.0).reshape(10, 2), 4)
    assert sums.folded
    assert sums.keys.tolist() == [0, 1, 2, 3]
    assert sums.sums[:, 0].tolist() == [0 + 8 + 16, 2 + 10 + 18, 4 + 12, 6 + 14]
