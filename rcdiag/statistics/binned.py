"""Sum the tokens of a batch in bins along several axes, once for all users of bins."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.statistics import clusters
from rcdiag.statistics.clusters import ClusterIndex, grouping
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import RATIO_SUMS, Array
from rcdiag.table.trajectories import starts_of

Places = NDArray[np.int64]

# Number of examples per bin, at most one per sequence.
PER_BIN = 6
# The search for examples starts with the maximum of each bin over each of GROUPS groups of
# sequences, using about SPREAD evenly spaced values.
GROUPS, SPREAD = 256, 1 << 13

# What is summed in each bin: 1 for each token, and formulas of `RATIO_SUMS` by their names.
SUMS = ("tokens", "log_ratio", "k2", "k3")


class BinNumbers(Struct, frozen=True):
    """The bin of each token, or of each sequence, along one axis; `count` itself means no bin."""

    numbers: NDArray[np.integer]  # [tokens], or [sequences] if all tokens of a sequence share it
    count: int


class BinnedTokens(Struct, frozen=True):
    """Binned sums of the tokens of a batch, and the largest tokens of bins."""

    clusters: ClusterIndex  # of the sequences of the batch
    cells: Mapping[str, Array]  # axis -> [clusters, bins, SUMS]
    largest: Mapping[str, tuple[Places, NDArray[np.integer]]]  # axis -> token indices, their bins


def binned_tokens(
    pair: PolicyPair,
    axes: Mapping[str, BinNumbers],
    *,
    added: Collection[str],
    shown: Collection[str] = (),
) -> BinnedTokens:
    """Sum the tokens of a batch by cluster and bin along the axes `added`.

    For the axes in `shown`, the largest tokens of every bin are found.
    """
    ratios, lengths = pair.values.ratios, pair.lengths
    size = ratios.size
    starts, every = starts_of(lengths), np.arange(len(lengths))
    groups = grouping(pair.tokens.cluster, clusters.MAX_CLUSTERS)
    with np.errstate(over="ignore", invalid="ignore"):
        of_tokens = [np.ones(len(size)), *(RATIO_SUMS[name](ratios) for name in SUMS[1:])]
        of_sequences = [np.add.reduceat(column, starts) for column in of_tokens]
        of_each = np.fmax.reduceat(size, starts)
    owner = np.repeat(groups.index, lengths)
    first_of_each = _first_of(of_each, size, lengths)
    cells, largest = {}, {}
    for name, bins in axes.items():
        by_sequence = len(bins.numbers) == len(lengths)
        if name in added:
            columns, of = (of_sequences, groups.index) if by_sequence else (of_tokens, owner)
            cells[name] = by_cluster_and_bin(columns, of, len(groups.keys), bins)
        if name in shown:
            sizes, begins = (of_each, every) if by_sequence else (size, starts)
            some, numbers = largest_of_bins(bins.numbers, sizes, begins, bins.count)
            largest[name] = (first_of_each[some] if by_sequence else some), numbers
    return BinnedTokens(groups, cells, largest)


def _first_of(largest: Array, size: Array, lengths: NDArray[np.int64]) -> Places:
    """Return the first token of each sequence with its largest size, [sequences]; 0 if all are NaN.

    `largest` are the largest sizes, [sequences].
    """
    places = np.flatnonzero(size == np.repeat(largest, lengths))[::-1]
    first = np.zeros(len(lengths), np.int64)
    first[np.searchsorted(np.cumsum(lengths), places, side="right")] = places  # the last one stays
    return first


def by_cluster_and_bin(
    columns: Iterable[Array], owner: NDArray[np.int64], clusters: int, bins: BinNumbers
) -> Array:
    """Sum the columns SUMS of tokens, or of sequences: [clusters, bins, SUMS].

    `owner` are their cluster numbers, below `clusters`.
    """
    width = bins.count + 1
    cells = owner * width + bins.numbers
    sums = [np.bincount(cells, column, clusters * width) for column in columns]
    of_cells = np.stack(sums, axis=1).astype(np.float64, copy=False)
    return of_cells.reshape(clusters, width, len(SUMS))[:, :-1]


def largest_of_bins(
    bins: NDArray[np.integer], size: Array, starts: Places, count: int
) -> tuple[Places, NDArray[np.integer]]:
    """Return the indices of the PER_BIN largest sizes of every bin, and their bins.

    `bins` and `size` are [tokens]; the bin `count` means no bin, and NaN is ignored. `starts`
    [sequences] are the first tokens of each sequence; a bin gets at most one token per sequence,
    the first of the largest. Ties are in order of index.
    """
    bounds = _lower_bounds(bins, size, starts, count)
    among = np.flatnonzero(size >= bounds[bins])  # False for NaN
    sequence = np.searchsorted(starts, among, side="right") - 1
    if len(starts) <= GROUPS:  # with few sequences, a bin may have many values of one sequence
        cells = sequence * count + bins[among]
        tops = np.full(len(starts) * count, -np.inf)
        np.maximum.at(tops, cells, size[among])
        top = size[among] == tops[cells]
        among, sequence = among[top], sequence[top]
    return _one_of_each(among, bins[among], size[among], sequence)


def _lower_bounds(bins: NDArray[np.integer], size: Array, starts: Places, count: int) -> Array:
    """Return for each bin a lower bound on its PER_BIN largest sizes, [count + 1].

    The bound is the PER_BIN-th largest of the maxima of groups of sequences.
    """
    groups = min(len(starts), GROUPS)
    least = np.full(count + 1, np.nextafter(-np.inf, 0.0))
    if groups > PER_BIN:
        step = max(len(size) // SPREAD, 1)
        edges = np.linspace(0, len(starts), groups + 1).astype(np.int64)[:-1]
        before = -(-starts[edges] // step)  # number of inspected values before each group
        some = size[::step]
        cells = np.repeat(np.arange(groups) * (count + 1), np.diff(before, append=len(some)))
        cells += bins[::step]
        top = np.full(groups * (count + 1), -np.inf)
        np.fmax.at(top, cells, some)
        tops = top.reshape(groups, count + 1)
        least = np.maximum(np.partition(tops, -PER_BIN, axis=0)[-PER_BIN], least)
    least[count] = np.nan  # no size is >= NaN
    return least


def _one_of_each(
    places: Places, bins: NDArray[np.integer], size: Array, sequence: Places
) -> tuple[Places, NDArray[np.integer]]:
    """Return the PER_BIN largest sizes of every bin, at most one per sequence.

    All arguments are [places]; ties are in the given order.
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
