"""Tokens by sequence and bin between thresholds: what all thresholds are added up from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """Settings [lower, upper], bounds included, as runs of bins.

    Bin j holds values v with edges[j - 1] < v <= edges[j]; what is above all edges, and NaN, is
    in the last bin, which no setting reaches. `v >= lower` is `v > the float before lower`.
    """

    edges: Array  # ascending
    first: Index  # [settings] first bin of each
    last: Index  # [settings] last bin of each; before the first where nothing fits

    @classmethod
    def of(cls, lower: Array, upper: Array) -> Window:
        before = np.nextafter(lower, -np.inf)
        edges = np.unique(np.concatenate([before[lower > -np.inf], upper]))
        first = np.where(lower > -np.inf, np.searchsorted(edges, before) + 1, 0)
        return cls(edges, first, np.searchsorted(edges, upper))

    @property
    def key(self) -> bytes:
        """The same for the same settings."""
        return self.edges.tobytes() + self.first.tobytes() + self.last.tobytes()


def table(
    owner: Index, bins: Index, rows: int, columns: int, values: NDArray[np.floating] | None
) -> Array:
    """Sums of `values` [tokens] (or counts) by sequence and bin, [rows, columns]."""
    sums = np.bincount(owner * columns + bins, values, rows * columns)
    return sums.reshape(rows, columns).astype(np.float64, copy=False)


def inside(found: Array, window: Window) -> Array:
    """Sums over the bins of each setting, [rows, settings].

    Added up from each lower bound on: a difference of two sums from the start would lose the
    digits of small ratios beside large ones.
    """
    sums = np.zeros((len(found), len(window.first)))
    for first in np.unique(window.first):
        wanted = np.flatnonzero((window.first == first) & (window.last >= first))
        if len(wanted):
            last = window.last[wanted]
            upward = np.cumsum(found[:, first : last.max() + 1], axis=1)
            sums[:, wanted] = upward[:, last - first]
    return sums


def above(found: Array) -> Array:
    """Sums over all bins above each edge, [rows, edges]."""
    return np.cumsum(found[:, :0:-1], axis=1)[:, ::-1]


def excess_above(counts: Array, over: Array, edges: Array) -> Array:
    """Sum of (value - edge)+ for each edge, [rows, edges].

    `over` holds sums of value - the edge below, by bin. X_k = X_{k+1} + over_{k+1} +
    (edge_{k+1} - edge_k) #(above edge_{k+1}): all terms are positive, so no digits are lost.
    """
    steps = over[:, 1:].copy()
    steps[:, :-1] += np.diff(edges) * above(counts)[:, 1:]
    return np.cumsum(steps[:, ::-1], axis=1)[:, ::-1]
