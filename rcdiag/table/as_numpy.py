"""Arrow columns as numpy arrays.

Where pandas is installed, Arrow's own `to_numpy` imports it, which takes longer than a small table.
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
