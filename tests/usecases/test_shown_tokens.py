"""Tokens of long sequences that a result keeps, and its summary of the others."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.table.opening import open_table
from rcdiag.usecases.score import score
from rcdiag.usecases.shown_sequences import TOKENS
from rcdiag.usecases.shown_tokens import (
    AROUND,
    FIRST_KEPT,
    MASKED_KEPT,
    gaps,
    masked_beside,
    shares,
    shown_tokens,
)
from tests.builders import write_table

RANDOM = np.random.default_rng(5)
LENGTH, ROWS = 900, 30


def test_space_left_by_short_sequences_goes_to_long_ones():
    assert shares([3, 100, 5, 100], 50) == [3, 21, 5, 21]
    assert shares([3, 4], 50) == [3, 4]
    assert shares([], 50) == []


def test_the_first_tokens_and_those_around_the_worst_are_kept():
    log_ratio = RANDOM.normal(0.0, 0.01, 5000)
    log_ratio[[700, 4990]] = [3.0, -4.0]
    shown = shown_tokens(log_ratio, 300)
    assert len(shown) <= 300
    assert np.array_equal(shown, np.unique(shown))
    assert set(range(FIRST_KEPT)) <= set(shown)
    assert set(range(700 - AROUND, 701 + AROUND)) <= set(shown)
    assert set(range(4990 - AROUND, 5000)) <= set(shown)


@pytest.mark.parametrize("most", [0, 1, 7, 30])
def test_a_small_limit_is_respected(most):
    assert len(shown_tokens(RANDOM.normal(size=100), most)) <= most


def test_gaps_and_shown_tokens_make_up_the_sequence():
    log_ratio = RANDOM.normal(size=2000)
    shown = shown_tokens(log_ratio, 200)
    found = gaps(log_ratio, shown)
    assert sum(tokens for _, tokens, _ in found) + len(shown) == 2000
    total = sum(missing for _, _, missing in found) + log_ratio[shown].sum()
    assert total == pytest.approx(log_ratio.sum())
    for place, tokens, _ in found:
        before = shown[place - 1] if place else -1
        after = shown[place] if place < len(shown) else 2000
        assert tokens == after - before - 1
    assert gaps(log_ratio, np.arange(2000)) == []


def test_masked_tokens_are_kept_only_next_to_shown_ones():
    mask = np.array([0, 1, 1, 0, 1, 1, 0, 0, 1, 0], bool)
    positions = np.flatnonzero(mask)
    assert masked_beside(mask, positions, np.arange(5)).tolist() == [0, 3, 6, 7, 9]
    assert masked_beside(mask, positions, np.array([0, 1, 4])).tolist() == [0, 9]
    assert masked_beside(mask, positions, np.array([1, 2])).tolist() == [3]
    assert len(masked_beside(np.arange(900) < 1, np.array([0]), np.array([0]))) == MASKED_KEPT


def test_a_result_keeps_the_worst_token_of_every_long_sequence(tmp_path):
    old = [-RANDOM.exponential(0.5, LENGTH) for _ in range(ROWS)]
    rollout = [np.minimum(row + RANDOM.normal(0.0, 0.05, LENGTH), 0.0) for row in old]
    ids = RANDOM.integers(0, 900, (ROWS, LENGTH))
    write_table(
        tmp_path / "long.parquet",
        response_ids=ids.tolist(),
        rollout_log_probs=[row.tolist() for row in rollout],
        old_log_probs=[row.tolist() for row in old],
    )
    result = score(open_table(tmp_path / "long.parquet"))
    taken = sum(len(one.log_ratio) for one in result.worst_sequences)
    assert 0.9 * TOKENS < taken <= TOKENS
    assert result.drawn_sequences == []
    for one in result.worst_sequences:
        log_ratio = old[one.row].astype(np.float32) - rollout[one.row].astype(np.float32)
        assert int(np.abs(log_ratio).argmax()) in one.positions
        assert one.log_ratio == pytest.approx(log_ratio[one.positions].tolist(), abs=2e-6)
        assert one.token_ids == ids[one.row][one.positions].tolist()
        assert sum(gap[2] for gap in one.gaps) + sum(one.log_ratio) == pytest.approx(
            one.log_ratio_sum, abs=1e-3
        )
