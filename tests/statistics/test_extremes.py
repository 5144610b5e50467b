"""Worst tokens, worst sequences and non-finite counts: states that add up over any cut."""

from __future__ import annotations

from math import inf, nan

import pytest

from rcdiag.statistics.extremes import (
    TOKENS_KEPT,
    WORST,
    WORST_SEQUENCES,
    NonFinite,
    RowCount,
    WorstSequences,
    WorstTokens,
)
from rcdiag.statistics.pair import pair_of
from rcdiag.table.token_batch import sampled_tokens
from tests.builders import Lists, ids_like, make_pair, make_trajectories, summed
from tests.statistics.strategies import seeded_batch


def worst_of(*shards: tuple[Lists, Lists]) -> list[dict]:
    result, first_row = [], 0
    for behavior, target in shards:
        result.append(WorstTokens.of(make_pair(behavior, target, first_row=first_row)))
        first_row += len(behavior)
    return summed(result).tokens


def places(result: list[dict]) -> list[tuple[int, int]]:
    return [(item["row"], item["position"]) for item in result]


def test_worst_tokens_are_the_largest_log_ratios_with_their_positions():
    result = worst_of(([[-1.0, -2.0], [-3.0]], [[-1.1, -0.5], [-7.0]]))
    assert places(result) == [(1, 0), (0, 1), (0, 0)]
    assert result[0]["log_ratio"] == pytest.approx(-4.0)
    assert result[1]["behavior_log_prob"] == -2.0
    assert result[1]["target_log_prob"] == -0.5
    assert [item["token_id"] for item in result] == [2, 1, 0]


def test_masked_tokens_are_never_among_the_worst_and_positions_count_them():
    trajectories = make_trajectories([[-1.0, -1.0, -1.0]], [[-90.0, -1.0, -2.0]], [[0, 1, 1]])
    result = WorstTokens.of(pair_of(trajectories, "rollout", "old"))
    assert places(result.tokens) == [(0, 2), (0, 1)]


def test_worst_tokens_do_not_depend_on_how_rows_are_cut():
    behavior, target = seeded_batch(1, sequences=30)
    whole = worst_of((behavior, target))
    cut = worst_of((behavior[:7], target[:7]), (behavior[7:], target[7:]))
    assert len(whole) == WORST
    assert places(cut) == places(whole)


def test_ties_among_worst_tokens_go_to_the_first_rows_and_positions():
    rows = [[-1.0] * 7 for _ in range(40)]
    expected = [(row, position) for row in range(40) for position in range(7)][:WORST]
    assert places(worst_of((rows, rows))) == expected
    assert places(worst_of((rows[:11], rows[:11]), (rows[11:], rows[11:]))) == expected


def test_an_infinite_log_ratio_is_worst_and_a_nan_is_not_among_them():
    result = worst_of(([[-1.0, -1.0, -1.0]], [[nan, -inf, -2.0]]))
    assert places(result) == [(0, 1), (0, 2)]


def test_worst_tokens_do_not_depend_on_the_order_of_shards():
    behavior, target = seeded_batch(1, sequences=30)
    first = WorstTokens.of(make_pair(behavior[:12], target[:12]))
    second = WorstTokens.of(make_pair(behavior[12:], target[12:], first_row=12))
    assert places(summed([second, first]).tokens) == places(worst_of((behavior, target)))
    assert summed([second, WorstTokens()]) == second == summed([WorstTokens(), second])


def test_rows_without_tokens_have_no_worst_tokens():
    assert worst_of(([[], []], [[], []])) == []


def test_non_finite_values_are_counted_with_their_rows_at_unmasked_tokens_only():
    first = make_trajectories(
        [[nan, -1.0, inf], [-1.0]], [[-1.0, -1.0, -1.0], [-1.0]], [[1, 1, 0], [1]]
    )
    second = make_trajectories([[nan, -inf], [nan]], [[-1.0, -1.0], [nan]], first_row=2)
    result = summed(
        NonFinite.of(sampled_tokens(rows, ("rollout", "old"))) for rows in (first, second)
    )
    assert result.tokens == {"rollout": 4, "old": 1}
    assert result.positive.tokens == {}
    assert result.not_finite.rows == {"rollout": 3, "old": 1}
    assert result.not_finite.first_rows == {"rollout": [0, 2, 3], "old": [3]}
    assert result.nan.tokens == {"rollout": 3, "old": 1}


