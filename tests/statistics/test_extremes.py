"""Worst tokens, non-finite counts and histograms: states that add up over any cut of the rows."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from rcdiag.statistics.extremes import WORST, NonFinite, WorstTokens
from rcdiag.statistics.histograms import (
    LOG_RATIO_EDGES,
    PROBABILITY_EDGES,
    log_ratio_counts,
    probability_counts,
)
from tests.builders import Lists, make_pair, make_trajectories
from tests.statistics.strategies import seeded_batch


def worst_of(*shards: tuple[Lists, Lists]) -> list[dict]:
    found, first_row = WorstTokens(), 0
    for behavior, target in shards:
        trajectories = make_trajectories(behavior, target, first_row=first_row)
        found.add(trajectories, trajectories.pair("rollout", "old"))
        first_row += len(behavior)
    return found.to_list()


def places(found: list[dict]) -> list[tuple[int, int]]:
    return [(each["row"], each["position"]) for each in found]


def test_worst_tokens_are_the_largest_log_ratios_with_their_places():
    found = worst_of(([[-1.0, -2.0], [-3.0]], [[-1.1, -0.5], [-7.0]]))
    assert places(found) == [(1, 0), (0, 1), (0, 0)]
    assert found[0]["log_ratio"] == pytest.approx(-4.0)
    assert found[1]["behavior_log_prob"] == -2.0
    assert found[1]["target_log_prob"] == -0.5
    assert [each["token_id"] for each in found] == [2, 1, 0]


def test_masked_tokens_are_never_among_the_worst_and_positions_count_them():
    trajectories = make_trajectories([[-1.0, -1.0, -1.0]], [[-90.0, -1.0, -2.0]], [[0, 1, 1]])
    found = WorstTokens()
    found.add(trajectories, trajectories.pair("rollout", "old"))
    assert places(found.to_list()) == [(0, 2), (0, 1)]


def test_worst_tokens_do_not_depend_on_how_rows_are_cut():
    behavior, target = seeded_batch(1, sequences=30)
    whole = worst_of((behavior, target))
    cut = worst_of((behavior[:7], target[:7]), (behavior[7:], target[7:]))
    assert len(whole) == WORST
    assert places(cut) == places(whole)


def test_ties_among_worst_tokens_go_to_the_first_rows_and_positions():
    rows = [[-1.0] * 7 for _ in range(40)]
    wanted = [(row, position) for row in range(40) for position in range(7)][:WORST]
    assert places(worst_of((rows, rows))) == wanted
    assert places(worst_of((rows[:11], rows[:11]), (rows[11:], rows[11:]))) == wanted


def test_an_infinite_log_ratio_is_worst_and_a_nan_comes_last():
    found = worst_of(([[-1.0, -1.0, -1.0]], [[nan, -inf, -2.0]]))
    assert places(found) == [(0, 1), (0, 2), (0, 0)]


def test_rows_without_tokens_have_no_worst_tokens():
    assert worst_of(([[], []], [[], []])) == []


def test_non_finite_values_are_counted_with_their_rows_at_unmasked_tokens_only():
    found = NonFinite()
    first = make_trajectories(
        [[nan, -1.0, inf], [-1.0]], [[-1.0, -1.0, -1.0], [-1.0]], [[1, 1, 0], [1]]
    )
    second = make_trajectories([[nan, -inf], [nan]], [[-1.0, -1.0], [nan]], first_row=2)
    found.add(first, ("rollout", "old"))
    found.add(second, ("rollout", "old"))
    assert found.tokens == {"rollout": 4, "old": 1}
    assert found.rows == {"rollout": 3, "old": 1}
    assert found.first_rows == {"rollout": [0, 2, 3], "old": [3]}


def test_histograms_of_two_shards_add_up_and_count_every_token():
    behavior, target = seeded_batch(2, sequences=30)
    whole = make_pair(behavior, target)
    halves = [make_pair(behavior[::2], target[::2]), make_pair(behavior[1::2], target[1::2])]
    for counts in (log_ratio_counts, probability_counts):
        assert np.array_equal(counts(whole), counts(halves[0]) + counts(halves[1]))
        assert counts(whole).sum() == len(whole.log_ratio)


def test_log_ratio_edges_are_symmetric_and_infinities_fall_into_the_outermost_bins():
    assert np.allclose(LOG_RATIO_EDGES, -LOG_RATIO_EDGES[::-1], rtol=0, atol=0)
    counts = log_ratio_counts(make_pair([[-1.0, -inf, -1.0, -1.0]], [[-inf, -1.0, nan, -1.0]]))
    assert (counts[0], counts[-1], counts.sum()) == (1, 1, 3)
    assert counts[len(counts) // 2] == 1


def test_probability_cells_are_behavior_by_target():
    counts = probability_counts(make_pair([[np.log(0.255), 0.0]], [[np.log(0.755), -inf]]))
    assert len(PROBABILITY_EDGES) == len(counts) + 1
    assert counts[25, 75] == 1
    assert counts[99, 0] == 1
    assert counts.sum() == 2
