"""Ragged rows: temperatures, slices, names, and reductions to sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.table.trajectories import POLICY_NAME, Ragged, segment_max, segment_sum
from tests.builders import make_trajectories


def test_rows_of_unknown_temperature_are_scored_at_one():
    trajectories = make_trajectories([[-1.0], [-1.0]], [[-1.0], [-1.0]])
    assert trajectories.scoring_temperature.tolist() == [1.0, 1.0]


def test_a_ragged_row_is_its_slice():
    lists = Ragged(np.arange(5), np.array([0, 2, 2, 5]))
    assert [lists.row(index).tolist() for index in range(len(lists))] == [[0, 1], [], [2, 3, 4]]
    assert lists.lengths.tolist() == [2, 0, 3]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("old", True), ("vllm_bf16", True), ("hf-fp32", True), ("a.b", False), ("", False)],
)
def test_policy_names_are_letters_digits_and_dashes(name, is_one):
    assert bool(POLICY_NAME.fullmatch(name)) == is_one


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


@given(ROWS, st.data())
def test_lists_are_taken_by_index_and_by_flag(rows, data):
    lists = Ragged.of(np.concatenate([np.array(row, float) for row in rows]), [*map(len, rows)])
    flags = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    for chosen, expected in (
        (np.array(flags, bool), [row for row, flag in zip(rows, flags, strict=True) if flag]),
        (np.array(index, np.int64), [rows[place] for place in index]),
    ):
        taken = lists.take(chosen)
        assert [taken.row(place).tolist() for place in range(len(taken))] == expected
