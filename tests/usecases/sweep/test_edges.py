"""The table of leading bits finds the same bins as a search, of any value."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.usecases.sweep.edges import Edges

GRIDS = {
    "even": np.geomspace(1e-5, 20.0, 1000),
    "near 1": np.exp(np.geomspace(0.02, np.log(100.0), 1000)),
    "one": np.array([0.3]),
    "neighbours": np.array([0.5, np.nextafter(0.5, 1.0), np.nextafter(0.5, 2.0) + 1e-15, 4.0]),
    "tiny": np.array([5e-324, 1e-300, 1e300]),
}


@pytest.mark.parametrize("edges", GRIDS.values(), ids=GRIDS)
def test_bins_are_those_of_a_search(edges):
    draw = np.random.default_rng(0)
    near = np.concatenate([edges, np.nextafter(edges, 0.0), np.nextafter(edges, np.inf)])
    odd = [0.0, -0.0, -1.0, 1e308, np.inf, -np.inf, np.nan, -np.nan, np.copysign(np.nan, -1.0)]
    values = np.concatenate([near, odd, np.exp(draw.normal(0.0, 8.0, 5000))])
    found = Edges.of(edges)
    assert found is not None
    np.testing.assert_array_equal(found.bins(values), np.searchsorted(edges, values))
    without_sign = np.abs(values[~np.isnan(values)])
    np.testing.assert_array_equal(found.bins(without_sign), np.searchsorted(edges, without_sign))


@pytest.mark.parametrize("edges", [[], [0.0, 1.0], [-2.0, 1.0], [np.nan]])
def test_edges_that_are_not_above_zero_have_no_table(edges):
    assert Edges.of(np.array(edges, np.float64)) is None
