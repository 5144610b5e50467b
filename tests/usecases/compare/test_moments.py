"""Moments of several policies against plain numpy over flat tokens."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.results import MetricValue
from rcdiag.statistics.moments import Moments, mean
from tests.builders import flat, summed
from tests.usecases.compare.tables import base_log_probs, moments, robust, shifted

BASE = base_log_probs(40)
POLICIES = {"a": BASE, "b": shifted(BASE, 0.1, 1), "c": shifted(BASE, 0.3, 2)}
MASK = [[int((row + at) % 3 != 1) for at in range(len(BASE[row]))] for row in range(40)]
GROUP = [row // 3 for row in range(40)]
TOKEN_GROUP = np.repeat(GROUP, [len(row) for row in BASE])
KEEP = flat(MASK).astype(bool)


def tokens_of(name: str) -> np.ndarray:
    return flat(POLICIES[name])[KEEP]


def k2(some: Moments, one: str, other: str) -> MetricValue:
    return mean(0.5 * some.squares(one, other), some.tokens)


@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("b", "c"), ("c", "a")])
def test_k2_is_half_the_mean_square_over_unmasked_tokens(one, other):
    result = k2(moments(POLICIES, mask=MASK), one, other)
    apart = tokens_of(other) - tokens_of(one)
    assert result.value == pytest.approx(np.mean(apart**2) / 2, rel=1e-12)


def test_k2_has_the_interval_of_the_cluster_robust_formula():
    result = k2(moments(POLICIES, mask=MASK, group=GROUP), "a", "c")
    halves = (tokens_of("c") - tokens_of("a")) ** 2 / 2
    expected = robust(halves, np.ones_like(halves), TOKEN_GROUP[KEEP])
    assert (result.value, result.low, result.high) == pytest.approx(expected, rel=1e-10)


def test_rows_without_a_group_are_single_clusters():
    some = moments(POLICIES)
    result = mean(some.difference("b"), some.tokens)
    apart = flat(POLICIES["b"]) - flat(BASE)
    rows = np.repeat(np.arange(40), [len(row) for row in BASE])
    expected = robust(apart, np.ones_like(apart), rows)
    assert (result.value, result.low, result.high) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("dirt", [nan, inf, -inf])
def test_values_at_masked_tokens_are_ignored(dirt):
    dirty = {
        name: [
            [value if kept else dirt for value, kept in zip(row, mask, strict=True)]
            for row, mask in zip(rows, MASK, strict=True)
        ]
        for name, rows in POLICIES.items()
    }
    clean, other = moments(POLICIES, mask=MASK), moments(dirty, mask=MASK)
    np.testing.assert_array_equal(clean.sums.sums, other.sums.sums)


def test_a_row_without_an_unmasked_token_is_no_cluster():
    mask = [[0] * len(BASE[0]), *([1] * len(row) for row in BASE[1:])]
    assert len(moments(POLICIES, mask=mask).tokens) == 39


def test_one_cluster_has_a_value_and_no_interval():
    result = k2(moments(POLICIES, group=[7] * 40), "a", "b")
    assert result.value == pytest.approx(np.mean((flat(POLICIES["b"]) - flat(BASE)) ** 2) / 2)
    assert (result.low, result.high) == (None, None)


@given(st.permutations(range(40)), st.integers(1, 40))
def test_order_of_rows_and_cuts_between_them_do_not_matter(order, size):
    def part(rows, first_row):
        chosen = {name: [values[row] for row in rows] for name, values in POLICIES.items()}
        mask, group = [MASK[row] for row in rows], [GROUP[row] for row in rows]
        return moments(chosen, mask=mask, group=group, first_row=first_row)

    whole = moments(POLICIES, mask=MASK, group=GROUP)
    cut = summed([part(order[start : start + size], start) for start in range(0, 40, size)])
    np.testing.assert_allclose(cut.sums.sums, whole.sums.sums, rtol=1e-12, atol=1e-12)
    one, other = k2(whole, "b", "c"), k2(cut, "b", "c")
    assert (one.value, one.low, one.high) == pytest.approx(
        (other.value, other.low, other.high), rel=1e-12
    )


def test_similar_policies_far_from_the_first_are_distinguished():
    """A stale sampler, one nat away, must not hide the difference of two float32 scorers."""
    far = shifted(BASE, 1.0, 5)
    near = [[value + 1e-5 * (-1) ** at for at, value in enumerate(row)] for row in BASE]
    result = k2(moments({"far": far, "a": BASE, "b": near}), "a", "b")
    assert result.value == pytest.approx(0.5e-10, rel=1e-3)
