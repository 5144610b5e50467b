"""Arrow columns as numpy arrays, against Arrow's own conversion."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rcdiag.table.arrow import as_numpy

NUMBERS = (
    pa.int8(),
    pa.uint16(),
    pa.int32(),
    pa.int64(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
)
VALUES = (
    *(pa.array(np.arange(20).astype(kind.to_pandas_dtype()), kind) for kind in NUMBERS),
    *(pa.array([3, None, 1, None] * 5).cast(kind) for kind in NUMBERS if kind != pa.float16()),
    pa.array([0.5, None, float("nan"), float("-inf")] * 5),
    pa.array([True, False, False, True, True] * 4),
    pa.array([True, None] * 10),
    pa.array(["a", None, "b", ""] * 5),
    pa.nulls(20),
    pa.nulls(20, pa.float32()),
)


@pytest.mark.parametrize("values", VALUES, ids=lambda values: f"{values.type}-{values.null_count}")
@pytest.mark.parametrize("part", [slice(0, 20), slice(9, 18), slice(8, 16), slice(5, 5)], ids=str)
def test_values_equal_arrows_own(values, part):
    column = values[part]
    expected = column.to_numpy(zero_copy_only=False)
    numbers = as_numpy(column)
    assert numbers.dtype == expected.dtype
    np.testing.assert_array_equal(numbers, expected)
    for chunks in ([column], [column, column[:2]], [column[:0]]):
        several = pa.chunked_array(chunks, column.type)
        np.testing.assert_array_equal(as_numpy(several), several.to_numpy())


def test_numbers_without_a_null_are_not_copied():
    column = pa.array(np.arange(5.0))[2:]
    assert as_numpy(column).ctypes.data == column.buffers()[1].address + 16


def test_an_empty_column_without_buffers_is_an_empty_array():
    for kind in (pa.bool_(), pa.float32(), pa.int64()):
        column = pa.Array.from_buffers(kind, 0, [None, None])
        assert as_numpy(column).dtype == column.to_numpy(zero_copy_only=False).dtype
        assert not as_numpy(column).size
