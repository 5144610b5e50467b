"""Order of rows and shards does not matter; many clusters fold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcdiag.statistics.pair import PolicyPair
from rcdiag.usecases.sweep import sums
from rcdiag.usecases.sweep.estimates import length_quartiles, sweep_rows
from rcdiag.usecases.sweep.estimator_families import FAMILIES
from rcdiag.usecases.sweep.sums import SweepState
from tests.corrections.batches import seeded
from tests.corrections.builders import Padded, padded
from tests.usecases.sweep.builders import flat, pair_from, state_of

GRIDS = {family: about.grid(20)[::7] for family, about in FAMILIES.items()}


def numbers(state: SweepState) -> dict[str, list[float]]:
    """Return every number of every row."""
    return {family: [x for row in sweep_rows(state, family) for x in flat(row)] for family in GRIDS}


def same(whole: SweepState, *others: SweepState) -> None:
    expected = numbers(whole)
    for other in others:
        for family, result in numbers(other).items():
            near = pytest.approx(expected[family], rel=1e-12, abs=1e-12, nan_ok=True)
            assert result == near, family
        assert length_quartiles(other) == length_quartiles(whole)


def shards(batch: Padded, cuts: int) -> list[PolicyPair]:
    return [pair_from(batch.rows(part)) for part in np.array_split(np.arange(len(batch)), cuts)]


@given(seed=st.integers(0, 99), cuts=st.integers(2, 6))
@settings(max_examples=5)
def test_shards_and_orders_give_the_same(seed, cuts):
    batch = seeded(seed, rows=24)
    whole = state_of(GRIDS, shards(batch, 1))
    shuffled = batch.rows(np.random.default_rng(seed).permutation(len(batch)))
    # `state_of` merges the states of its shards into the first.
    same(whole, *(state_of(GRIDS, shards(rows, cuts)) for rows in (batch, shuffled)))


def arrays_of(state: SweepState) -> list[np.ndarray]:
    """Return a copy of every array of sums in a state."""
    arrays = [*state.tables.values(), *(state.groups_with_two(family) for family in GRIDS)]
    return [item.copy() for item in arrays]


@pytest.mark.parametrize("most", [4, 256])
def test_a_merged_state_is_not_changed(monkeypatch, most):
    monkeypatch.setattr(sums, "MAX_CLUSTERS", most)
    first, second, third = (state_of(GRIDS, [pair]) for pair in shards(seeded(3, rows=24), 3))
    before = [arrays_of(item) for item in (second, third)]
    first.add(second)
    first.add(third)
    for item, arrays in zip((second, third), before, strict=True):
        for array, expected in zip(arrays_of(item), arrays, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_shards_with_nan_and_infinities_merge():
    """Including NaN, infinite and overflowing ratios, and infinite rewards of either sign."""
    log_ratios = [[0.1], [np.nan], [np.inf, 0.2], [-np.inf], [700.0, 9.5], [700.0, 9.5]]
    reward = np.array([np.inf, -np.inf, 1.0, np.nan, 1e308, 1e308])
    group = np.array([1, 1, 2, 2, 3, 3])
    batch = padded(log_ratios, reward=reward, group=group)
    for rows in ([0, 1, 2, 3, 4, 5], [0, 3], [4, 5]):
        some = batch.rows(np.array(rows))
        same(state_of(GRIDS, shards(some, 1)), state_of(GRIDS, shards(some, len(rows))))


def test_small_chunks_give_the_same(monkeypatch):
    batch = seeded(5, rows=24)
    whole = state_of(GRIDS, shards(batch, 1))
    monkeypatch.setattr(sums, "CELLS", 16)
    same(whole, state_of(GRIDS, shards(batch, 1)))


def test_folded_clusters_are_the_same_whatever_the_order(monkeypatch):
    monkeypatch.setattr(sums, "MAX_CLUSTERS", 4)
    batch = seeded(7, rows=40)
    whole = state_of(GRIDS, shards(batch, 1))
    assert whole.num_clusters == 4
    same(whole, state_of(GRIDS, list(reversed(shards(batch, 5)))))


def test_folding_changes_no_value(monkeypatch):
    batch = seeded(7, rows=40)
    whole = state_of(GRIDS, shards(batch, 3))
    expected = sweep_rows(whole, "seq_tis")
    monkeypatch.setattr(sums, "MAX_CLUSTERS", 4)
    few = state_of(GRIDS, shards(batch, 3))
    for row, other in zip(sweep_rows(few, "seq_tis"), expected, strict=True):
        assert row.ess_seq_applied.value == pytest.approx(other.ess_seq_applied.value, rel=1e-12)
        assert row.kept_groups == other.kept_groups


def test_sequences_of_very_different_ratios_merge_in_either_order():
    """Ratios of sequences are stored relative to the largest, which may come last."""
    random = np.random.default_rng(0)
    ratio = random.normal(0.0, 0.3, (12, 4))
    ratio[7] += 250.0
    batch = Padded(np.minimum(ratio, 0), -np.maximum(ratio, 0), np.ones((12, 4), bool),
                   np.arange(12))  # fmt: skip
    orders = shards(batch, 12), list(reversed(shards(batch, 12)))
    same(state_of(GRIDS, shards(batch, 1)), *(state_of(GRIDS, parts) for parts in orders))
