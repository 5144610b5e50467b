"""Sums are kept by cluster, the unit of dependence, in bounded memory for any table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.statistics.merging import added_by_key
from rcdiag.statistics.ratios import Array

Keys = NDArray[np.uint64]

# A table with more clusters has them share rows by their key, a hash of their name. Sums of
# independent clusters are independent, so every interval stays right; its width is known to
# sqrt(2 / 4096), or 2%.
MAX_CLUSTERS = 4096

# From this many numbers on they are added up by a sparse matrix, in a tenth of the time; fewer take
# less time than the import of scipy. It multiplies ROWS_AT_ONCE at a time, which become float64.
MANY = 1 << 21
ROWS_AT_ONCE = 1 << 14

if TYPE_CHECKING:
    from scipy.sparse import csc_array


class ClusterSums(Struct, frozen=True):
    """Rows of sums, one per cluster, in the order of their keys."""

    keys: Keys  # [clusters] ascending
    sums: Array  # [clusters, ...]
    most: int  # clusters above this number are folded
    folded: bool = False  # keys are those of the clusters modulo `most`

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def merged(cls, parts: Sequence[ClusterSums]) -> ClusterSums:
        """Return the sums of all parts' tokens together; folded if one is, or too many are."""
        if any(part.folded for part in parts):
            parts = [part.fold() for part in parts]
        keys, sums = added_by_key([part.keys for part in parts], [part.sums for part in parts])
        return replace(parts[0], keys=keys, sums=sums).bounded()

    def scaled(self, factor: float) -> ClusterSums:
        """Return all sums times a factor."""
        return self if factor == 1.0 else replace(self, sums=self.sums * factor)

    def bounded(self) -> ClusterSums:
        """Return the sums, folded if there are too many clusters."""
        return self.fold() if len(self) > self.most else self

    def fold(self) -> ClusterSums:
        """Add the sums of all clusters whose keys are the same modulo `most`."""
        if self.folded:
            return self
        keys, index = np.unique(self.keys % np.uint64(self.most), return_inverse=True)
        sums = added_by_index(index, self.sums, len(keys))
        return replace(self, keys=keys, sums=sums, folded=True)


def content_order(rows: Array) -> NDArray[np.intp]:
    """Return an order of `rows` [clusters, ...] by their numbers alone.

    Clusters lie in the order of their keys, which are hashes of names. Sums over them in this order
    are the same to the last bit whatever the clusters are called.
    """
    if not len(rows):
        return np.arange(0)
    flat = rows.reshape(len(rows), -1)
    with np.errstate(over="ignore", invalid="ignore"):
        keys = (flat.min(axis=1), flat.max(axis=1), np.square(flat).sum(axis=1), flat.sum(axis=1))
    order: NDArray[np.intp] = np.lexsort(keys)
    return order


def cluster_sums(keys: Keys, rows: NDArray[np.floating], most: int | None = None) -> ClusterSums:
    """Add up `rows` [rows, columns] that have the same key; `most` is MAX_CLUSTERS unless given."""
    clusters = grouping(keys, MAX_CLUSTERS if most is None else most)
    return clusters.of_clusters(added_by_index(clusters.index, rows, len(clusters.keys)))


def added_by_index(index: NDArray[np.integer], rows: NDArray[np.floating], size: int) -> Array:
    """Add up `rows` [rows, ...] that have the same `index` [rows], below `size`.

    The result is [size, ...]; rows are added in their order, of many rows in some parts.
    """
    sums = np.zeros((size, *rows.shape[1:]))
    if not len(rows):
        return sums
    columns, wide = rows.reshape(len(rows), -1), sums.reshape(size, -1)
    if len(rows) < columns.shape[1]:  # the loop is over what there are fewer of
        with np.errstate(invalid="ignore"):  # infinities of both signs add up to NaN, as elsewhere
            for to, row in zip(index.tolist(), columns, strict=True):
                wide[to] += row
        return sums
    if columns.size >= MANY and columns.shape[1] > 1:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            wide += summing_matrix(index[some], size) @ columns[some]
        return sums
    first = int(index.min())
    from_first = np.subtract(index, first, dtype=np.intp)
    for number, column in enumerate(np.ascontiguousarray(columns.T)):
        added = np.bincount(from_first, column)
        wide[first : first + len(added), number] += added
    return sums


class ClusterIndex(Struct, frozen=True):
    """A way to add up sequences by cluster, made once for many columns."""

    keys: Keys  # [clusters] ascending
    index: NDArray[np.int64]  # [sequences] cluster of each
    most: int
    folded: bool

    def of_clusters(self, sums: Array) -> ClusterSums:
        """Wrap sums [clusters, ...] that are added up already, in the order of the keys."""
        return ClusterSums(self.keys, sums, self.most, self.folded)

    def added(self, rows: Array) -> ClusterSums:
        """Add up `rows` [sequences, ...] by cluster."""
        return self.of_clusters(added_by_index(self.index, rows, len(self.keys)))


def grouping(clusters: Keys, most: int) -> ClusterIndex:
    """Group some sequences by cluster, folded where there are more than `most`."""
    keys, index = np.unique(clusters, return_inverse=True)
    folded = len(keys) > most
    if folded:
        keys, index = np.unique(clusters % np.uint64(most), return_inverse=True)
    return ClusterIndex(keys, index, most, folded)


def summing_matrix(index: NDArray[np.integer], size: int | None = None) -> csc_array:
    """Return the matrix [size, rows] that adds up rows with the same number in `index` [rows]."""
    from scipy.sparse import csc_array

    rows = len(index)
    places = index.astype(np.int32, copy=False).reshape(-1)
    starts = np.arange(0, len(places) + 1, max(len(places) // max(rows, 1), 1), dtype=np.int32)
    groups = int(index.max()) + 1 if size is None else size
    return csc_array((np.ones(len(places)), places, starts), shape=(groups, rows))
