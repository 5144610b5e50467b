"""Arrow columns of numbers and flags are seen by numpy, without pandas.

pyarrow's own `to_numpy` imports pandas wherever that is installed, which takes longer than a pass
over a million tokens.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray


def as_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray:
    """Return the values of a column, [values], which are not copied where Arrow holds them plain.

    Null is NaN, so that a column of numbers with one is float64 or narrower floats.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # what older releases of pyarrow make of no chunk
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, array.type)
    if pt.is_boolean(array.type) and not array.null_count:
        return _bits(array, 1)
    if not (pt.is_floating(array.type) or pt.is_integer(array.type)):
        return array.to_numpy(zero_copy_only=False)
    if not array.null_count:
        return np.from_dlpack(array)
    return _with_nan(array)


def valid(column: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Tell which values of a column are not null, [values]."""
    if isinstance(column, pa.ChunkedArray):
        parts = [valid(chunk) for chunk in column.chunks]
        return np.concatenate([np.empty(0, np.bool_), *parts])
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    if column.buffers()[0] is None:  # the type of nothing but nulls
        return np.zeros(len(column), np.bool_)
    return _bits(column, 0)


def _with_nan(array: pa.Array) -> NDArray:
    """Return numbers with NaN in place of null."""
    kind = np.dtype(array.type.to_pandas_dtype())
    stored = np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]
    values = stored.astype(kind if kind.kind == "f" else np.float64)
    values[~valid(array)] = np.nan
    return values


def _bits(array: pa.Array, buffer: int) -> NDArray[np.bool_]:
    """Return the bits of one buffer of an array as flags, [values]."""
    first, behind = array.offset, array.offset + len(array)
    if first == behind:
        return np.empty(0, np.bool_)
    packed = np.frombuffer(array.buffers()[buffer], np.uint8)[first // 8 : -(-behind // 8)]
    return np.unpackbits(packed, bitorder="little")[first % 8 :][: len(array)].view(np.bool_)
