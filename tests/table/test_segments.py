"""Reductions over ragged segments."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.table.segments import segment_max, segment_sum

ROWS = st.lists(st.lists(st.floats(-700.0, 700.0), max_size=5), min_size=1, max_size=6)


@given(ROWS)
def test_each_segment_is_reduced_alone_and_an_empty_one_is_neutral(rows):
    values = np.array([value for row in rows for value in row], dtype=float)
    lengths = np.array([len(row) for row in rows])
    assert np.allclose(segment_sum(values, lengths), [sum(row) for row in rows])
    assert segment_max(values, lengths).tolist() == [max(row, default=-np.inf) for row in rows]


def test_integer_sums_stay_integers():
    result = segment_sum(np.array([1, 0, 1], dtype=np.int64), np.array([2, 0, 1]))
    assert (result.dtype, result.tolist()) == (np.int64, [1, 0, 1])
