"""How the gradient is distributed over tokens and sequences, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.usecases.replay.preset_result import coefficient_numbers
from rcdiag.usecases.replay.preset_result import shares as shares_beside
from tests.usecases.replay.builders import batch_of, naive_of, one, table_of


def test_numbers_of_the_coefficients():
    result = coefficient_numbers(np.array([0.0, 3.0, -4.0, 0.0]))
    assert (result.norm, result.sum, result.abs_sum) == (5.0, -1.0, 7.0)
    assert (result.nonzero, result.largest) == (2, 4.0)


def rows(*lengths: int, advantages: list[float] | None = None):
    lists = [[-1.0] * count for count in lengths]
    signs = advantages or [1.0] * len(lengths)
    return batch_of(lists, lists, [[a] * n for a, n in zip(signs, lengths, strict=True)])


def shares(sizes, batch):
    """Compute shares of coefficients in a batch whose tokens count equally."""
    return shares_beside(sizes, batch, np.ones(batch.num_tokens))


def test_by_quarter_of_the_length():
    """Rows of 1, 2, 3 and 4 tokens, one per quarter, with sums |c| of 1, 2, 0 and 5."""
    sizes = [1.0, -1, 1, 0, 0, 0, 2, -1, -1, 1]
    result = shares(np.array(sizes), rows(1, 2, 3, 4))
    assert result.by_length == pytest.approx([1 / 8, 2 / 8, 0.0, 5 / 8])
    assert result.tokens_by_length == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_rows_of_one_length_are_in_one_quarter():
    result = shares(np.ones(8), rows(2, 2, 2, 2))
    assert sorted(result.by_length) == [0.0, 0.0, 0.0, 1.0]
    assert result.by_length == result.tokens_by_length


def test_the_order_of_the_rows_does_not_matter():
    sizes = np.array([5.0, 5, 5, 5, 1, 2, 2])
    one, other = shares(sizes, rows(4, 1, 2)), shares(sizes[::-1], rows(2, 1, 4))
    assert one.by_length == other.by_length
    assert one.sequences == other.sequences == pytest.approx([20 / 25, 4 / 25, 1 / 25])


def test_by_sign_of_the_advantage():
    """By the advantage, not by the sign of c; an advantage of 0 counts for neither."""
    batch = rows(2, 1, 1, advantages=[1.0, -2.0, 0.0])
    result = shares(np.array([1.0, -1.0, 5.0, 3.0]), batch)
    assert (result.positive_advantage, result.negative_advantage) == (0.2, 0.5)


@pytest.mark.parametrize(("count", "top"), [(10, 1), (100, 1), (149, 1), (250, 2), (300, 3)])
def test_the_top_hundredth_is_one_at_least(count, top):
    sizes = np.arange(1.0, count + 1)
    expected = sizes[-top:].sum() / sizes.sum()
    result = shares(sizes, rows(*[1] * count))
    assert result.top_tokens == pytest.approx(expected)
    assert result.top_sequences == pytest.approx(expected)


def test_tops_of_tokens_and_of_sequences_differ():
    """200 tokens in two rows: the top two tokens, and the top row."""
    sizes = np.r_[np.full(100, 1.0), np.full(98, 0.5), 10.0, 20.0]
    result = shares(sizes, rows(100, 100))
    assert result.top_tokens == pytest.approx(30 / 179)
    assert result.top_sequences == pytest.approx(100 / 179)


def test_a_hundred_sequences_are_listed_the_largest_first():
    result = shares(np.arange(1.0, 151.0), rows(*[1] * 150))
    total = 150 * 151 / 2
    assert len(result.sequences) == 100
    assert result.sequences[:2] == pytest.approx([150 / total, 149 / total])
    assert result.sequences[-1] == pytest.approx(51 / total)


def test_the_histogram_has_every_coefficient_except_zeros():
    sizes = np.array([0.0, 1e-20, 1e-3, -1e-3, 1e5])
    result = shares(sizes, rows(5)).histogram
    edges, counts = np.array(result["edges"]), np.array(result["counts"])
    assert counts.sum() == 4
    assert (counts[0], counts[-1]) == (1, 1)
    inside = int(np.searchsorted(edges, -3.0, side="right")) - 1
    assert counts[inside] + counts[inside - 1] == 2


@pytest.mark.parametrize("broken", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_shares_of_zero_and_of_nan_are_undefined(broken):
    assert shares(np.array(broken), rows(1, 1)) is None


def test_shares_of_a_table(tmp_path):
    """Without a step c of a token is -A / N: by rows 1, 2 x 3 and 3 x 1 of 10."""
    lists = [[-1.0], [-1.0] * 2, [-1.0] * 3, []]
    path = table_of(tmp_path / "t.parquet", lists, advantage=[1.0, -3.0, 1.0, 7.0])
    result = naive_of(path).shares
    assert result.sequences == pytest.approx([0.6, 0.3, 0.1])
    assert (result.positive_advantage, result.negative_advantage) == pytest.approx((0.4, 0.6))
    assert result.top_tokens == pytest.approx(0.3)
    assert result.top_sequences_uncorrected == pytest.approx(0.6)


def test_the_share_of_the_largest_sequences_without_correction():
    """By hand: lengths 3 and 2 under |A| 1 and 2 give 3 of 7 and 4 of 7."""
    batch = rows(3, 2, advantages=[1.0, -2.0])
    plain = np.array([1.0, 1.0, 1.0, 2.0, 2.0])
    result = shares_beside(np.array([9.0, 0, 0, 1, 0]), batch, plain)
    assert (result.top_sequences, result.top_sequences_uncorrected) == pytest.approx((0.9, 4 / 7))
    assert shares_beside(plain, batch, np.zeros(5)).top_sequences_uncorrected is None


@pytest.mark.parametrize(
    ("aggregation", "by_row"), [("token-mean", [1, 6, 3]), ("seq-mean-token-mean", [1, 3, 1])]
)
def test_weights_do_not_change_the_share_without_correction(tmp_path, aggregation, by_row):
    """Log-ratios of a nat change `top_sequences`, but not the share by lengths and advantages."""
    rollout, old = [[-1.0], [-1.0] * 2, [-1.0] * 3], [[-1.0], [-2.0] * 2, [-0.1] * 3]
    path = table_of(tmp_path / "t.parquet", rollout, old, advantage=[1.0, -3.0, 1.0])
    config = {"rollout_is": "token", "rollout_is_threshold": 5.0}
    weighted = one(path, config, aggregation=aggregation).shares
    plain = naive_of(path, aggregation=aggregation).shares
    expected = max(by_row) / sum(by_row)
    assert plain.top_sequences == pytest.approx(expected)
    for shares in (plain, weighted):
        assert shares.top_sequences_uncorrected == pytest.approx(expected)
    weights = [1.0, np.exp(-1.0), np.exp(0.9)]
    sums = np.multiply(by_row, weights)
    assert weighted.top_sequences == pytest.approx(sums.max() / sums.sum())
