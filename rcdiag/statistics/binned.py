"""Sort the tokens of a block into bins and sum them there, once for all users of bins.

Most bins consist of runs: consecutive tokens, such as a whole sequence or a range of positions.
Runs are summed as a whole; tokens are binned one by one only if a run may span several bins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
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
# Name of the partition into whole sequences; other partitions have the name of their axis.
BY_SEQUENCE = ""


class Runs(Struct, frozen=True):
    """A partition of tokens into runs of consecutive tokens of one sequence, with their sums."""

    first: Places  # [runs] index of the first token of each run, ascending
    sequence: Places  # [runs] the sequence of each run, ascending
    sums: Array  # [runs, SUMS]
    largest: Array  # [runs] maximum |log_ratio|, nats; NaN if no token has a number

    def ends(self, tokens: int) -> Places:
        """Return the end (last index + 1) of each run, [runs]; `tokens` is the number of tokens."""
        return np.append(self.first[1:], tokens)


class BinNumbers(Struct, frozen=True):
    """The bin of each run or token along one axis; the number `count` means no bin."""

    numbers: NDArray[np.integer]
    count: int


class SortedBlock(Struct, frozen=True):
    """The bins of a block's tokens along several axes, before anything is summed."""

    # Partition -> first token and sequence of each of its runs.
    cuts: dict[str, tuple[Places, Places]] = field(default_factory=dict)
    runs: dict[str, tuple[str, NDArray[Any]]] = field(default_factory=dict)  # as in `BlockBins`
    tokens: dict[str, BinNumbers] = field(default_factory=dict)  # axis -> bin of each token

    @classmethod
    def of(cls, block: PolicyPair) -> SortedBlock:
        """Return the partition of a block into sequences, without any axis yet."""
        starts = starts_of(block.lengths)
        return cls({BY_SEQUENCE: (starts, np.arange(len(starts)))})

    def by_run(self, axis: str, cuts: tuple[Places, Places], values: NDArray[Any]) -> None:
        """Add an axis: the first token and sequence of its runs, and one value per run."""
        self.cuts[axis] = cuts
        self.runs[axis] = axis, values


class BlockBins(Struct, frozen=True):
    """Binned sums of one block; indices and sequences count from the block's first."""

    tokens: int
    sequences: int
    parts: Mapping[str, Runs]  # by partition
    # Axis -> partition, and for each run its bin, or the value from which bins are made later.
    runs: Mapping[str, tuple[str, NDArray[Any]]]
    clusters: NDArray[np.int64]  # [clusters in the block] cluster numbers in the batch, ascending
    cells: Mapping[str, Array]  # token-level axis -> [clusters in the block, bins, SUMS]
    largest: Mapping[str, tuple[Places, NDArray[np.integer]]]  # axis -> token indices, their bins


class BatchBins(Struct, frozen=True):
    """Binned sums of all blocks of a batch."""

    clusters: ClusterIndex  # of the sequences of the batch
    parts: Mapping[str, Runs]
    runs: Mapping[str, tuple[str, NDArray[Any]]]
    cells: Mapping[str, Array]  # token-level axis -> [clusters, bins, SUMS]
    largest: Mapping[str, tuple[Places, NDArray[np.integer]]]

    def of_runs(self, axis: str) -> tuple[Runs, NDArray[Any]]:
        """Return the runs of an axis, and the bin or value of each."""
        partition, values = self.runs[axis]
        return self.parts[partition], values

    def added(self, axis: str, numbers: NDArray[np.integer], count: int) -> Array:
        """Sum the runs of an axis by cluster and bin: [clusters, bins, SUMS].

        `numbers` [runs] are their bins; the number `count` means no bin.
        """
        part, _ = self.of_runs(axis)
        owner = self.clusters.index[part.sequence]
        bins = BinNumbers(numbers, count)
        return by_cluster_and_bin(part.sums.T, owner, len(self.clusters.keys), bins)


def block_bins(
    block: PolicyPair,
    cluster: NDArray[np.int64],
    by_bin: SortedBlock,
    *,
    shown: Sequence[str] = (),
    added: Sequence[str] = (),
) -> BlockBins:
    """Sum the tokens of a block by run, and for token-level axes by cluster and bin.

    `cluster` [sequences] are cluster numbers in the batch. Of the token-level axes, those `added`
    are summed; for those in `shown`, the largest tokens of every bin are kept.
    """
    lengths = block.lengths
    starts, _ = by_bin.cuts[BY_SEQUENCE]
    log_ratio, size = block.log_ratio, block.values.ratios.size
    with np.errstate(over="ignore", invalid="ignore"):
        columns = (log_ratio, np.square(log_ratio), k3(block.values.ratios))
        parts = {
            name: _runs(first, sequence, columns, size)
            for name, (first, sequence) in by_bin.cuts.items()
        }
    keys, local = np.unique(cluster, return_inverse=True)
    axes = {name: bins for name, bins in by_bin.tokens.items() if name in added}
    owner = np.repeat(local, lengths) if axes else local
    return BlockBins(
        tokens=len(log_ratio),
        sequences=len(lengths),
        parts=parts,
        runs=by_bin.runs,
        clusters=keys,
        cells={
            name: by_cluster_and_bin((None, *columns), owner, len(keys), bins)
            for name, bins in axes.items()
        },
        largest={
            name: largest_of_bins(by_bin.tokens[name].numbers, size, starts, count)
            for name in shown
            if name in by_bin.tokens and (count := by_bin.tokens[name].count)
        },
    )