def worst_sequences_of(behavior: Lists, target: Lists, cuts: list[int]) -> WorstSequences:
    result = []
    for start, end in zip([0, *cuts], [*cuts, len(behavior)], strict=True):
        rows = slice(start, end)
        ids = ids_like(behavior[rows])
        pair = make_pair(behavior[rows], target[rows], first_row=start, token_ids=ids)
        result.append(WorstSequences.of(pair))
    return summed(result)


def test_worst_sequences_are_those_with_the_largest_sums_whatever_the_cut():
    behavior, target = seeded_batch(3, sequences=40)
    sums = [abs(sum(b) - sum(a)) for a, b in zip(behavior, target, strict=True)]
    filled = [row for row in range(40) if behavior[row]]
    expected = sorted(filled, key=lambda row: -sums[row])[:WORST_SEQUENCES]
    whole = worst_sequences_of(behavior, target, [])
    assert [item.row for item in whole.sequences] == expected
    assert worst_sequences_of(behavior, target, [9, 10, 33]).rounded() == whole.rounded()
    assert summed([WorstSequences(), whole]).rounded() == whole.rounded()


@pytest.mark.parametrize("cuts", [[20], [1, 2, 39], list(range(5, 40, 5))])
def test_rows_without_a_sum_displace_no_worst_sequence_for_any_cuts(cuts):
    behavior, target = seeded_batch(4, sequences=80)
    for row in range(0, 80, 2):
        target[row] = [nan] * len(target[row])
    whole = worst_sequences_of(behavior, target, [])
    assert len(whole.sequences) == WORST_SEQUENCES
    assert all(sequence.row % 2 for sequence in whole.sequences)
    assert worst_sequences_of(behavior, target, cuts).rounded() == whole.rounded()


def test_a_worst_sequence_has_its_positions_and_reward():
    pair = make_pair(
        [[-1.0, -1.0, -1.0], [-1.0]],
        [[-9.0, -1.5, -1.25], [-1.0]],
        mask=[[0, 1, 1], [1]],
        step=[4, 4],
        reward=[0.5, nan],
        token_ids=[[7, 8, 9], [6]],
    )
    first, second = WorstSequences.of(pair).rounded()
    assert (first.row, first.step, first.reward, first.num_tokens) == (0, 4, 0.5, 2)
    assert (first.positions, first.token_ids, first.log_ratio) == ([1, 2], [8, 9], [-0.5, -0.25])
    assert first.log_ratio_sum == pytest.approx(-0.75)
    assert second.reward is None


def test_a_long_sequence_keeps_its_first_tokens_and_its_full_sum():
    tokens = TOKENS_KEPT + 100
    (only,) = WorstSequences.of(make_pair([[-1.0] * tokens], [[-1.5] * tokens])).sequences
    assert (only.num_tokens, len(only.log_ratio), len(only.positions)) == (tokens, TOKENS_KEPT, 400)
    assert only.log_ratio_sum == pytest.approx(-0.5 * tokens)


def test_a_sequence_without_a_sum_is_never_among_the_worst():
    pair = make_pair([[-1.0], [-1.0], [-1.0]], [[nan], [-inf], [-2.0]])
    assert [item.row for item in WorstSequences.of(pair).sequences] == [1, 2]


@pytest.mark.parametrize("place", range(3))
def test_a_nan_in_any_part_makes_the_range_nan(place):
    """A column of one number and NaN is not constant, wherever the NaN is."""
    behavior = [[-1.0, -1.0]] * 30
    counts = []
    for part in range(3):
        target = [[-0.5, nan if part == place and row == 7 else -0.5] for row in range(30)]
        counts.append(RowCount.of(make_pair(behavior, target, first_row=30 * part).tokens))
    assert (count := summed(counts)).sequences == 90
    assert count.ranges["rollout"] == (-1.0, -1.0)
    assert count.ranges["old"] == pytest.approx((nan, nan), nan_ok=True)
    assert count.constant == {"rollout"}
