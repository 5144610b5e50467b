"""The lengths and the values of list columns, by their offsets where no row is null.

Arrow's own functions for both take a tenth of a second to import (`pyarrow.compute`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.table.as_numpy import as_numpy


def lengths_of(column: pa.Array | pa.ChunkedArray, *, of_null: int = 0) -> NDArray[np.int64]:
    """Return the number of values of each row, [rows]; `of_null` where the row is null."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return np.concatenate([np.empty(0, np.int64), *(_of_chunk(one, of_null) for one in chunks)])


def _of_chunk(column: pa.Array, of_null: int) -> NDArray[np.int64]:
    if _has_offsets(column):
        return np.diff(as_numpy(column.offsets)).astype(np.int64, copy=False)
    import pyarrow.compute as pc

    return as_numpy(pc.fill_null(pc.list_value_length(column), of_null)).astype(np.int64)


def values_of(column: pa.Array) -> pa.Array:
    """Return the values of all rows, one after the other; a null row has none."""
    if not _has_offsets(column):
        return column.flatten()
    offsets = column.offsets
    first = offsets[0].as_py()
    return column.values.slice(first, offsets[len(column)].as_py() - first)


def _has_offsets(column: pa.Array) -> bool:
    return (pt.is_list(column.type) or pt.is_large_list(column.type)) and not column.null_count
