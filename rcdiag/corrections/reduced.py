"""Quantities of tokens, reduced by sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.corrections.arithmetic import Array
from rcdiag.corrections.quantities import Reduction

REDUCTIONS: tuple[Reduction, ...] = ("sum", "squares", "max", "min", "values")


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
    def merged(cls, columns: Sequence[Column]) -> Column:
        """Join the sequences of parts, in order."""
        return cls(
            *(np.concatenate([getattr(one, name) for one in columns]) for name in REDUCTIONS)
        )

    @classmethod
    def of_sequences(cls, values: Array, lengths: NDArray[np.int64]) -> Column:
        """Return a quantity that is the same at every token of a sequence."""
        wide = values.astype(np.float64, copy=False)
        return cls(wide * lengths, np.square(wide) * lengths, wide, wide)


def taken(column: Column, rows: slice, tokens: slice) -> Column:
    """Take some sequences that follow each other, by their rows and by their tokens."""
    return Column(
        column.sum[rows],
        column.squares[rows],
        column.max[rows],
        column.min[rows],
        column.values[tokens],
    )
