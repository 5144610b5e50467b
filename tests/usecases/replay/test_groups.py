"""Gradients summed by prompt group, and too few groups."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.usecases.replay.gradients import (
    Products,
    by_group,
    cosine,
    off_diagonal,
    relative_bias,
    relative_variance,
)


def test_a_group_of_several_counts_as_one():
    """Inner products within a prompt would include shared noise."""
    sketches = np.array([[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]])
    result = by_group(sketches, np.array([7, 4, 7]))
    assert result.tolist() == [[2.0, 1.0], [1.0, 3.0]]
    assert off_diagonal(result @ result.T, np.ones((1, 2)))[0] == pytest.approx(2 * (2 + 3))


def test_copies_of_a_group_are_left_out_of_a_resample():
    products = np.array([[1.0, 10.0, 100.0], [10.0, 2.0, 1000.0], [100.0, 1000.0, 3.0]])
    assert off_diagonal(products, np.array([[2.0, 1.0, 0.0]]))[0] == pytest.approx(2 * 2 * 10.0)
    assert off_diagonal(products, np.ones((1, 3)))[0] == pytest.approx(2 * 1110.0)


@pytest.mark.parametrize("groups", [0, 1, 2])
def test_fewer_than_three_groups_give_no_cosine(groups):
    gradients = np.ones((groups, 4))
    products = Products.of(gradients, gradients)
    assert cosine(products, 0).value is None
    assert relative_bias(products, 0).value is None
    assert relative_variance(products.gg) is None


def test_no_cosine_if_there_is_only_noise():
    """For gradients that cancel in pairs the norm estimate without the diagonal is not positive."""
    gradients = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    products = Products.of(gradients, gradients)
    assert cosine(products, 0).value is None
    assert relative_variance(products.gg) is None
