"""Ragged rows: temperatures, slices and names."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.table.trajectories import POLICY_NAME, Ragged
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
