"""A padded matrix, [rows, width], is cut to the block of columns that each row's tokens fill.

A mask or lengths say where that block stands; never a token id, because the padding id is often a
legal token.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.table.readers.list_columns import ragged

if TYPE_CHECKING:
    import pyarrow as pa


class Cut(Struct, frozen=True, dict=True):
    """The block of columns that the tokens of each row fill in matrices of one width."""

    width: int  # columns of the matrices that are cut
    starts: NDArray[np.int64]  # first column of each row's tokens, [rows]
    lengths: NDArray[np.int64]  # tokens of each row, [rows]

    @classmethod
    def from_mask(cls, mask: NDArray[np.bool_]) -> Cut:
        """Return the cut whose blocks begin at each row's first 1 and hold as many tokens as ones.

        `Cut.rows_with_holes` names the rows where the ones are not that block.
        """
        starts = mask.argmax(1).astype(np.int64) if mask.shape[1] else np.zeros(len(mask), np.int64)
        return cls(mask.shape[1], starts, mask.sum(1, dtype=np.int64))

    @classmethod
    def from_lengths(cls, lengths: NDArray[np.integer], width: int) -> Cut:
        """Return the cut of rows whose tokens begin in column 0."""
        return cls(width, np.zeros(len(lengths), np.int64), lengths.astype(np.int64))

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """Return 1 for every place that is no padding, [rows, width]."""
        place = np.arange(self.width)
        ends = self.starts + self.lengths
        return (place >= self.starts[:, None]) & (place < ends[:, None])

    def rows_with_holes(self, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the rows whose ones in a mask are not one block, ascending."""
        return np.flatnonzero((self.inside != mask).any(1))

    def values(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Return the values of all rows behind each other, without padding, [tokens, ...]."""
        return matrix[self.inside]

    def column(self, matrix: NDArray[Any]) -> pa.ListArray:
        """Return a list column of each row's values, without padding."""
        return ragged(self.values(matrix), self.lengths)
