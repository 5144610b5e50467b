import numpy as np
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.learning.families import basis_of


def rebuilt(vectors: np.ndarray) -> np.ndarray:
    basis = basis_of(vectors)
    return basis.combine @ vectors[basis.rows]


def test_independent_vectors_form_the_basis():
    vectors = np.random.default_rng(0).normal(size=(4, 50))
    basis = basis_of(vectors)
    assert sorted(basis.rows) == [0, 1, 2, 3]
    np.testing.assert_allclose(rebuilt(vectors), vectors, atol=1e-12)


def test_multiples_sums_and_zeros_add_no_direction():
    a, b = np.random.default_rng(0).normal(size=(2, 50))
    vectors = np.stack([a, a, 1e-6 * b, 3 * a - 1e-7 * b, np.zeros(50), -a])
    assert len(basis_of(vectors).rows) == 2
    np.testing.assert_allclose(rebuilt(vectors), vectors, rtol=1e-9, atol=1e-15)


def test_a_small_difference_is_a_direction_of_its_own():
    a, b = np.random.default_rng(0).normal(size=(2, 50))
    assert len(basis_of(np.stack([a, a + 1e-6 * b])).rows) == 2


def test_sizes_far_apart_do_not_hide_a_vector():
    a, b = np.random.default_rng(0).normal(size=(2, 50))
    vectors = np.stack([1e9 * a, 1e-9 * b])
    assert len(basis_of(vectors).rows) == 2
    np.testing.assert_array_equal(rebuilt(vectors), vectors)


def test_more_vectors_than_tokens():
    vectors = np.random.default_rng(0).normal(size=(7, 3))
    assert len(basis_of(vectors).rows) == 3
    np.testing.assert_allclose(rebuilt(vectors), vectors, atol=1e-12)


def test_all_zeros_need_no_backward():
    assert len(basis_of(np.zeros((3, 5))).rows) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_named(value):
    vectors = np.ones((3, 5))
    vectors[1, 2] = value
    with pytest.raises(RcdiagError, match="vector 1"):
        basis_of(vectors)
