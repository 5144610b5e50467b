"""The tokens of a block are sorted into bins and added up there, once for all that reads bins.

Most bins hold runs of neighbours: all tokens of a sequence, or those between two positions. Runs
are added up as a whole; only where tokens of a run differ in their bin is each of them looked up.
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

# Examples of a bin, at most one of each sequence.
PER_BIN = 6
# The search begins with the largest value of each of GROUPS groups of sequences in each bin, among
# about SPREAD of the values, evenly spread.
GROUPS, SPREAD = 256, 1 << 13

# Tokens, log_ratio, log_ratio^2 and k3 of each bin.
SUMS = 4
# The partition into whole sequences; others bear the name of the axis that makes them.
BY_SEQUENCE = ""


class Runs(Struct, frozen=True):
    """Tokens parted into runs of neighbours of one sequence, and what each run adds up to."""

    first: Places  # [runs] the token at which a run begins, ascending
    sequence: Places  # [runs] the sequence that it belongs to, ascending
    sums: Array  # [runs, SUMS]
    largest: Array  # [runs] |log_ratio|, nats; NaN where no token has a number

    def ends(self, tokens: int) -> Places:
        """Return for each run the index after its last one, [runs]; `tokens` counts all tokens."""
        return np.append(self.first[1:], tokens)


class BinNumbers(Struct, frozen=True):
    """The bin of every run or token along one axis; the number `count` stands for no bin."""

    numbers: NDArray[np.integer]
    count: int


class SortedBlock(Struct, frozen=True):
    """The bins of the tokens of a block along several axes, before anything is added up."""

    # Partition -> first token and sequence of each run.
    cuts: dict[str, tuple[Places, Places]] = field(default_factory=dict)
    runs: dict[str, tuple[str, NDArray[Any]]] = field(default_factory=dict)  # as in `BlockBins`
    tokens: dict[str, BinNumbers] = field(default_factory=dict)  # axis -> bin of each token

    @classmethod
    def of(cls, block: PolicyPair) -> SortedBlock:
        """Part a block into its sequences, along no axis yet."""
        starts = starts_of(block.lengths)
        return cls({BY_SEQUENCE: (starts, np.arange(len(starts)))})

    def by_run(self, axis: str, cuts: tuple[Places, Places], values: NDArray[Any]) -> None:
        """Add an axis by the first token and the sequence of its runs, and the value of each."""
        self.cuts[axis] = cuts
        self.runs[axis] = axis, values


class BlockBins(Struct, frozen=True):
    """What a block leaves of its tokens in bins; places and sequences count from its first."""

    tokens: int
    sequences: int
    parts: Mapping[str, Runs]  # by partition
    # Axis -> partition, and the bin of each run, or what bins will be made of.
    runs: Mapping[str, tuple[str, NDArray[Any]]]
    clusters: NDArray[np.int64]  # [clusters in the block] number of each in the batch, ascending
    cells: Mapping[str, Array]  # axis of single tokens -> [clusters in the block, bins, SUMS]
    largest: Mapping[str, tuple[Places, NDArray[np.integer]]]  # axis -> places, and their bins


class BatchBins(Struct, frozen=True):
    """What all blocks of a batch leave of its tokens in bins."""

    clusters: ClusterIndex  # of the sequences of the batch
    parts: Mapping[str, Runs]
    runs: Mapping[str, tuple[str, NDArray[Any]]]
    cells: Mapping[str, Array]  # axis of single tokens -> [clusters, bins, SUMS]
    largest: Mapping[str, tuple[Places, NDArray[np.integer]]]

    def of_runs(self, axis: str) -> tuple[Runs, NDArray[Any]]:
        """Return the runs of an axis, and the bin or the name of each."""
        partition, values = self.runs[axis]
        return self.parts[partition], values

    def added(self, axis: str, numbers: NDArray[np.integer], count: int) -> Array:
        """Add up the runs of an axis by cluster and bin: [clusters, bins, SUMS].

        `numbers` [runs] are their bins; `count` itself stands for no bin.
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
    """Add up the tokens of a block by run, and by cluster and bin where bins are of single tokens.

    `cluster` [sequences] are the numbers of their clusters in the batch. Of the axes of single
    tokens those `added` are summed; of those `shown` the largest tokens of every bin are kept.
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
    """Walk a batch block by block; `sort` says the bins, `added` is that of `block_bins`."""
    groups = clusters_of(pair)
    blocks = [
        block_bins(block, cluster, sort(block), added=added)
        for block, cluster in zip(pair.blocks, cut_like_blocks(pair, groups.index), strict=True)
    ]
    return joined_bins(blocks, groups)


def clusters_of(pair: PolicyPair) -> ClusterIndex:
    """Group the sequences of a batch by cluster, in as many groups as sums may have."""
    return grouping(pair.tokens.cluster, clusters.MAX_CLUSTERS)


def cut_like_blocks(pair: PolicyPair, values: NDArray[Any]) -> list[NDArray[Any]]:
    """Cut values [sequences] where the blocks of a pair are cut."""
    edges = np.cumsum([len(block.lengths) for block in pair.blocks])
    return np.split(values, edges[:-1])


def _runs(first: Places, sequence: Places, columns: Sequence[Array], size: Array) -> Runs:
    """Add up runs of tokens: their counts and `columns`, and the largest `size` of each."""
    sums = np.empty((len(first), SUMS))
    sums[:, 0] = np.diff(first, append=len(size))
    with np.errstate(over="ignore", invalid="ignore"):
        for index, column in enumerate(columns, start=1):
            sums[:, index] = np.add.reduceat(column, first)
    return Runs(first, sequence, sums, np.fmax.reduceat(size, first))


def by_cluster_and_bin(
    columns: Iterable[Array | None], owner: NDArray[np.int64], clusters: int, bins: BinNumbers
) -> Array:
    """Add up SUMS columns of runs or tokens, None for their number: [clusters, bins, SUMS].

    `owner` are the numbers of their clusters, below `clusters`.
    """
    width = bins.count + 1
    cells = owner * width + bins.numbers
    sums = [np.bincount(cells, column, clusters * width) for column in columns]
    of_cells = np.stack(sums, axis=1).astype(np.float64, copy=False)
    return of_cells.reshape(clusters, width, SUMS)[:, :-1]


def joined_bins(blocks: Sequence[BlockBins], groups: ClusterIndex) -> BatchBins:
    """Join what the blocks of a batch hold, in their order; `groups` are those of its sequences."""
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
                _from(tokens, [block.parts[name].first for block in blocks]),
                _from(sequences, [block.parts[name].sequence for block in blocks]),
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
                _from(tokens, [block.largest[name][0] for block in blocks]),
                np.concatenate([block.largest[name][1] for block in blocks]),
            )
            for name in first.largest
        },
    )


def _from(before: Sequence[int], places: Sequence[Places]) -> Places:
    """Join places that count from the first of each block."""
    return np.concatenate([some + first for first, some in zip(before, places, strict=False)])


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
