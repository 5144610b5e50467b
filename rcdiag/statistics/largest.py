"""The largest values of every bin are looked for, at most one of each sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.ratios import Array

Places = NDArray[np.int64]

PER_BIN = 6
# The search begins with the largest value of each of so many groups of sequences in each bin.
GROUPS = 256


def largest_of_bins(
    bins: NDArray[np.integer], size: Array, starts: Places, count: int
) -> tuple[Places, NDArray[np.integer]]:
    """Return the places of the PER_BIN largest sizes of every bin, and their bins.

    `bins` and `size` are [values]; the bin `count` is none, and NaN is no size. `starts`
    [sequences] are the first values of each sequence, of which a bin takes one at most: the first
    of its largest. Of equal sizes the earlier come first.
    """
    groups = min(len(starts), GROUPS)
    edges = np.linspace(0, len(starts), groups + 1).astype(np.int64)[:-1]
    lengths = np.diff(starts[edges], append=len(size))
    cells = np.repeat(np.arange(groups) * (count + 1), lengths)
    cells += bins
    undefined = np.isnan(size)
    numbers = np.where(undefined, -np.inf, size) if undefined.any() else size
    by_cell = np.full(groups * (count + 1), -np.inf)
    np.maximum.at(by_cell, cells, numbers)
    top = by_cell.reshape(groups, count + 1)
    # Of PER_BIN groups or more, none of the largest can be less than the last of their tops.
    least = np.full(count + 1, -np.inf)
    if groups > PER_BIN:
        least = np.partition(top, -PER_BIN, axis=0)[-PER_BIN]
    least[count] = np.inf
    if groups == len(starts):  # each group is one sequence, of which only its top can be taken
        reached = np.where((top >= least) & (top > -np.inf), top, np.inf)
    else:
        reached = np.maximum(np.broadcast_to(least, top.shape), np.nextafter(-np.inf, 0.0))
    among = np.flatnonzero(numbers >= reached.reshape(-1)[cells])
    among = among[bins[among] < count]
    sequence = np.searchsorted(starts, among, side="right") - 1
    return one_of_each(among, bins[among], numbers[among], sequence)


def one_of_each(
    places: Places, bins: NDArray[np.integer], size: Array, sequence: Places
) -> tuple[Places, NDArray[np.integer]]:
    """Return of some places the PER_BIN largest sizes of every bin, one of each sequence.

    All are [places]; of equal sizes those that stand first are taken.
    """
    order = np.lexsort((-size, bins))
    places, bins, sequence = places[order], bins[order], sequence[order]
    if not len(places):
        return places, bins
    keys = bins.astype(np.int64) * (int(sequence.max()) + 1) + sequence
    kept = np.sort(np.unique(keys, return_index=True)[1])
    places, bins = places[kept], bins[kept]
    starts = np.flatnonzero(np.concatenate([[True], bins[1:] != bins[:-1]]))
    rank = np.arange(len(bins)) - np.repeat(starts, np.diff(np.append(starts, len(bins))))
    return places[rank < PER_BIN], bins[rank < PER_BIN]
