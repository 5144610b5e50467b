"""Sums by cluster, the unit of dependence: mergeable, and bounded whatever the table's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.ratios import Array

# Above so many, clusters share rows by their key. Sums of independent clusters are independent, so
# every interval stays right; its width is known to sqrt(2 / 4096), or 2%.
MAX_CLUSTERS = 4096


@dataclass(frozen=True, slots=True)
class ClusterSums:
    """Rows of sums, one per cluster, in the order of their keys."""

    keys: NDArray[np.uint64]  # [clusters] ascending
    sums: Array  # [clusters, columns]
    folded: bool = False  # keys are those of the clusters modulo MAX_CLUSTERS

    def __len__(self) -> int:
        return len(self.keys)


def cluster_sums(keys: NDArray[np.uint64], rows: Array) -> ClusterSums:
    """Add up `rows` [rows, columns] that have the same key."""
    unique, index = np.unique(keys, return_inverse=True)
    sums = np.empty((len(unique), rows.shape[1]))
    for column in range(rows.shape[1]):
        sums[:, column] = np.bincount(index, weights=rows[:, column], minlength=len(unique))
    return _bounded(ClusterSums(unique, sums))


def union(parts: Sequence[ClusterSums]) -> ClusterSums:
    """The sums of all parts' tokens together."""
    if len(parts) == 1:
        return parts[0]
    folded = any(part.folded for part in parts)
    parts = [_folded(part) if folded else part for part in parts]
    if all(np.array_equal(part.keys, parts[0].keys) for part in parts):
        return ClusterSums(parts[0].keys, np.sum([part.sums for part in parts], axis=0), folded)
    keys = np.concatenate([part.keys for part in parts])
    unique, index = np.unique(keys, return_inverse=True)
    sums = np.zeros((len(unique), parts[0].sums.shape[1]))
    start = 0
    for part in parts:
        # Keys of one part are all different, so plain indexed addition misses none.
        sums[index[start : start + len(part)]] += part.sums
        start += len(part)
    return _bounded(ClusterSums(unique, sums, folded))


def _bounded(sums: ClusterSums) -> ClusterSums:
    return _folded(sums) if len(sums) > MAX_CLUSTERS else sums


def _folded(sums: ClusterSums) -> ClusterSums:
    if sums.folded:
        return sums
    keys = sums.keys % np.uint64(MAX_CLUSTERS)
    unique, index = np.unique(keys, return_inverse=True)
    folded = np.zeros((len(unique), sums.sums.shape[1]))
    np.add.at(folded, index, sums.sums)
    return ClusterSums(unique, folded, folded=True)
