"""Sums over the parts of a batch equal plain formulas on the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rcdiag.statistics.accumulator import PairState
from rcdiag.statistics.clusters import added_by_index
from rcdiag.statistics.extremes import NonFinite, WorstTokens, impossible, rows_of_numbers
from rcdiag.statistics.histograms import LOG_RATIO_EDGES, log_ratio_counts
from rcdiag.statistics.merging import merge
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.pareto import KEPT, UpperTail
from rcdiag.statistics.profiles import finished
from rcdiag.statistics.quantiles import COARSE_BINS, Ordered, Sketch, coarse_counts
from rcdiag.statistics.token_ids import worst_ids
from rcdiag.table.token_batch import TokenBatch
from rcdiag.usecases.corrected import CorrectionRows, asked_by, correction_results
from tests.builders import make_pair
from tests.corrections.builders import presets_of
from tests.statistics.comparisons import assert_near, assert_same_values

inf, nan = np.inf, np.nan

# Log-probs as in dumps, impossible values included.
ORDINARY = st.floats(-30.0, 0.0)
ANY = st.one_of(ORDINARY, st.sampled_from([nan, inf, -inf, 0.5, -1e300, -1e-300, -0.0]))


@st.composite
def rows(draw: st.DrawFn, values: Any = ORDINARY) -> dict[str, list]:
    """Draw 1 to 12 rows of 0 to 9 tokens with masks, few clusters, steps and ids."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any))

    def of_tokens(kind: Any) -> list[list]:
        return [draw(st.lists(kind, min_size=length, max_size=length)) for length in lengths]

    mask = of_tokens(st.integers(0, 1))
    next(row for row in mask if row)[0] = 1
    return {
        "behavior": of_tokens(values),
        "target": of_tokens(values),
        "mask": mask,
        "cluster": draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths))),
        "step": draw(st.lists(st.integers(1, 2), min_size=len(lengths), max_size=len(lengths))),
        "token_ids": of_tokens(st.integers(0, 5)),
    }


def cut(pair: PolicyPair, tokens: int) -> list[PolicyPair]:
    """Cut a batch into batches of about this many tokens."""
    blocks = pair.tokens.blocks(tokens)
    return [PolicyPair(block, pair.behavior, pair.target) for block in blocks]


@given(columns=rows(), size=st.integers(1, 20), steps=st.booleans())
def test_a_state_is_the_same_of_one_batch_and_of_many(columns, size, steps):
    pair = make_pair(**columns if steps else {**columns, "step": None})
    one, many = PairState.of(pair), merge(list(map(PairState.of, cut(pair, size))))
    for step, state in one.by_step().items():
        assert_same_values(many.by_step()[step], state)
    assert many.figures.to_dict() == one.figures.to_dict()
    assert many.worst_tokens == one.worst_tokens
    assert many.worst_sequences.rounded() == one.worst_sequences.rounded()
    assert worst_ids(many.vocabulary) == worst_ids(one.vocabulary)
    assert_near(finished(many.profiles), finished(one.profiles), "profiles")


@given(columns=rows(), size=st.integers(1, 20))
def test_corrections_are_the_same_of_one_batch_and_of_many(columns, size):
    plan = presets_of("verl-0.9")
    results = []
    for tokens in (10**6, size):
        parts = cut(make_pair(**columns), tokens)
        rows = [CorrectionRows.of(part.by_step(), plan, asked_by(plan)) for part in parts]
        results.append(correction_results(plan, merge(rows).whole))
    one, many = results
    assert_near(many, one, "corrections")


@given(columns=rows(ANY), size=st.integers(1, 20))
def test_blocks_hold_whole_sequences_once_and_in_order(columns, size):
    batch = make_pair(**columns).tokens
    blocks = batch.blocks(size)
    assert all(len(block.lengths) for block in blocks)
    # Blocks are minimal: without its last sequence a block is too short.
    assert all(block.lengths[:-1].sum() < size for block in blocks)
    assert merge([block.empty for block in blocks]) == batch.empty
    for name in ("lengths", "cluster", "row", "token_id", "position", "step"):
        if (column := getattr(batch, name)) is not None:
            joined = np.concatenate([getattr(block, name) for block in blocks])
            assert np.array_equal(joined, column), name
    for policy, values in batch.log_probs.items():
        joined = np.concatenate([block.log_probs[policy] for block in blocks])
        assert np.array_equal(joined, values, equal_nan=True)


@given(columns=rows(), size=st.integers(1, 20))
def test_masked_tokens_stay_with_the_rows_and_steps_of_their_block(columns, size):
    batch = make_pair(**columns).tokens
    masked = make_pair(**{**columns, "mask": _inverted(columns["mask"])}).tokens
    whole = replace(batch, masked=masked)
    expected = {step: _masked_rows(part) for step, part in whole.by_step().items()}
    found: dict[int | None, list[int]] = {step: [] for step in expected}
    for block in whole.blocks(size):
        for step, part in block.by_step().items():
            found[step] += _masked_rows(part)
    for step, rows in expected.items():
        assert sorted(found[step]) == rows


def _masked_rows(batch: TokenBatch) -> list[int]:
    assert batch.masked is not None
    rows: list[int] = batch.masked.row.tolist()
    return rows


def _inverted(mask: list[list[int]]) -> list[list[int]]:
    return [[1 - one for one in row] for row in mask]


