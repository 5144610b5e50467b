"""Convert Arrow columns to numpy, and arrays, tensors, lists and text to Arrow columns.

Arrow's own `array` and `to_numpy` import pandas if it is installed, and importing `pyarrow.compute`
takes longer than scoring a small table. Here both are used only for columns that need them:
booleans with nulls, several types in one column, objects.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, first_line

# Element types of the token columns of a converted table.
IDS, FLOATS, BITS = np.int32, np.float32, np.uint8
# Offsets of Arrow's lists and strings are 32-bit integers.
LARGEST_OFFSET = 2**31 - 1
# Half precision becomes float32: numpy has no bfloat16, and few readers support float16.
HALF = ("float16", "bfloat16")
# What Arrow raises for values that form no column.
ARROW_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    TypeError,
)
# With more separate runs of neighbouring rows than this, Arrow's `take` replaces slicing.
MOST_RUNS = 256


# Arrow -> numpy


def as_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return the values of a column as a numpy array, without a copy if it has no nulls.

    A null among numbers becomes NaN; integers with nulls become float64. Numbers without nulls
    share the memory of the column, which is read-only.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if pt.is_boolean(column.type) and not column.null_count:
        return _bits(column, column.buffers()[1])
    if not (pt.is_integer(column.type) or pt.is_floating(column.type)):
        objects: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return objects
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
    """Return a bitmap of a column as booleans, [rows]; an empty column may have no bitmap."""
    if buffer is None:
        return np.zeros(0, np.bool_)
    first, last = column.offset, column.offset + len(column)
    bits = np.frombuffer(buffer, np.uint8)[first // 8 : (last + 7) // 8]
    return np.unpackbits(bits, bitorder="little")[first % 8 :][: len(column)].view(np.bool_)


def lengths_of(column: pa.Array | pa.ChunkedArray, *, of_null: int = 0) -> NDArray[np.int64]:
    """Return the number of values in each row, [rows]; `of_null` for a null row."""
    lengths = [np.empty(0, np.int64)]
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if _has_offsets(chunk):
            lengths.append(np.diff(as_numpy(chunk.offsets)).astype(np.int64, copy=False))
        else:
            import pyarrow.compute as pc

            counts = pc.fill_null(pc.list_value_length(chunk), of_null)
            lengths.append(as_numpy(counts).astype(np.int64))
    return np.concatenate(lengths)


def values_of(column: pa.Array) -> pa.Array:
    """Return the concatenated values of all rows; a null row has none."""
    if not _has_offsets(column):
        return column.flatten()
    offsets = column.offsets
    first = offsets[0].as_py()
    return column.values.slice(first, offsets[len(column)].as_py() - first)


def _has_offsets(column: pa.Array) -> bool:
    return (pt.is_list(column.type) or pt.is_large_list(column.type)) and not column.null_count


def rows_at(table: pa.Table, places: NDArray[np.integer]) -> pa.Table:
    """Return the rows at the given positions (ascending).

    Runs of neighbouring rows are sliced. `take` is called only for many runs, because it imports
    all of Arrow's compute functions (0.1 s).
    """
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    if len(runs) > MOST_RUNS:
        return table.take(places)
    parts = [table.slice(int(run[0]), len(run)) for run in runs if len(run)]
    return pa.concat_tables(parts).combine_chunks() if len(parts) > 1 else (parts or [table[:0]])[0]


# numpy and Python -> Arrow


def from_numpy(values: NDArray[Any]) -> pa.Array:
    """Return numbers [rows] as a column, which shares their memory if it is contiguous."""
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not values.dtype.isnative:
        return pa.array(values)
    numbers = pa.py_buffer(np.ascontiguousarray(values))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, numbers], null_count=0)


def from_python(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return Python values as a column of type `kind`, inferred by default; None becomes null."""
    types = set(map(type, values)) - {type(None)}
    known = np.array([value is not None for value in values], np.bool_)
    bitmap = None if known.all() else _bitmap(known)
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


def first_unlike(values: Sequence[Any]) -> int | None:
    """Return the first value that forms no column with those before it; None if all form one."""

    def fails(count: int) -> bool:
        try:
            pa.array(values[:count])
        except ARROW_ERRORS:
            return True
        return False

    first = bisect_left(range(1, len(values) + 1), True, key=fails)
    return first if first < len(values) else None


