"""Sum the tokens of a block in bins along several axes, once for all users of bins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.statistics import clusters
from rcdiag.statistics.clusters import ClusterIndex, grouping
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import Array, k3
from rcdiag.table.trajectories import starts_of

Places = NDArray[np.int64]

# Number of examples per bin, at most one per sequence.
PER_BIN = 6
# The search for examples starts with the maximum of each bin over each of GROUPS groups of
# sequences, using about SPREAD evenly spaced values.
GROUPS, SPREAD = 256, 1 << 13

# The sums of each bin: number of tokens, log_ratio, log_ratio^2, k3.
SUMS = 4


class BinNumbers(Struct, frozen=True):
    """The bin of each token, or of each sequence, along one axis; `count` itself means no bin."""

    numbers: NDArray[np.integer]  # [tokens], or [sequences] if all tokens of a sequence share it
    count: int


class BlockBins(Struct, frozen=True):
    """Binned sums of one block; indices of tokens count from the block's first."""

    tokens: int
    clusters: NDArray[np.int64]  # [clusters in the block] cluster numbers in the batch, ascending
    cells: Mapping[str, Array]  # axis -> [clusters in the block, bins, SUMS]
    largest: Mapping[str, tuple[Places, NDArray[np.integer]]]  # axis -> token indices, their bins


class BatchBins(Struct, frozen=True):
    """Binned sums of all blocks of a batch."""

    clusters: ClusterIndex  # of the sequences of the batch
    cells: Mapping[str, Array]  # axis -> [clusters, bins, SUMS]
    largest: Mapping[str, tuple[Places, NDArray[np.integer]]]


def block_bins(
    block: PolicyPair,
    cluster: NDArray[np.int64],
    axes: Mapping[str, BinNumbers],
    *,
    added: Collection[str],
    shown: Collection[str] = (),
) -> BlockBins:
    """Sum the tokens of a block by cluster and bin along the axes `added`.

    `cluster` [sequences] are cluster numbers in the batch. For the axes in `shown`, the largest
    tokens of every bin are kept.
    """
    log_ratio, size, lengths = block.log_ratio, block.values.ratios.size, block.lengths
    starts = starts_of(lengths)
    keys, local = np.unique(cluster, return_inverse=True)
    with np.errstate(over="ignore", invalid="ignore"):
        of_tokens = [np.ones(len(size)), log_ratio, np.square(log_ratio), k3(block.values.ratios)]
        of_sequences = [np.add.reduceat(column, starts) for column in of_tokens]
        of_each = np.fmax.reduceat(size, starts)
    owner, every = np.repeat(local, lengths), np.arange(len(lengths))
    first_of_each = _first_of(of_each, size, lengths)
    cells, largest = {}, {}
    for name, bins in axes.items():
        by_sequence = len(bins.numbers) == len(lengths)
        if name in added:
            columns, of = (of_sequences, local) if by_sequence else (of_tokens, owner)
            cells[name] = by_cluster_and_bin(columns, of, len(keys), bins)
        if name in shown:
            sizes, begins = (of_each, every) if by_sequence else (size, starts)
            some, numbers = largest_of_bins(bins.numbers, sizes, begins, bins.count)
            largest[name] = (first_of_each[some] if by_sequence else some), numbers
    return BlockBins(len(size), keys, cells, largest)


def _first_of(largest: Array, size: Array, lengths: NDArray[np.int64]) -> Places:
    """Return the first token of each sequence with its largest size, [sequences]; 0 if all are NaN.

    `largest` are the largest sizes, [sequences].
    """
    places = np.flatnonzero(size == np.repeat(largest, lengths))[::-1]
    first = np.zeros(len(lengths), np.int64)
    first[np.searchsorted(np.cumsum(lengths), places, side="right")] = places  # the last one stays
    return first


def batch_bins(
    pair: PolicyPair, sort: Callable[[PolicyPair], Mapping[str, BinNumbers]]
) -> BatchBins:
    """Sum a batch block by block along all axes of `sort`, which returns the bins of a block."""
    groups = clusters_of(pair)
    blocks = []
    for block, cluster in zip(pair.blocks, cut_like_blocks(pair, groups.index), strict=True):
        axes = sort(block)
        blocks.append(block_bins(block, cluster, axes, added=axes))
    return joined_bins(blocks, groups)


def clusters_of(pair: PolicyPair) -> ClusterIndex:
    """Group the sequences of a batch by cluster, with as many groups as `ClusterSums` may have."""
    return grouping(pair.tokens.cluster, clusters.MAX_CLUSTERS)


def cut_like_blocks(pair: PolicyPair, values: NDArray[Any]) -> list[NDArray[Any]]:
    """Split values, [sequences] or [tokens], at the borders of a pair's blocks."""
    sizes = [len(block.lengths) for block in pair.blocks]
    if len(values) != len(pair.lengths):
        sizes = [len(block.tokens.token_id) for block in pair.blocks]
    return np.split(values, np.cumsum(sizes)[:-1])


def by_cluster_and_bin(
    columns: Iterable[Array], owner: NDArray[np.int64], clusters: int, bins: BinNumbers
) -> Array:
    """Sum SUMS columns of tokens, or of sequences: [clusters, bins, SUMS].

    `owner` are their cluster numbers, below `clusters`.
    """
    width = bins.count + 1
    cells = owner * width + bins.numbers
    sums = [np.bincount(cells, column, clusters * width) for column in columns]
    of_cells = np.stack(sums, axis=1).astype(np.float64, copy=False)
    return of_cells.reshape(clusters, width, SUMS)[:, :-1]


def joined_bins(blocks: Sequence[BlockBins], groups: ClusterIndex) -> BatchBins:
    """Combine the binned sums of a batch's blocks, in order; `groups` clusters its sequences."""
    first = np.cumsum([0, *(block.tokens for block in blocks)]).tolist()
    cells = {}
    for name, some in blocks[0].cells.items():
        cells[name] = np.zeros((len(groups.keys), *some.shape[1:]))
        with np.errstate(invalid="ignore"):
            for block in blocks:
                cells[name][block.clusters] += block.cells[name]
    largest = {}
    for name in blocks[0].largest:
        of_blocks = [block.largest[name] for block in blocks]
        places = [some + before for before, (some, _) in zip(first, of_blocks, strict=False)]
        largest[name] = np.concatenate(places), np.concatenate([bins for _, bins in of_blocks])
    return BatchBins(groups, cells, largest)


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
    return one_of_each(among, bins[among], size[among], sequence)


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


def one_of_each(
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
