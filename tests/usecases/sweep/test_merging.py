"""Order of rows and shards does not matter; many clusters fold."""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcdiag.results import MetricValue
from rcdiag.results.sweep import SweepRow
from rcdiag.statistics.pair import PolicyPair
from rcdiag.usecases.sweep import keyed, state
from rcdiag.usecases.sweep.estimates import kept_groups, length_quartiles, sweep_rows
from rcdiag.usecases.sweep.families import FAMILIES
from rcdiag.usecases.sweep.state import SweepState
from tests.corrections.batches import seeded
from tests.corrections.builders import Padded
from tests.usecases.sweep.builders import block_from, state_of

GRIDS = {family: about.grid(20)[::7] for family, about in FAMILIES.items()}


def numbers(state: SweepState) -> dict[str, list[float]]:
    """Every number of every row."""
    groups = kept_groups(state)
    return {
        family: [x for row in sweep_rows(state, family, grid, groups) for x in flat(row)]
        for family, grid in GRIDS.items()
    }


def flat(row: SweepRow) -> list[float]:
    found: list[Any] = []
    for each in fields(row):
        value = getattr(row, each.name)
        if isinstance(value, MetricValue):
            found += astuple(value)[:3]
        elif isinstance(value, list):
            found += value
        elif each.name != "bounds":
            found.append(value)
    return [np.nan if value is None else float(value) for value in found]


def same(one: SweepState, other: SweepState) -> None:
    wanted = numbers(other)
    for family, found in numbers(one).items():
        assert found == pytest.approx(wanted[family], rel=1e-12, abs=1e-12, nan_ok=True), family
    assert length_quartiles(one) == length_quartiles(other)


def blocks(batch: Padded, cuts: int) -> list[PolicyPair]:
    return [block_from(batch.rows(part)) for part in np.array_split(np.arange(len(batch)), cuts)]


@given(seed=st.integers(0, 99), cuts=st.integers(2, 6))
@settings(max_examples=5)
def test_blocks_shards_and_orders_give_the_same(seed, cuts):
    batch = seeded(seed, rows=24)
    whole = state_of(GRIDS, blocks(batch, 1))
    same(state_of(GRIDS, blocks(batch, cuts)), whole)
    shuffled = batch.rows(np.random.default_rng(seed).permutation(len(batch)))
    same(state_of(GRIDS, blocks(shuffled, cuts)), whole)
    parts = [state_of(GRIDS, [pair]) for pair in blocks(shuffled, cuts)]
    for other in parts[1:]:
        parts[0].merge(other)
    same(parts[0], whole)


def test_small_chunks_give_the_same(monkeypatch):
    batch = seeded(5, rows=24)
    whole = state_of(GRIDS, blocks(batch, 1))
    monkeypatch.setattr(state, "CELLS", 16)
    same(state_of(GRIDS, blocks(batch, 1)), whole)


def test_folded_clusters_are_the_same_whatever_the_order(monkeypatch):
    monkeypatch.setattr(keyed, "MAX_CLUSTERS", 4)
    batch = seeded(7, rows=40)
    whole = state_of(GRIDS, blocks(batch, 1))
    assert len(whole.keyed.keys) == 4
    parts = [state_of(GRIDS, [pair]) for pair in reversed(blocks(batch, 5))]
    for other in parts[1:]:
        parts[0].merge(other)
    same(parts[0], whole)


def test_folding_changes_no_value(monkeypatch):
    batch = seeded(7, rows=40)
    whole = state_of(GRIDS, blocks(batch, 3))
    grid = GRIDS["seq_tis"]
    wanted = sweep_rows(whole, "seq_tis", grid, kept_groups(whole))
    monkeypatch.setattr(keyed, "MAX_CLUSTERS", 4)
    few = state_of(GRIDS, blocks(batch, 3))
    for row, other in zip(sweep_rows(few, "seq_tis", grid, kept_groups(few)), wanted, strict=True):
        assert row.ess_seq.value == pytest.approx(other.ess_seq.value, rel=1e-12)
        assert row.kept_groups == other.kept_groups


def test_sequences_far_apart_in_size_lose_nothing_in_either_order():
    """Ratios of sequences are held relative to the largest, which may come last."""
    random = np.random.default_rng(0)
    ratio = random.normal(0.0, 0.3, (12, 4))
    ratio[7] += 250.0
    batch = Padded(np.minimum(ratio, 0), -np.maximum(ratio, 0), np.ones((12, 4), bool),
                   np.arange(12))  # fmt: skip
    same(state_of(GRIDS, blocks(batch, 12)), state_of(GRIDS, blocks(batch, 1)))
    same(state_of(GRIDS, list(reversed(blocks(batch, 12)))), state_of(GRIDS, blocks(batch, 1)))