def batch_bins(
    pair: PolicyPair,
    sort: Callable[[PolicyPair], SortedBlock],
    added: Sequence[str] = (),
) -> BatchBins:
    """Process a batch block by block; `sort` returns the bins; `added` as in `block_bins`."""
    groups = clusters_of(pair)
    blocks = [
        block_bins(block, cluster, sort(block), added=added)
        for block, cluster in zip(pair.blocks, cut_like_blocks(pair, groups.index), strict=True)
    ]
    return joined_bins(blocks, groups)


def clusters_of(pair: PolicyPair) -> ClusterIndex:
    """Group the sequences of a batch by cluster, with as many groups as `ClusterSums` may have."""
    return grouping(pair.tokens.cluster, clusters.MAX_CLUSTERS)


def cut_like_blocks(pair: PolicyPair, values: NDArray[Any]) -> list[NDArray[Any]]:
    """Split values [sequences] at the borders of a pair's blocks."""
    edges = np.cumsum([len(block.lengths) for block in pair.blocks])
    return np.split(values, edges[:-1])


def _runs(first: Places, sequence: Places, columns: Sequence[Array], size: Array) -> Runs:
    """Sum runs of tokens: their number, `columns`, and the maximum of `size`."""
    sums = np.empty((len(first), SUMS))
    sums[:, 0] = np.diff(first, append=len(size))
    with np.errstate(over="ignore", invalid="ignore"):
        for index, column in enumerate(columns, start=1):
            sums[:, index] = np.add.reduceat(column, first)
    return Runs(first, sequence, sums, np.fmax.reduceat(size, first))


def by_cluster_and_bin(
    columns: Iterable[Array | None], owner: NDArray[np.int64], clusters: int, bins: BinNumbers
) -> Array:
    """Sum SUMS columns (None: counts) of runs or tokens: [clusters, bins, SUMS].

    `owner` are their cluster numbers, below `clusters`.
    """
    width = bins.count + 1
    cells = owner * width + bins.numbers
    sums = [np.bincount(cells, column, clusters * width) for column in columns]
    of_cells = np.stack(sums, axis=1).astype(np.float64, copy=False)
    return of_cells.reshape(clusters, width, SUMS)[:, :-1]


def joined_bins(blocks: Sequence[BlockBins], groups: ClusterIndex) -> BatchBins:
    """Combine the binned sums of a batch's blocks, in order; `groups` clusters its sequences."""
    tokens = np.cumsum([0, *(block.tokens for block in blocks)]).tolist()
    sequences = np.cumsum([0, *(block.sequences for block in blocks)]).tolist()
    first = blocks[0]
    cells = {}
    for name, some in first.cells.items():
        cells[name] = np.zeros((len(groups.keys), *some.shape[1:]))
        with np.errstate(invalid="ignore"):
            for block in blocks:
                cells[name][block.clusters] += block.cells[name]
    return BatchBins(
        clusters=groups,
        parts={
            name: Runs(
                _joined_indices(tokens, [block.parts[name].first for block in blocks]),
                _joined_indices(sequences, [block.parts[name].sequence for block in blocks]),
                np.concatenate([block.parts[name].sums for block in blocks]),
                np.concatenate([block.parts[name].largest for block in blocks]),
            )
            for name in first.parts
        },
        runs={
            name: (partition, np.concatenate([block.runs[name][1] for block in blocks]))
            for name, (partition, _) in first.runs.items()
        },
        cells=cells,
        largest={
            name: (
                _joined_indices(tokens, [block.largest[name][0] for block in blocks]),
                np.concatenate([block.largest[name][1] for block in blocks]),
            )
            for name in first.largest
        },
    )


def _joined_indices(before: Sequence[int], places: Sequence[Places]) -> Places:
    """Concatenate indices that count from the start of each block."""
    return np.concatenate([some + first for first, some in zip(before, places, strict=False)])


def largest_of_bins(
    bins: NDArray[np.integer], size: Array, starts: Places, count: int
) -> tuple[Places, NDArray[np.integer]]:
    """Return the indices of the PER_BIN largest sizes of every bin, and their bins.

    `bins` and `size` are [values]; the bin `count` means no bin, and NaN is ignored. `starts`
    [sequences] are the first indices of each sequence; a bin gets at most one value per sequence,
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
