"""Quantities of tokens, reduced by sequence: as arrays, or packed into few bytes by a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.corrections.arithmetic import Array
from rcdiag.corrections.quantities import Quantity, Reduction
from rcdiag.statistics.packed import PackedColumns

REDUCTIONS: tuple[Reduction, ...] = ("sum", "squares", "max", "min", "values")


class Reduced(Protocol):
    """A quantity of tokens, reduced by sequence, float64 [sequences]; empty if it is not kept."""

    @property
    def sum(self) -> NDArray[np.float64]: ...
    @property
    def squares(self) -> NDArray[np.float64]: ...
    @property
    def max(self) -> NDArray[np.float64]: ...
    @property
    def min(self) -> NDArray[np.float64]: ...
    @property
    def values(self) -> NDArray[np.float64]: ...  # [tokens]


class Column(Struct, frozen=True):
    """A quantity of tokens, reduced by sequence, float64 [sequences]; empty if it is not kept."""

    sum: NDArray[np.float64]
    squares: NDArray[np.float64]
    max: NDArray[np.float64]
    min: NDArray[np.float64]
    values: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # [tokens]

    @classmethod
    def of_tokens(
        cls, values: Array, starts: NDArray[np.int64], keeps: Sequence[Reduction]
    ) -> Column:
        """Reduce `values` [tokens] by sequence; `starts` [sequences] are their first tokens."""
        wide = values.astype(np.float64, copy=False)
        none = np.empty(0)
        return cls(
            np.add.reduceat(wide, starts) if "sum" in keeps else none,
            np.add.reduceat(np.square(values).astype(np.float64, copy=False), starts)
            if "squares" in keeps
            else none,
            np.maximum.reduceat(wide, starts) if "max" in keeps else none,
            np.minimum.reduceat(wide, starts) if "min" in keeps else none,
            wide if "values" in keeps else none,
        )

    @classmethod
    def of_sequences(cls, values: Array, lengths: NDArray[np.int64]) -> Column:
        """Return a quantity that is the same at every token of a sequence."""
        wide = values.astype(np.float64, copy=False)
        return cls(wide * lengths, np.square(wide) * lengths, wide, wide)


def joined_reductions(columns: Sequence[Reduced]) -> Column:
    """Join the sequences of shards, in order."""
    return Column(*(np.concatenate([getattr(one, name) for one in columns]) for name in REDUCTIONS))


def taken(column: Reduced, rows: slice, tokens: slice) -> Column:
    """Take some sequences that follow each other, by their rows and by their tokens."""
    return Column(
        column.sum[rows],
        column.squares[rows],
        column.max[rows],
        column.min[rows],
        column.values[tokens],
    )


class PackedColumn(Struct, frozen=True):
    """A quantity of tokens, reduced by sequence; a reduction is unpacked whenever it is read."""

    packed: PackedColumns[tuple[Quantity, Reduction]]
    quantity: Quantity

    @property
    def sum(self) -> NDArray[np.float64]:
        return self._unpacked("sum")

    @property
    def squares(self) -> NDArray[np.float64]:
        return self._unpacked("squares")

    @property
    def max(self) -> NDArray[np.float64]:
        return self._unpacked("max")

    @property
    def min(self) -> NDArray[np.float64]:
        return self._unpacked("min")

    @property
    def values(self) -> NDArray[np.float64]:
        return self._unpacked("values")

    def _unpacked(self, reduction: Reduction) -> NDArray[np.float64]:
        kept = reduction in self.quantity.keeps
        return self.packed[self.quantity, reduction] if kept else np.empty(0)


@dataclass(frozen=True, slots=True)
class PackedReductions(Mapping[Quantity, Reduced]):
    """Quantities of tokens, reduced by sequence, in few bytes; two shards add up by joining."""

    quantities: tuple[Quantity, ...]
    packed: PackedColumns[tuple[Quantity, Reduction]]

    @classmethod
    def of(cls, columns: Mapping[Quantity, Reduced], sequences: int) -> PackedReductions:
        """Pack the quantities of so many sequences; every bit of them can be read again."""
        kept = {
            (quantity, name): getattr(column, name)
            for quantity, column in columns.items()
            for name in REDUCTIONS
            if name in quantity.keeps
        }
        return cls(tuple(columns), PackedColumns.of(kept, sequences))

    def __add__(self, other: PackedReductions) -> PackedReductions:
        """Join the sequences of both shards, in order."""
        return PackedReductions(self.quantities, self.packed + other.packed)

    def __getitem__(self, quantity: Quantity) -> Reduced:
        if (quantity, quantity.keeps[0]) not in self.packed.places:
            raise KeyError(quantity)
        return PackedColumn(self.packed, quantity)

    def __iter__(self) -> Iterator[Quantity]:
        return iter(self.quantities)

    def __len__(self) -> int:
        return len(self.quantities)
