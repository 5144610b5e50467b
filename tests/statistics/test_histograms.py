"""Counts and paths for figures: states that add up over any cut of the rows."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from rcdiag.statistics.accumulator import PairState
from rcdiag.statistics.histograms import (
    LOG_PROB_EDGES,
    LOG_RATIO_EDGES,
    PATHS,
    POINTS,
    FigureData,
    log_prob_counts,
    log_ratio_counts,
)
from tests.builders import Lists, flat, make_pair, summed
from tests.statistics.strategies import log_ratios, seeded_batch


def figures_of(behavior: Lists, target: Lists, *cuts: int) -> FigureData:
    """Compute the figures of the rows, merged over some cuts."""
    return summed(
        PairState.of(make_pair(behavior[start:end], target[start:end], first_row=start)).figures
        for start, end in zip([0, *cuts], [*cuts, len(behavior)], strict=True)
    )


def test_figures_of_shards_add_up_to_those_of_all_rows():
    behavior, target = seeded_batch(2, sequences=120)
    whole = figures_of(behavior, target).to_dict()
    assert figures_of(behavior, target, 31, 50, 51, 90).to_dict() == whole
    tokens = len(flat(behavior))
    assert sum(whole["log_ratio_histogram"]["counts"]) == tokens
    assert sum(cell[2] for cell in whole["log_probs"]["cells"]) == tokens
    assert len(whole["paths"]) == PATHS


def test_log_ratio_edges_are_symmetric_and_infinities_fall_into_the_outermost_bins():
    assert np.allclose(LOG_RATIO_EDGES, -LOG_RATIO_EDGES[::-1], rtol=0, atol=0)
    counts = log_ratio_counts(np.array([-inf, inf, nan, 0.0]))
    assert (counts[0], counts[-1], counts.sum()) == (1, 1, 3)
    assert counts[len(counts) // 2] == 1


def test_log_ratios_are_counted_as_numpy_counts_them():
    ratios = log_ratios(seeded_batch(4, sequences=50))
    counts = log_ratio_counts(ratios)
    assert counts.tolist() == np.histogram(ratios, LOG_RATIO_EDGES)[0].tolist()


def test_log_prob_cells_are_behavior_by_target():
    counts = log_prob_counts(np.array([-0.3, 0.0, nan]), np.array([-15.99, -inf, -1.0]))
    last = len(LOG_PROB_EDGES) - 2
    assert counts.shape == (last + 1, last + 1)
    assert counts[np.searchsorted(LOG_PROB_EDGES, -0.3) - 1, 0] == 1
    assert counts[last, 0] == 1
    assert counts.sum() == 2


def test_log_probs_are_counted_as_numpy_counts_them():
    behavior, target = (flat(rows) for rows in seeded_batch(5, sequences=50))
    expected = np.histogram2d(behavior, target, [LOG_PROB_EDGES, LOG_PROB_EDGES])[0]
    assert np.array_equal(log_prob_counts(behavior, target), expected)


def test_a_path_is_the_running_sum_of_a_sequence_at_a_few_places():
    random = np.random.default_rng(0)
    log_ratio = random.normal(size=1000)
    figures = figures_of([[-1.0] * 1000], [(log_ratio - 1.0).tolist()])
    (path,) = figures.to_dict()["paths"]
    assert len(path["token_counts"]) == len(path["sums"]) == POINTS
    assert (path["token_counts"][0], path["token_counts"][-1]) == (1, 1000)
    expected = np.cumsum(log_ratio)[np.array(path["token_counts"]) - 1]
    assert path["sums"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("cuts", [(60,), (1, 2, 119), tuple(range(10, 120, 10))])
def test_rows_without_a_sum_displace_no_path_for_any_cuts(cuts):
    behavior, target = seeded_batch(6, sequences=120)
    for row in range(0, 120, 2):
        target[row] = [nan] * len(target[row])
    whole = figures_of(behavior, target).to_dict()
    filled = [row for row in range(1, 120, 2) if behavior[row]]
    assert len(whole["paths"]) == PATHS < len(filled)
    assert figures_of(behavior, target, *cuts).to_dict() == whole


def test_a_sequence_without_a_sum_has_no_path():
    figures = figures_of([[-1.0], [-1.0], [-1.0, -1.0]], [[nan], [-inf], [-1.5, -1.0]])
    assert [path["sums"] for path in figures.to_dict()["paths"]] == [[-0.5, -0.5]]
