"""The largest values of every bin are looked for, at most one of each sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.ratios import Array

Places = NDArray[np.int64]

PER_BIN = 6
# The search begins with the largest value of each of so many groups of sequences in each bin, among
# about so many of the values, evenly spread.
GROUPS, SPREAD = 256, 1 << 13


def largest_of_bins(
    bins: NDArray[np.integer], size: Array, starts: Places, count: int
) -> tuple[Places, NDArray[np.integer]]:
    """Return the places of the PER_BIN largest sizes of every bin, and their bins.

    `bins` and `size` are [values]; the bin `count` is none, and NaN is no size. `starts`
    [sequences] are the first values of each sequence, of which a bin takes one at most: the first
    of its largest. Of equal sizes the earlier come first.
    """
    reached = _reached(bins, size, starts, count)
    among = np.flatnonzero(size >= reached[bins])  # NaN reaches nothing
    sequence = np.searchsorted(starts, among, side="right") - 1
    if len(starts) <= GROUPS:  # few sequences, of which bins may have many values
        cells = sequence * count + bins[among]
        tops = np.full(len(starts) * count, -np.inf)
        np.maximum.at(tops, cells, size[among])
        top = size[among] == tops[cells]
        among, sequence = among[top], sequence[top]
    return one_of_each(among, bins[among], size[among], sequence)


def _reached(bins: NDArray[np.integer], size: Array, starts: Places, count: int) -> Array:
    """Return a size that none of the largest of each bin is below, [count + 1].

    Of PER_BIN groups or more, each with its largest, none can be less than the last of these.
    """
    groups = min(len(starts), GROUPS)
    least = np.full(count + 1, np.nextafter(-np.inf, 0.0))
    if groups > PER_BIN:
        step = max(len(size) // SPREAD, 1)
        edges = np.linspace(0, len(starts), groups + 1).astype(np.int64)[:-1]
        before = -(-starts[edges] // step)  # values that are looked at before each group
        some = size[::step]
        cells = np.repeat(np.arange(groups) * (count + 1), np.diff(before, append=len(some)))
        cells += bins[::step]
        top = np.full(groups * (count + 1), -np.inf)
        np.fmax.at(top, cells, some)
        tops = top.reshape(groups, count + 1)
        least = np.maximum(np.partition(tops, -PER_BIN, axis=0)[-PER_BIN], least)
    least[count] = np.nan  # which no size reaches
    return least


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
