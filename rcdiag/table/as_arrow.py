"""Numbers, texts and lists of them become Arrow columns.

Arrow's own `array` makes the same of them, but imports pandas where it is installed, which takes
longer than to convert a small dump. It is asked for what is rare: booleans, several types, objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

# Token columns of a converted table have these element types.
IDS, FLOATS, BITS = np.int32, np.float32, np.uint8
LARGEST_OFFSET = 2**31 - 1


def from_numpy(values: NDArray[Any]) -> pa.Array:
    """Return numbers, [rows], as a column that shares their memory where it is contiguous."""
    import pyarrow as pa

    if values.ndim != 1 or values.dtype.kind not in "iuf" or not values.dtype.isnative:
        return pa.array(values)
    numbers = pa.py_buffer(np.ascontiguousarray(values))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, numbers], null_count=0)


def from_python(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return values of rows as a column of a type, by default of their own; None is null."""
    import pyarrow as pa

    types = set(map(type, values)) - {type(None)}
    known = np.array([value is not None for value in values], np.bool_)
    bitmap = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    if types == {str} and kind in (None, pa.string()):
        texts = [b"" if value is None else value.encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        if ends[-1] <= LARGEST_OFFSET:
            buffers = [bitmap, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(texts))]
            return pa.Array.from_buffers(pa.string(), len(values), buffers)
    for number, own in ((float, pa.float64()), (int, pa.int64())):
        if types == {number} and kind in (None, own):
            plain = [0 if value is None else value for value in values]
            try:
                numbers = pa.py_buffer(np.array(plain, number))
            except OverflowError:  # a whole number beyond int64
                break
            return pa.Array.from_buffers(own, len(values), [bitmap, numbers])
    return pa.array(values, kind)


def lists(rows: Sequence[Any], kind: type) -> pa.ListArray:
    """Return a list column of one sequence of numbers for each row; None makes a null."""
    import pyarrow as pa

    known = [row for row in rows if row is not None]
    plain = all(
        isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype == kind for row in known
    )
    if not known or not plain or sum(map(len, known)) > LARGEST_OFFSET:
        return pa.array(rows, pa.list_(pa.from_numpy_dtype(np.dtype(kind))))
    lengths = np.array([0 if row is None else len(row) for row in rows])
    absent = np.array([row is None for row in rows])
    bits = pa.py_buffer(np.packbits(absent, bitorder="little"))
    null = pa.Array.from_buffers(pa.bool_(), len(rows), [None, bits]) if absent.any() else None
    return ragged(np.concatenate(known), lengths, null)


def ragged(
    values: NDArray[Any], lengths: NDArray[np.integer], null: pa.Array | None = None
) -> pa.ListArray:
    """Return a list column, [rows], of flat values, [tokens], cut into rows of these lengths.

    Rows are null where `null` holds.
    """
    import pyarrow as pa

    if values.ndim != 1:
        raise ValueError(f"{values.ndim} dimensions where a token has one value")
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    if offsets[-1] != len(values):
        raise ValueError(f"{len(values)} values for lengths that add up to {offsets[-1]}")
    return pa.ListArray.from_arrays(from_numpy(offsets), from_numpy(values), mask=null)


def experts(values: NDArray[Any], lengths: NDArray[np.integer]) -> pa.ListArray:
    """Return a column of the experts of each token, layer by layer, in rows of these lengths.

    `values` are [tokens, layers, experts]. A token whose experts are all 0, which no router of two
    or more chooses, was not recorded: it has an empty list.
    """
    import pyarrow as pa

    if values.ndim != 3 or values.dtype.kind not in "iu":
        raise ValueError(f"experts of tokens as {values.dtype} of {values.ndim} dimensions")
    flat = values.reshape(len(values), -1)
    recorded = flat.any(1) if values.shape[2] > 1 else np.ones(len(flat), bool)
    sizes = np.where(recorded, flat.shape[1], 0)
    tokens = ragged(flat[recorded].ravel().astype(np.uint16), sizes)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(from_numpy(offsets), tokens)
