"""Numbers and texts as Arrow columns.

Where pandas is installed, Arrow's own `array` imports it, which takes longer than a small dump.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST_OFFSET = 2**31 - 1
_ABSENT = {type(None)}


def from_numpy(values: NDArray[Any]) -> pa.Array:
    """Return numbers, [rows], as a column that shares their memory where it is contiguous."""
    import pyarrow as pa

    if values.ndim != 1 or values.dtype.kind not in "iuf" or not values.dtype.isnative:
        return pa.array(values)
    kind = pa.from_numpy_dtype(values.dtype)
    numbers = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None, numbers], null_count=0)


def from_python(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return values of rows as a column of a type, by default of their own; None is null."""
    import pyarrow as pa

    types = set(map(type, values)) - _ABSENT
    if types == {str} and kind in (None, pa.string()):
        made = _texts(values)
    elif types == {float} and kind in (None, pa.float64()):
        made = _numbers(values, np.float64)
    elif types == {int} and kind in (None, pa.int64()):
        made = _numbers(values, np.int64)
    else:
        made = None
    return pa.array(values, kind) if made is None else made


def list_column(rows: Sequence[Any], kind: type) -> pa.ListArray:
    """Return a list column of one sequence of numbers for each row; None makes a null."""
    import pyarrow as pa

    element = pa.from_numpy_dtype(np.dtype(kind))
    known = [row for row in rows if row is not None]
    plain = all(
        isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype == kind for row in known
    )
    lengths = [0 if row is None else len(row) for row in rows] if plain else []
    if not known or not plain or sum(lengths) > LARGEST_OFFSET:
        return pa.array(rows, type=pa.list_(element))
    absent = _bitmap(rows) if len(known) < len(rows) else None
    return pa.Array.from_buffers(
        pa.list_(element),
        len(rows),
        [absent, pa.py_buffer(_offsets(lengths))],
        null_count=len(rows) - len(known),
        children=[from_numpy(np.concatenate(known))],
    )


def _numbers(values: Sequence[Any], kind: type) -> pa.Array | None:
    """Return numbers of one type of Python; None where one is too large."""
    import pyarrow as pa

    try:
        plain = [0 if value is None else value for value in values]
        numbers: NDArray[Any] = np.array(plain, kind)
    except OverflowError:
        return None
    buffers = [_bitmap(values), pa.py_buffer(numbers)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(values), buffers)


def _texts(values: Sequence[str | None]) -> pa.Array | None:
    """Return texts; None where they are too long for one column."""
    import pyarrow as pa

    encoded = [b"" if value is None else value.encode() for value in values]
    lengths = list(map(len, encoded))
    if sum(lengths) > LARGEST_OFFSET:
        return None
    buffers = [_bitmap(values), pa.py_buffer(_offsets(lengths)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def _offsets(lengths: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)


def _bitmap(values: Sequence[Any]) -> pa.Buffer | None:
    """Return the bits of the rows that are not null; None where none is."""
    import pyarrow as pa

    known = np.array([value is not None for value in values], np.bool_)
    return None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
