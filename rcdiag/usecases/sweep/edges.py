"""The bin of every value between ascending edges, by a table of the values' leading bits."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# Cells of a table, half a megabyte: what a processor's cache holds beside the values.
MOST_CELLS = 1 << 17


class Edges(Struct, frozen=True):
    """Ascending edges above 0, and a table that finds the bin of a value near them.

    The bits of floats above 0 are in the order of the floats. What is left of them after a shift
    is a cell, which knows how many edges lie before it; those inside it are asked one by one.
    """

    edges: Array  # followed by infinity
    shift: int
    first: int  # number of the first cell
    before: Index  # [cells] edges in the cells before each
    inside: int  # the most edges of one cell

    @classmethod
    def of(cls, edges: Array) -> Edges | None:
        """Make the table of some edges; None where one is not above 0."""
        if not len(edges) or not edges[0] > 0.0:
            return None
        bits = edges.view(np.int64)
        shift = 1
        while (int(bits[-1]) >> shift) - (int(bits[0]) >> shift) + 3 > MOST_CELLS:
            shift += 1
        cells = bits >> shift
        first = int(cells[0]) - 1
        before = np.searchsorted(cells, np.arange(first, int(cells[-1]) + 2))
        most = int(np.diff(np.append(before, len(edges))).max())
        return cls(np.append(edges, np.inf), shift, first, before, most)

    def bins(self, values: NDArray[np.floating]) -> Index:
        """Return the bin of each value: the number of edges below it, and of NaN all of them."""
        values = np.ascontiguousarray(values, np.float64)
        cells = values.view(np.int64) >> self.shift
        signed = bool(len(cells)) and int(cells.min()) < 0
        cells -= self.first
        bins = self.before.take(cells, mode="clip")  # values beyond the cells are in the outer ones
        for _ in range(self.inside):
            bins += values > self.edges.take(bins)
        if signed:  # the bits of a NaN may have a sign, which those of no larger value have
            bins[np.isnan(values)] = len(self.edges) - 1
        return bins