def lists(rows: Sequence[Any], kind: type) -> pa.ListArray:
    """Return a list column from one sequence of numbers per row; None becomes null."""
    known = [row for row in rows if row is not None]
    plain = all(
        isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype == kind for row in known
    )
    if not known or not plain or sum(map(len, known)) > LARGEST_OFFSET:
        return pa.array(rows, pa.list_(pa.from_numpy_dtype(np.dtype(kind))))
    return ragged(np.concatenate(known), *lengths_and_nulls(rows))


def lengths_and_nulls(rows: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the length of each list (0 for None) and whether it is None, both [rows]."""
    null = np.array([row is None for row in rows], np.bool_)
    return np.array([0 if row is None else len(row) for row in rows], np.int64), null


def ragged(
    values: NDArray[Any] | pa.Array,
    lengths: NDArray[np.integer],
    null: NDArray[np.bool_] | None = None,
) -> pa.ListArray:
    """Return a list column [rows] from flat values [tokens] and the length of each row.

    Values may be a column themselves, such as a list of experts per token. Rows are null where
    `null` [rows] is true.
    """
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise ValueError(f"values have {values.ndim} dimensions instead of 1")
        values = from_numpy(values)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    if offsets[-1] != len(values):
        raise ValueError(f"{len(values)} values, but lengths sum to {offsets[-1]}")
    mask = None
    if null is not None and null.any():
        mask = pa.Array.from_buffers(pa.bool_(), len(null), [None, _bitmap(null)])
    return pa.ListArray.from_arrays(from_numpy(offsets), values, mask=mask)


def _bitmap(flags: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def experts(
    values: NDArray[Any], lengths: NDArray[np.integer], null: NDArray[np.bool_] | None = None
) -> pa.ListArray:
    """Return a column with the experts of each token, layer by layer, in rows of these lengths.

    `values` are [tokens, layers, experts]. A token whose experts are all 0 was not recorded, since
    a router that selects two or more never selects one twice: its list is empty. Rows are null
    where `null` is true.
    """
    if values.ndim != 3 or values.dtype.kind not in "iu":
        raise ValueError(f"experts of tokens as {values.dtype} of {values.ndim} dimensions")
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    recorded = flat.any(1) if values.shape[2] > 1 else np.ones(len(flat), bool)
    sizes = np.where(recorded, flat.shape[1], 0)
    return ragged(ragged(flat[recorded].ravel().astype(np.uint16), sizes), lengths, null)


# Tensors and arrays of other libraries -> numpy


def column_on_cpu(value: Any, where: str) -> Any:
    """Return `on_cpu(value)`; `where` names the column in the error for unreadable values."""
    try:
        return on_cpu(value)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a meta tensor
        raise RcdiagError(
            f"{where}: its values cannot be read ({first_line(error)})",
            hint="give dense tensors that hold values (`.to_dense()`, not of device `meta`), "
            "arrays, or lists",
        ) from error


def on_cpu(value: Any) -> Any:
    """Convert tensors and arrays to numpy, also those in a list.

    Half precision becomes float32. The result may share memory with `value`.
    """
    if hasattr(value, "detach"):  # torch, which is not imported here
        if getattr(value, "is_nested", False):
            return [on_cpu(row) for row in value.unbind()]
        tensor = value.detach().cpu()
        if tensor.is_floating_point() and tensor.element_size() < 4:
            tensor = tensor.float()
        return tensor.numpy()
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return on_cpu(list(value))
        return value.astype(np.float32) if value.dtype.name in HALF else value
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        has_arrays = any(hasattr(row, "__array__") for row in value)
        return _of_one_type([on_cpu(row) for row in value]) if has_arrays else list(value)
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        return on_cpu(np.asarray(value))
    return value


def _of_one_type(rows: list[Any]) -> list[Any]:
    """Cast a list's arrays of floats, or of integers, to one type that holds all their values."""
    kinds = {row.dtype for row in rows if isinstance(row, np.ndarray) and row.dtype.kind in "iuf"}
    if len(kinds) < 2 or len({kind.kind == "f" for kind in kinds}) > 1:
        return rows
    common = np.result_type(*kinds)
    if common.kind == "f" and not any(kind.kind == "f" for kind in kinds):
        return rows  # no integer type holds both int64 and uint64
    return [row.astype(common) if isinstance(row, np.ndarray) else row for row in rows]