@given(columns=rows(ANY))
def test_sequences_selected_as_a_slice_equal_an_index_selection(columns):
    batch = make_pair(**columns).tokens
    for first in range(len(batch.lengths)):
        keep = np.zeros(len(batch.lengths), np.bool_)
        keep[first : first + 3] = True
        part, tokens = batch.take(keep, {None: 2}), np.repeat(keep, batch.lengths)
        assert np.array_equal(part.token_id, batch.token_id[tokens])
        assert np.array_equal(part.row, batch.row[keep])
        assert part.empty == {None: 2}
        for policy, values in batch.log_probs.items():
            assert np.array_equal(part.log_probs[policy], values[tokens], equal_nan=True)


@given(columns=rows(ANY))
def test_rows_with_an_impossible_value_are_found_by_a_plain_loop_too(columns):
    batch = make_pair(**columns).tokens
    keep, bad = rows_of_numbers(batch), NonFinite.of(batch)
    ends = np.cumsum(batch.lengths)
    for index, end in enumerate(ends):
        tokens = slice(end - batch.lengths[index], end)
        flags = [impossible(values[tokens]).any() for values in batch.log_probs.values()]
        assert keep[index] == (not any(flags))
    for policy, values in batch.log_probs.items():
        assert bad.tokens.get(policy, 0) == impossible(values).sum()


NEAR_EDGES = st.sampled_from(LOG_RATIO_EDGES.tolist()).flatmap(
    lambda edge: st.sampled_from([edge, np.nextafter(edge, -inf), np.nextafter(edge, inf)])
)


@given(
    st.lists(
        st.one_of(st.floats(), NEAR_EDGES, st.sampled_from([0.0, -0.0, 5e-324, -5e-324])),
        max_size=60,
    )
)
def test_bins_of_log_ratios_equal_a_search_of_the_edges(values):
    counts = np.zeros(len(LOG_RATIO_EDGES) - 1, np.int64)
    for value in values:
        if not np.isnan(value):
            place = int(np.searchsorted(LOG_RATIO_EDGES, value, side="right")) - 1
            counts[min(max(place, 0), len(counts) - 1)] += 1
    assert log_ratio_counts(np.array(values, np.float64)).tolist() == counts.tolist()


@given(st.lists(st.floats(min_value=0.0), min_size=1, max_size=30))
def test_coarse_counts_are_sums_of_fine_counts(values):
    sizes = np.array(values)
    fine = Sketch((sizes,)).collapsed().counts
    assert fine is not None
    coarse = np.add.reduceat(fine, np.arange(0, len(fine), 512))
    assert coarse_counts(sizes, np.array([len(sizes)]))[0].tolist() == coarse.tolist()
    assert len(coarse) == COARSE_BINS


@given(
    st.lists(st.sampled_from([0.0, 1e-3, 0.5, 2.0, 7.0]) | st.floats(0, 1e3), min_size=1),
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=5),
)
def test_the_top_share_of_squares_is_that_of_the_sorted_values(values, shares):
    ordered = Ordered.of(Sketch((np.array(values),)))
    squares = np.square(np.sort(values)[::-1])
    for share in shares:
        part = ordered.top_share_of_squares(share)
        top = max(round(share * len(values)), 1)
        if squares.sum() == 0.0:
            assert np.isnan(part)
        else:
            assert part == pytest.approx(squares[:top].sum() / squares.sum(), rel=1e-12)


def test_the_top_share_of_squares_is_exact_across_many_thousand_values():
    values = np.random.default_rng(0).lognormal(0.0, 2.0, 5_000)
    squares = np.square(np.sort(values))[::-1]
    shares = [1 / 5000, 0.1, 0.2048, 0.5, 0.99, 1.0]
    ordered = Ordered.of(Sketch((values[:2_000], values[2_000:])))
    parts = [ordered.top_share_of_squares(share) for share in shares]
    expected = [squares[: round(share * 5_000)].sum() / squares.sum() for share in shares]
    assert parts == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("blocks", [1, 3, 40])
def test_an_upper_tail_of_blocks_is_that_of_all_values(blocks):
    values = np.random.default_rng(1).normal(size=3 * KEPT)
    values[[5, 70, 900]] = [nan, inf, -inf]
    tail = merge([UpperTail.of(some) for some in np.array_split(values, blocks)])
    finite = np.sort(values[np.isfinite(values)])
    assert np.array_equal(np.sort(tail.kept), finite[-KEPT:])
    assert (tail.count, tail.not_numbers) == (len(values), 2)


@given(st.integers(1, 700), st.integers(0, 3))
def test_worst_tokens_are_those_of_a_sort(count, seed):
    random = np.random.default_rng(seed)
    target = np.round(random.normal(-5.0, 1.0, count), 1)  # with ties
    target[random.random(count) < 0.1] = nan
    pair = make_pair([[-5.0] * count], [target.tolist()])
    sizes = np.abs(target + 5.0)
    order = [place for place in np.argsort(-sizes, kind="stable") if not np.isnan(sizes[place])]
    assert [token["position"] for token in WorstTokens.of(pair).tokens] == order[:20]


@pytest.mark.parametrize("columns", [2, 5])
def test_rows_are_added_where_their_index_says(columns):
    rows = np.arange(3.0 * columns).reshape(3, columns)
    expected = np.zeros((4, columns))
    expected[0], expected[2] = rows[0] + rows[2], rows[1]
    assert np.array_equal(added_by_index(np.array([0, 2, 0]), rows, 4), expected)
