"""Numbers and texts become the same columns as with Arrow's own `array`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rcdiag.table.arrow import from_numpy, from_python, lists

ARRAYS = (
    *(np.arange(20).astype(kind) for kind in ("i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8")),
    np.array([-0.0, np.nan, -np.inf, 1e-42], np.float32),
    np.arange(20)[::3],
    np.arange(0.0),
    np.array([True, False, True]),
    np.arange(4, dtype=">i4").astype("=i4"),
    np.array(["a", "b"]),
    np.array([None, "b"], object),
)


@pytest.mark.parametrize("values", ARRAYS, ids=lambda values: f"{values.dtype}-{len(values)}")
def test_arrays_become_the_same_columns_as_with_arrow(values):
    made, expected = from_numpy(values), pa.array(values)
    made.validate(full=True)
    assert (made.type, made.null_count) == (expected.type, expected.null_count)
    assert repr(made.to_pylist()) == repr(expected.to_pylist())


ROWS: tuple[tuple[list[Any], pa.DataType | None], ...] = (
    (["a", None, "", "é\u4e2d", "b" * 999], None),
    (["a", "b"], pa.string()),
    (["7"], pa.large_string()),
    ([None, None], pa.string()),
    ([], pa.int64()),
    ([1, None, -(2**63), 2**63 - 1], None),
    ([1, 2], pa.float64()),
    ([1, 2], pa.int32()),
    ([0.5, None, float("nan"), -0.0, 1e-320], None),
    ([1.5, 2.0], pa.int64()),
    ([True, None, False], None),
    ([1, 2.5], None),
    ([{"a": 1}], None),
    ([[1], None], None),
)


@pytest.mark.parametrize(("values", "kind"), ROWS, ids=lambda value: str(value)[:40])
def test_values_per_row_become_the_same_columns_as_with_arrow(values, kind):
    made, expected = from_python(values, kind), pa.array(values, kind)
    made.validate(full=True)
    assert (made.type, made.null_count) == (expected.type, expected.null_count)
    assert repr(made.to_pylist()) == repr(expected.to_pylist())


@pytest.mark.parametrize("values", [["a", 1], ["\ud800"], [2**63], [True, 1]], ids=repr)
def test_values_that_arrow_refuses_are_refused(values):
    with pytest.raises(Exception) as expected:  # noqa: PT011
        pa.array(values)
    with pytest.raises(type(expected.value)):
        from_python(values)


@pytest.mark.parametrize(
    "rows",
    [
        [np.array([1.5, -0.0], np.float32), None, np.array([], np.float32)],
        [np.array([1.5], np.float32)] * 3,
        [np.array([1.5], np.float64), [2.5, None], None],
        [[1.0]],
        [None, None],
        [],
    ],
    ids=str,
)
def test_lists_of_rows_become_the_same_columns_as_with_arrow(rows):
    made = lists(rows, np.float32)
    made.validate(full=True)
    assert made.equals(pa.array(rows, pa.list_(pa.float32())))


def test_pandas_is_not_imported():
    code = (
        "import sys, numpy as np\n"
        "from rcdiag.table.arrow import from_numpy, from_python, lists\n"
        "from_numpy(np.arange(3)), lists([np.arange(3.0), None], np.float64)\n"
        "from_python(['a', None]), from_python([1, None]), from_python([1.5])\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
