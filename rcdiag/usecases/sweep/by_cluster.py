"""Sums of many quantities by cluster, which are added to in place, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.clusters import Keys, added_by_index, summing_matrix

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Name = tuple[str, str]  # family or candidate ("" for what no setting changes), and the quantity

# Quantities that count tokens or sequences.
COUNTED = ("kept", "alive")

if TYPE_CHECKING:
    from scipy.sparse import csc_array


@dataclass
class Places:
    """The row of a table of sums to which each of some sequences is added."""

    rows: Index  # [sequences]
    size: int  # rows of the table

    @cached_property
    def _used(self) -> tuple[Index, Index]:
        """Return the rows that are added to, and which of them is that of each sequence."""
        used, at = np.unique(self.rows, return_inverse=True)
        return used, at

    @cached_property
    def _matrix(self) -> csc_array:
        used, at = self._used
        return summing_matrix(at, len(used))

    def add(self, sums: Array, values: Array) -> None:
        """Add `values` [sequences, columns] in place to `sums`, [size, columns] and contiguous.

        One column of values is added to all columns of the sums. Values are whole numbers where
        the sums are.
        """
        if sums.shape[1] == 1:
            np.add.at(sums.reshape(-1), self.rows, values[:, 0].astype(sums.dtype, copy=False))
            return
        used, at = self._used
        if values.shape[1] == 1:
            more = np.bincount(at, values[:, 0], len(used))[:, None]
        else:
            more = self._matrix @ values
        sums[used] += more.astype(sums.dtype, copy=False)


@dataclass
class SumsByCluster:
    """Sums of many quantities, which share their clusters: a row of every table is a cluster.

    Where there are more than `most` clusters, those share a row whose keys are the same modulo it.
    """

    most: int
    keys: Keys = field(default_factory=lambda: np.empty(0, np.uint64))  # in order of appearance
    folded: bool = False  # keys are those of the clusters modulo `most`
    tables: dict[Name, Array] = field(default_factory=dict)  # [most, ...], beyond the keys 0
    counts: type[np.number] = np.float64  # in which whole numbers are kept, those of COUNTED

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, name: Name) -> Array:
        """Return the sums of a quantity in float64, [clusters, ...]."""
        return self.tables[name][: len(self)].astype(np.float64, copy=False)

    def __contains__(self, name: Name) -> bool:
        return name in self.tables

    def rows(self, clusters: Keys) -> Index:
        """Return the row of each of some clusters [sequences]; new ones get rows of their own."""
        keys = clusters % np.uint64(self.most) if self.folded else clusters
        new = np.setdiff1d(keys, self.keys)
        if len(self) + len(new) > self.most:
            self._fold()
            return self.rows(clusters)
        self.keys = np.concatenate([self.keys, new])
        order = np.argsort(self.keys)
        return order[np.searchsorted(self.keys, keys, sorter=order)]

    def table(self, name: Name, shape: tuple[int, ...]) -> Array:
        """Return the sums of a quantity to be added to; `shape` is that of a row."""
        if name not in self.tables:
            kind = self.counts if name[1] in COUNTED else np.float64
            self.tables[name] = np.zeros((self.most, *shape), kind)
        return self.tables[name]

    def scale(self, names: tuple[str, ...], factor: float) -> None:
        """Multiply the sums of all quantities of some names by a factor, in place."""
        for (_, quantity), sums in self.tables.items():
            if quantity in names:
                sums *= factor

    def copy(self) -> SumsByCluster:
        """Copy the sums into memory of their own."""
        tables = {name: sums.copy() for name, sums in self.tables.items()}
        return SumsByCluster(self.most, self.keys, self.folded, tables, self.counts)

    def add(self, other: SumsByCluster) -> None:
        """Add in place; the other one stays as it is."""
        if other.folded:
            self._fold()
        rows = self.rows(other.keys).tolist()
        for name, sums in other.tables.items():
            own = self.table(name, sums.shape[1:])
            for row, more in zip(rows, sums[: len(rows)], strict=True):
                own[row] += more

    def _fold(self) -> None:
        """Add up the sums of all clusters whose keys are the same modulo `most`."""
        if self.folded:
            return
        keys, index = np.unique(self.keys % np.uint64(self.most), return_inverse=True)
        for sums in self.tables.values():
            folded = added_by_index(index, sums[: len(self)], len(keys))
            sums[: len(keys)], sums[len(keys) :] = folded, 0.0
        self.keys, self.folded = keys, True
