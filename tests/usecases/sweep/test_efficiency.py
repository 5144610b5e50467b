"""The score of gradients, against loops over pairs and against what is known."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.usecases.sweep.gradients import DIMENSIONS, buckets, sketches
from rcdiag.usecases.sweep.scores import Reference, batch_square, draws, off_diagonal, resolved


def sums(seed: int, clusters: int = 7, dimensions: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(1.0, 1.0, (clusters, dimensions))


def test_products_are_over_pairs_of_different_clusters():
    left, right, sizes = sums(0), sums(1), np.arange(1.0, 8.0)
    pairs = [(a, b) for a in range(7) for b in range(7) if a != b]
    wanted = sum(left[a] @ right[b] for a, b in pairs) / sum(sizes[a] * sizes[b] for a, b in pairs)
    found = off_diagonal(np.ones((1, 7)), sizes, left, right)
    assert found == pytest.approx([wanted])


def test_copies_of_a_cluster_are_no_pair():
    left, sizes = sums(0), np.ones(7)
    counts = np.array([[2.0, 0, 0, 3, 0, 0, 2]])
    drawn = [0, 0, 3, 3, 3, 6, 6]
    pairs = [(a, b) for a in drawn for b in drawn if a != b]
    wanted = sum(left[a] @ left[b] for a, b in pairs) / len(pairs)
    assert off_diagonal(counts, sizes, left, left) == pytest.approx([wanted])


def test_the_square_of_the_whole_table_is_that_of_its_mean():
    left, sizes = sums(0), np.arange(1.0, 8.0)
    once = np.ones((1, 7))
    square = off_diagonal(once, sizes, left, left)
    mean = left.sum(axis=0) / sizes.sum()
    assert batch_square(once, sizes, left, square, 1) == pytest.approx([mean @ mean])


def test_noise_in_a_part_of_the_table_is_as_many_times_as_large():
    random = np.random.default_rng(0)
    left = np.array([1.0, 0.0]) + random.normal(0.0, 1.0, (4000, 2))
    once, sizes = np.ones((1, 4000)), np.ones(4000)
    square = off_diagonal(once, sizes, left, left)
    assert batch_square(once, sizes, left, square, 100) == pytest.approx([1.05], rel=0.05)


def test_efficiency_of_the_reference_is_its_share_of_signal():
    random = np.random.default_rng(1)
    left = np.array([0.1, 0.0]) + random.normal(0.0, 1.0, (4000, 2))
    reference = Reference(np.ones((1, 4000)), np.ones(4000), left, 1)
    assert reference.efficiency(left)[0] == pytest.approx(0.01 / (0.01 + 2 / 4000), rel=0.05)
    assert reference.efficiency(3.0 * left)[0] == pytest.approx(reference.efficiency(left)[0])
    assert reference.efficiency(-left)[0] == 0.0
    assert reference.efficiency(0.0 * left)[0] == 0.0


def test_noise_alone_is_not_resolved():
    random = np.random.default_rng(2)
    counts = draws(300, 0)
    noise = random.normal(0.0, 1.0, (300, DIMENSIONS))
    assert not resolved(Reference(counts, np.ones(300), noise, 1).square)
    signal = noise + 1.0
    assert resolved(Reference(counts, np.ones(300), signal, 1).square)


def test_sketches_keep_inner_products_in_the_mean():
    random = np.random.default_rng(3)
    ids = np.arange(20_000, dtype=np.int32)
    bucket, sign = buckets(ids)
    assert np.bincount(bucket, minlength=DIMENSIONS).min() > 0.8 * len(ids) / DIMENSIONS
    assert abs(sign.mean()) < 0.03
    products = []
    for _ in range(2000):
        few = random.integers(0, len(ids), 10)
        both = [random.normal(size=10) for _ in range(2)]
        a, b = (sketches(bucket[few], sign[few] * values, 1)[0] for values in both)
        products.append(a @ b - both[0] @ both[1])
    assert abs(np.mean(products)) < 4.0 * np.std(products) / np.sqrt(2000)
