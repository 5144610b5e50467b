import numpy as np

from rcdiag.learning.families import families_of, separate_families

LENGTHS = [3, 1, 4, 2]


def by_row(values, vector):
    return np.repeat(np.array(values, np.float64), LENGTHS) * vector


def test_vectors_that_differ_by_one_factor_per_row_are_one_family():
    first, other = np.random.default_rng(0).normal(size=(2, 10))
    factors = np.array([[2.0, -1.0, 0.5, 1e6], [0.0, 1.0, 0.0, 3.0]])
    vectors = np.stack([by_row(factors[1], first), first, other, by_row(factors[0], first)])
    one, two = families_of(vectors, LENGTHS)
    assert one.own == 1
    assert set(one.members) == {0, 3}
    np.testing.assert_array_equal(one.leader, first)
    for number, expected in ((0, factors[1]), (3, factors[0])):
        np.testing.assert_allclose(one.factors[one.members.index(number)], expected, rtol=1e-12)
    # A row of one token is a multiple of any other.
    assert (two.own, two.members) == (2, ())


def test_a_leader_takes_missing_rows_from_other_vectors():
    vector = np.random.default_rng(0).normal(size=10)
    vectors = np.stack([by_row([1, 2, 0, 0], vector), by_row([0, 3, 4, 0], vector)])
    (family,) = families_of(vectors, LENGTHS)
    assert family.own is None
    for number, factors in zip(family.members, family.factors, strict=True):
        np.testing.assert_allclose(np.repeat(factors, LENGTHS) * family.leader, vectors[number])


def test_a_small_difference_within_a_row_makes_two_families():
    vector = np.random.default_rng(0).normal(size=10)
    other = vector.copy()
    other[5] *= 1 + 1e-6
    assert len(families_of(np.stack([vector, other]), LENGTHS)) == 2
    other[5] = vector[5] * (1 + 1e-12)
    assert len(families_of(np.stack([vector, other]), LENGTHS)) == 1


def test_without_rows_each_vector_is_its_own_family():
    vectors = np.ones((2, 10))
    assert [family.own for family in separate_families(vectors)] == [0, 1]
    assert [family.members for family in separate_families(vectors)] == [(), ()]
