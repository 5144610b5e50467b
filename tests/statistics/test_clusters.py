"""Sums by cluster."""

from __future__ import annotations

import numpy as np

from rcdiag.statistics.clusters import added_by_index, cluster_sums


def test_rows_are_added_to_their_cluster():
    draw = np.random.default_rng(0)
    rows, index = draw.normal(size=(1000, 7, 2)), draw.integers(0, 40, 1000)
    expected = np.stack([rows[index == one].sum(axis=0) for one in range(41)])
    np.testing.assert_allclose(added_by_index(index, rows, 41), expected, rtol=1e-12, atol=1e-12)
    counts = draw.integers(0, 9, (1000, 7)).astype(np.float32)
    expected = np.stack([counts[index == one].sum(axis=0) for one in range(40)])
    np.testing.assert_array_equal(added_by_index(index, counts, 40), expected)
    assert added_by_index(index[:0], rows[:0], 3).tolist() == np.zeros((3, 7, 2)).tolist()


def test_too_many_clusters_share_rows_from_the_start():
    keys = np.arange(10, dtype=np.uint64)
    sums = cluster_sums(keys, np.arange(20.0).reshape(10, 2), 4)
    assert sums.folded
    assert sums.keys.tolist() == [0, 1, 2, 3]
    assert sums.sums[:, 0].tolist() == [0 + 8 + 16, 2 + 10 + 18, 4 + 12, 6 + 14]
