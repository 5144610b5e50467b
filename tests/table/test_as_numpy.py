"""Arrow columns as numpy sees them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.table.as_numpy import as_numpy, valid

KINDS = ["int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64", "bool"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [slice(0, 0), slice(0, 21), slice(3, 20)])
def test_values_are_those_that_pyarrow_gives(kind, part):
    numbers = (np.arange(21) % 3 != 0).astype(kind)
    array = pa.array(numbers)[part]
    expected = array.to_numpy(zero_copy_only=False)
    found = as_numpy(array)
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["int32", "uint64", "float32", "float64"])
def test_null_is_nan(kind):
    array = pa.array([1, None, 3, 4, None, 6, 7, 8, None, 10], getattr(pa, kind)())[2:]
    expected = array.to_numpy(zero_copy_only=False)
    found = as_numpy(array)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected, equal_nan=True)


def test_values_of_chunks_follow_each_other():
    chunks = pa.chunked_array([[1, 2], [], [3]], pa.int64())
    assert as_numpy(chunks).tolist() == [1, 2, 3]
    assert as_numpy(chunks.slice(0, 0)).tolist() == []


@pytest.mark.parametrize("first", [0, 1, 9])
def test_valid_tells_values_from_null(first):
    lists = pa.array([[1], None, [], [2], None, [3], [4], [5], [6], None, [7]])[first:]
    assert valid(lists).tolist() == [value is not None for value in lists.to_pylist()]
    assert valid(pa.chunked_array([lists, lists])).tolist() == 2 * valid(lists).tolist()
    assert valid(pa.nulls(3)).tolist() == [False] * 3


def test_score_leaves_pandas_alone(tmp_path):
    path = tmp_path / "table.parquet"
    lists = {"response_ids": [1, 2, 3], "rollout_log_probs": [-1.0, -2.0, -0.5]}
    lists |= {"old_log_probs": [-1.1, -2.0, -0.5], "response_mask": [1, 0, 1]}
    rows = {name: [values, values] for name, values in lists.items()}
    pq.write_table(pa.table({**rows, "reward": [1.0, None], "group_id": ["a", "b"]}), path)
    code = (
        "import sys, rcdiag; rcdiag.score(sys.argv[1])\n"
        "print([name for name in ('pandas',) if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"
