"""Further numbers of rows: groups, quartiles, shifts, intervals."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.statistics.intervals import t_quantile
from rcdiag.usecases.sweep.estimates import length_quartiles, sweep_rows
from rcdiag.usecases.sweep.estimator_families import FAMILIES, settings
from tests.builders import make_pair
from tests.corrections.batches import seeded
from tests.corrections.builders import Padded, padded
from tests.usecases.sweep.builders import pair_from, rows_of_family, state_of

WINDOW = [{"lower": 0.5, "upper": 2.0}]


def only(family: str, batch: Padded, bounds: dict[str, float]):
    (row,) = rows_of_family(family, [bounds], batch)
    return row


def test_grids_are_wide_with_round_values_and_the_requested_size():
    for thresholds in [60, 200, 1000]:
        for family in FAMILIES:
            grid = settings(FAMILIES[family], thresholds)
            assert 0.75 * thresholds <= len(grid) <= 1.3 * thresholds + 10
            assert len({tuple(bounds.items()) for bounds in grid}) == len(grid)
            assert all(value > 0 for bounds in grid for value in bounds.values())
            axis = [bounds[FAMILIES[family].axis] for bounds in grid]
            assert axis == sorted(axis)


@pytest.mark.parametrize(
    ("family", "bounds"),
    [
        ("token_tis", {"upper": 2.0}),
        ("token_icepop", {"lower": 0.5, "upper": 5.0}),
        ("seq_rs", {"lower": 0.5, "upper": 2.0}),
        ("geo_rs", {"lower": 0.999, "upper": 1.001}),
        ("seq_mean_k3", {"upper": 0.01}),
        ("veto", {"lower": 1e-4}),
        ("geo_rs_token_tis", {"rs_lower": 0.999, "rs_upper": 1.001, "is_upper": 2.0}),
        ("k3_rs_seq_tis", {"rs_upper": 0.01, "is_upper": 2.0}),
    ],
)
def test_the_defaults_of_trainers_are_among_the_settings(family, bounds):
    assert bounds in settings(FAMILIES[family], 60)


def test_groups_that_keep_two_sequences():
    logs = [[0.0], [0.0], [0.0], [9.0], [0.0], [9.0], [9.0], [0.0]]
    batch = padded(logs, group=np.array([1, 1, 2, 2, 3, 4, 4, 5]))
    state = state_of({"seq_rs": WINDOW}, [pair_from(batch.rows(slice(i, i + 1))) for i in range(8)])
    assert state.groups_with_two("").tolist() == [3]
    assert state.groups_with_two("seq_rs").tolist() == [1]


def test_shares_by_quartile_of_the_length():
    logs = [[0.0] * n if n % 2 else [2.0] * n for n in range(1, 9)]
    batch = padded(logs)
    state = state_of({"token_rs": WINDOW}, [pair_from(batch)])
    assert length_quartiles(state) == [2.0, 4.0, 6.0]
    (row,) = sweep_rows(state, "token_rs")
    assert row.kept_by_length == pytest.approx([1 / 3, 3 / 7, 5 / 11, 7 / 15])
    assert state.base("sequences_by_length").sum() == 8


def test_shifts_of_reward_and_advantage():
    pair = make_pair(
        [[-1.0]] * 5, [[-1.0], [-1.0], [-3.0], [-3.0], [-1.0]], reward=[1, 3, 0, np.nan, np.nan]
    )
    state = state_of({"seq_rs": WINDOW}, [pair])
    (row,) = sweep_rows(state, "seq_rs")
    assert row.reward_shift.value == pytest.approx(2.0 - 4 / 3)
    assert row.advantage_shift.value is None


def test_without_rewards_nothing_shifts():
    row = only("seq_rs", padded([[0.0], [3.0]]), WINDOW[0])
    assert row.reward_shift.value is None
    assert row.advantage_shift.value is None


def test_one_cluster_has_no_intervals():
    row = only("seq_tis", padded([[0.1], [0.3]], group=np.zeros(2)), {"upper": 1.2})
    for value in (row.kept_token_share, row.ess_seq_applied, row.mean_weight, row.lost_mass):
        assert value.value is not None
        assert (value.low, value.high) == (None, None)


def jackknife(family: str, batch: Padded, bounds: dict[str, float], name: str) -> float:
    """Return the jackknife standard error, equal to first order."""
    groups = np.unique(batch.group)
    left = [
        getattr(only(family, batch.rows(batch.group != group), bounds), name).value
        for group in groups
    ]
    count = len(groups)
    return float(np.sqrt((count - 1) ** 2 / count) * np.std(left, ddof=1))


BY_DAY = [
    ("token_rs", {"lower": 0.8, "upper": 1.2}, "kept_token_share"),
    ("seq_rs", {"lower": 0.5, "upper": 2.0}, "lost_mass"),
    ("token_tis", {"upper": 1.1}, "mean_weight"),
    ("seq_tis", {"upper": 2.0}, "truncation_loss"),
]
BY_NIGHT = [
    ("seq_rs", {"lower": 0.5, "upper": 2.0}, "kept_sequence_share"),
    ("seq_rs", {"lower": 0.5, "upper": 2.0}, "reward_shift"),
    ("token_mis", {"lower": 0.8, "upper": 1.2}, "lost_mass"),
    ("token_tis", {"upper": 1.1}, "truncation_loss"),
    ("seq_tis", {"upper": 2.0}, "ess_seq_applied"),
]


@pytest.mark.parametrize(
    ("family", "bounds", "name"),
    [*BY_DAY, *(pytest.param(*case, marks=pytest.mark.slow) for case in BY_NIGHT)],
)
def test_intervals_are_as_wide_as_the_jackknife_says(family, bounds, name):
    batch = seeded(2, rows=600, width=8, sd=0.2)
    value = getattr(only(family, batch, bounds), name)
    clusters = len(np.unique(batch.group[batch.mask.any(axis=1)]))
    # An interval that ends at 0 or 1 is cut there, so its other half is checked too.
    reach = max(value.high - value.value, value.value - value.low)
    assert reach == pytest.approx(
        t_quantile(clusters) * jackknife(family, batch, bounds, name), rel=0.15
    )


def test_the_clamped_share_counts_weighted_tokens():
    batch = padded([[25.0, -25.0, 0.0], [0.0]])
    assert only("token_tis", batch, {"upper": 2.0}).clamped_share == 0.5
    assert only("seq_tis", batch, {"upper": 2.0}).clamped_share == 0.0


def test_equal_clusters_give_no_interval():
    row = only("seq_rs", seeded(2, rows=60, sd=0.01), WINDOW[0])
    assert row.kept_sequence_share.value == 1.0
    assert row.kept_sequence_share.low is None
    assert row.lost_mass.value == 0.0
    assert row.lost_mass.low is None
    assert row.reward_shift.low is None
