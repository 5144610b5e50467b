"""Sums by cluster, the unit of dependence, in bounded memory for tables of any size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.statistics.merging import added_by_key
from rcdiag.statistics.ratios import Array

Keys = NDArray[np.uint64]

# In a table with more clusters, several share a row, chosen by their key (a hash of their name).
# Sums of independent clusters are independent, so intervals stay valid; their width has a relative
# error of sqrt(2 / 4096), about 2%.
MAX_CLUSTERS = 4096


class ClusterSums(Struct, frozen=True):
    """Rows of sums, one per cluster, in the order of their keys."""

    keys: Keys  # [clusters] ascending
    sums: Array  # [clusters, ...]
    most: int  # with more clusters than this, they are folded
    folded: bool = False  # keys are cluster keys modulo `most`

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def merged(cls, parts: Sequence[ClusterSums]) -> ClusterSums:
        """Return the sums over all parts; folded if one part is, or if there are too many."""
        if any(part.folded for part in parts):
            parts = [part.fold() for part in parts]
        keys, sums = added_by_key([part.keys for part in parts], [part.sums for part in parts])
        return replace(parts[0], keys=keys, sums=sums).bounded()

    def bounded(self) -> ClusterSums:
        """Return the sums, folded if there are too many clusters."""
        return self.fold() if len(self) > self.most else self

    def fold(self) -> ClusterSums:
        """Combine clusters whose keys are equal modulo `most`."""
        if self.folded:
            return self
        keys, index = np.unique(self.keys % np.uint64(self.most), return_inverse=True)
        sums = added_by_index(index, self.sums, len(keys))
        return replace(self, keys=keys, sums=sums, folded=True)


def content_order(rows: Array) -> NDArray[np.intp]:
    """Return an order of `rows` [clusters, ...] that depends only on their numbers.

    Clusters are stored in the order of their keys, which are hashes of names. Summed in this order,
    results are the same to the last bit whatever the clusters are called.
    """
    if not len(rows):
        return np.arange(0)
    flat = rows.reshape(len(rows), -1)
    with np.errstate(over="ignore", invalid="ignore"):
        keys = (flat.min(axis=1), flat.max(axis=1), np.square(flat).sum(axis=1), flat.sum(axis=1))
    order: NDArray[np.intp] = np.lexsort(keys)
    return order


def cluster_sums(keys: Keys, rows: NDArray[np.floating], most: int | None = None) -> ClusterSums:
    """Sum `rows` [rows, columns] by key; `most` defaults to MAX_CLUSTERS."""
    clusters = grouping(keys, MAX_CLUSTERS if most is None else most)
    return clusters.of_clusters(added_by_index(clusters.index, rows, len(clusters.keys)))


def added_by_index(index: NDArray[np.integer], rows: NDArray[np.floating], size: int) -> Array:
    """Sum `rows` [rows, ...] by their `index` [rows], which is below `size`: [size, ...]."""
    sums = np.zeros((size, *rows.shape[1:]))
    if len(rows):
        wide = sums.reshape(size, -1)
        for number, column in enumerate(rows.reshape(len(rows), -1).T):
            wide[:, number] = np.bincount(index, column, size)
    return sums


class ClusterIndex(Struct, frozen=True):
    """A grouping of sequences by cluster, computed once and used for many columns."""

    keys: Keys  # [clusters] ascending
    index: NDArray[np.int64]  # [sequences] index of each sequence's cluster
    most: int
    folded: bool

    def of_clusters(self, sums: Array) -> ClusterSums:
        """Return `ClusterSums` from sums [clusters, ...] in the order of the keys."""
        return ClusterSums(self.keys, sums, self.most, self.folded)

    def of_filled(self, sums: Array) -> ClusterSums:
        """Return `ClusterSums` of those clusters whose first sum, a count, is above 0."""
        filled = sums[:, 0] > 0
        return ClusterSums(self.keys[filled], sums[filled], self.most, self.folded)

    def added(self, rows: Array) -> ClusterSums:
        """Sum `rows` [sequences, ...] by cluster."""
        return self.of_clusters(added_by_index(self.index, rows, len(self.keys)))


def grouping(clusters: Keys, most: int) -> ClusterIndex:
    """Group sequences by cluster; folded if there are more than `most` clusters."""
    keys, index = np.unique(clusters, return_inverse=True)
    folded = len(keys) > most
    if folded:
        keys, index = np.unique(clusters % np.uint64(most), return_inverse=True)
    return ClusterIndex(keys, index, most, folded)
