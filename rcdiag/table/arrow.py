"""Columns of Arrow as numpy arrays: their values, and the lengths and values of their lists.

Arrow's own functions import pandas where it is installed (`to_numpy`), or `pyarrow.compute`, which
takes longer than to score a small table. Here both are loaded only for columns that need them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray


def as_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray:
    """Return the values of a column as a numpy array, without a copy where nothing is null.

    A null among numbers is NaN; whole numbers with one are float64. Numbers without a null share
    the memory of the column, which is read only.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if pt.is_boolean(column.type) and not column.null_count:
        return _bits(column, column.buffers()[1])
    if not (pt.is_integer(column.type) or pt.is_floating(column.type)):
        return column.to_numpy(zero_copy_only=False)
    if not column.null_count:
        return np.from_dlpack(column)
    known, values = column.buffers()
    numbers = np.from_dlpack(
        pa.Array.from_buffers(column.type, len(column), [None, values], offset=column.offset)
    )
    numbers = numbers.astype(numbers.dtype if pt.is_floating(column.type) else np.float64)
    numbers[~_bits(column, known)] = np.nan
    return numbers


def _bits(column: pa.Array, buffer: pa.Buffer | None) -> NDArray[np.bool_]:
    """Return one of the bitmaps of a column, [rows]; an empty column may have none."""
    if buffer is None:
        return np.zeros(0, np.bool_)
    first, last = column.offset, column.offset + len(column)
    bits = np.frombuffer(buffer, np.uint8)[first // 8 : (last + 7) // 8]
    return np.unpackbits(bits, bitorder="little")[first % 8 :][: len(column)].view(np.bool_)


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
