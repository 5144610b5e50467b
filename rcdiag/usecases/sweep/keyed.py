"""Sums by cluster that grow with the clusters met, and fold when there are too many."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Keys = NDArray[np.uint64]

# Above so many, clusters share rows by their key: sums of independent clusters are independent, so
# intervals stay right, and their width is known to sqrt(1 / 512), or 4%.
MAX_CLUSTERS = 256


@dataclass
class Keyed:
    """Arrays with one row per cluster, all in the order of `keys`."""

    keys: Keys = field(default_factory=lambda: np.empty(0, np.uint64))  # ascending
    folded: bool = False  # keys are those of the clusters modulo MAX_CLUSTERS
    arrays: dict[Hashable, Array] = field(default_factory=dict)  # [clusters, ...]

    def place(self, clusters: Keys) -> tuple[Keys, NDArray[np.int64]]:
        """Keys of the clusters of some sequences, and the number of each sequence's."""
        if not self.folded and len(np.union1d(self.keys, clusters)) > MAX_CLUSTERS:
            self.fold()
        keys = clusters % np.uint64(MAX_CLUSTERS) if self.folded else clusters
        found, index = np.unique(keys, return_inverse=True)
        return found, index

    def add(self, keys: Keys, name: Hashable, rows: Array) -> None:
        """Take in the sums of some clusters, whose keys are in the form that `place` gave."""
        self._grow(keys)
        if name not in self.arrays:
            self.arrays[name] = np.zeros((len(self.keys), *rows.shape[1:]))
        self.arrays[name][np.searchsorted(self.keys, keys)] += rows

    def merge(self, other: Keyed) -> None:
        """Take in the sums of a shard; `other` may fold."""
        both = len(np.union1d(self.keys, other.keys))
        if self.folded or other.folded or both > MAX_CLUSTERS:
            self.fold()
            other.fold()
        for name, rows in other.arrays.items():
            self.add(other.keys, name, rows)

    def fold(self) -> None:
        if self.folded:
            return
        self.folded = True
        keys, index = np.unique(self.keys % np.uint64(MAX_CLUSTERS), return_inverse=True)
        for name, rows in self.arrays.items():
            sums = np.zeros((len(keys), *rows.shape[1:]))
            for row, at in enumerate(index):
                sums[at] += rows[row]
            self.arrays[name] = sums
        self.keys = keys

    def _grow(self, keys: Keys) -> None:
        union = np.union1d(self.keys, keys)
        if len(union) == len(self.keys):
            return
        at = np.searchsorted(union, self.keys)
        for name, rows in self.arrays.items():
            wider = np.zeros((len(union), *rows.shape[1:]))
            wider[at] = rows
            self.arrays[name] = wider
        self.keys = union

    def scale(self, last: str, factor: float) -> None:
        """Multiply every array whose name ends in `last`."""
        for name, rows in self.arrays.items():
            if _last(name) == last:
                rows *= factor


def _last(name: Any) -> str:
    return name[-1]
