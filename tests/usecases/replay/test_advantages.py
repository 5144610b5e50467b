"""Advantages from rewards and groups: by hand, and against loops."""

from __future__ import annotations

from math import sqrt
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.errors import RcdiagError
from rcdiag.usecases.replay.token_advantages import ADVANTAGES, computed_advantages


def advantages(source: str, reward: list, group: list, lengths: list | None = None) -> list[float]:
    counts = np.array(lengths or [1] * len(reward))
    keys = np.array(group, np.uint64)
    return ADVANTAGES[source](np.array(reward, np.float64), keys, counts).tolist()


def test_grpo_divides_by_the_groups_own_spread():
    """Group 5: mean 2, std (n - 1) 1. Group 6: mean 0.5, std sqrt(1/2)."""
    result = advantages("grpo", [1, 0, 2, 3, 1], [5, 6, 5, 5, 6])
    half = 0.5 / (sqrt(0.5) + 1e-6)
    assert result == pytest.approx([-1 / (1 + 1e-6), -half, 0.0, 1 / (1 + 1e-6), half], rel=1e-12)


def test_rloo_subtracts_the_mean_of_the_others():
    """Rewards 1, 2, 6 minus 4, 3.5 and 1.5."""
    assert advantages("rloo", [1, 2, 6], [0, 0, 0]) == pytest.approx([-3.0, -1.5, 4.5])


def test_reinforce_plus_plus_whitens_over_tokens():
    """Rewards 0 on 1 token and 1 on 3: mean 3/4, variance (9/16 + 3/16) / 3 = 1/4."""
    result = advantages("reinforce++", [0, 1], [0, 0], [1, 3])
    assert result == pytest.approx([-0.75 / sqrt(0.25 + 1e-8), 0.25 / sqrt(0.25 + 1e-8)], rel=1e-12)


def test_reinforce_plus_plus_ignores_groups():
    rewards, lengths = [0, 1, 0.5, 2], [3, 1, 2, 7]
    together = advantages("reinforce++", rewards, [1, 1, 1, 1], lengths)
    assert advantages("reinforce++", rewards, [1, 2, 3, 4], lengths) == together


@pytest.mark.parametrize(("source", "expected"), [("grpo", 0.7 / (1 + 1e-6)), ("rloo", 0.7)])
def test_a_group_of_one_among_others_keeps_its_reward(source, expected):
    """As in verl, which uses mean 0 and std 1."""
    assert advantages(source, [0.7, 1.0, 3.0], [9, 4, 4])[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("source", list(ADVANTAGES))
def test_equal_rewards_give_zero_advantages(source):
    assert advantages(source, [0.3] * 4, [0, 0, 0, 0], [2, 5, 1, 1]) == pytest.approx([0.0] * 4)


LOOPS = {
    "grpo": lambda own, others: (own - fmean(others)) / (stdev(others) + 1e-6),
    "rloo": lambda own, others: own - (sum(others) - own) / (len(others) - 1),
}
REWARDS = st.integers(-8, 8).map(lambda count: count / 4)
ROWS = st.lists(st.tuples(REWARDS, st.integers(0, 3), st.integers(1, 9)), min_size=2, max_size=12)


@pytest.mark.parametrize("source", list(LOOPS))
@given(rows=ROWS)
def test_groups_are_those_of_a_loop(source, rows):
    result = advantages(source, *map(list, zip(*rows, strict=True)))
    for (own, key, _), value in zip(rows, result, strict=True):
        others = [reward for reward, group, _ in rows if group == key]
        alone = own / (1 + 1e-6) if source == "grpo" else own
        expected = LOOPS[source](own, others) if len(others) > 1 else alone
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(rows=ROWS)
def test_whitened_advantages_are_those_of_a_loop(rows):
    tokens = [reward for reward, _, count in rows for _ in range(count)]
    mean = fmean(tokens)
    variance = sum((item - mean) ** 2 for item in tokens) / (len(tokens) - 1)
    result = advantages("reinforce++", *map(list, zip(*rows, strict=True)))
    expected = [(reward - mean) / sqrt(variance + 1e-8) for reward, _, _ in rows]
    assert result == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("source", ["grpo", "rloo"])
def test_only_groups_of_one_have_no_baseline(source):
    reward, group = np.array([1.0, 2.0]), np.array([1, 2], np.uint64)
    with pytest.raises(RcdiagError, match="every prompt group has one sequence, so that") as caught:
        computed_advantages(source, reward, group, np.array([1, 1]))
    assert "group_id" in caught.value.hint


def test_reinforce_plus_plus_needs_no_groups():
    reward, group = np.array([1.0, 2.0]), np.array([1, 2], np.uint64)
    result = computed_advantages("reinforce++", reward, group, np.array([1, 1]))
    assert result == pytest.approx([-sqrt(0.5), sqrt(0.5)])


@pytest.mark.parametrize("unknown", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("source", list(ADVANTAGES))
def test_a_nan_reward_is_refused(source, unknown):
    reward, group = np.array([1.0, unknown, 0.0]), np.zeros(3, np.uint64)
    with pytest.raises(RcdiagError, match="1 of 3 rows have no finite reward"):
        computed_advantages(source, reward, group, np.array([1, 1, 1]))
