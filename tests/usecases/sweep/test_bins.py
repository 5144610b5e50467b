"""Sums over windows from cumulative sums equal those of a loop over the windows."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.usecases.sweep.bins import BinWindows, excess_above

INF = np.inf
WINDOWS = {
    "upper bounds": ([-INF] * 3, [0.5, 1.0, 2.0]),
    "lower bounds": ([0.1, 0.5, 2.0], [INF] * 3),
    "any": ([0.5, 0.1, 1.0, 0.5], [1.0, 5.0, 1.0, 0.7]),
    "one": ([0.5], [2.0]),
    "nothing fits": ([2.0, 0.5], [1.0, 3.0]),
    "nothing fits in one": ([2.0], [1.0]),
    "neighbours": ([0.5, np.nextafter(0.5, 1.0)], [0.5, 1.0]),
}


@pytest.mark.parametrize("bounds", WINDOWS.values(), ids=WINDOWS)
def test_sums_inside_and_outside_of_windows(bounds):
    lower, upper = (np.array(each) for each in bounds)
    draw = np.random.default_rng(0)
    values = np.concatenate([lower, upper, draw.lognormal(0.0, 2.0, 200), [0.0, -1.0, INF, np.nan]])
    weights = draw.random(len(values))
    windows = BinWindows.between(lower, upper)
    bins = np.searchsorted(windows.edges, values)
    binned = np.bincount(bins, weights, windows.count)
    fits = (values[:, None] >= lower) & (values[:, None] <= upper)
    inside = (fits * weights[:, None]).sum(axis=0)
    np.testing.assert_allclose(windows.inside(binned), inside, 1e-12, 1e-12)
    np.testing.assert_allclose(windows.outside(binned), weights.sum() - inside, 1e-12, 1e-12)
    several = windows.inside(np.stack([binned, 2.0 * binned]))
    np.testing.assert_allclose(several, [inside, 2.0 * inside], 1e-12, 1e-12)


def test_the_excess_over_each_edge():
    edges, values = np.array([0.5, 1.0, 4.0]), np.array([0.1, 0.5, 0.6, 1.0, 2.0, 9.0])
    bins = np.searchsorted(edges, values)
    counts = np.bincount(bins, minlength=4).astype(float)[None]
    over = np.bincount(bins, values - np.append(0.0, edges)[bins], 4)[None]
    expected = np.maximum(values[:, None] - edges, 0.0).sum(axis=0)
    assert excess_above(counts, over, edges)[0] == pytest.approx(expected)
