"""Large tables: clusters share rows and values become counts; metrics are unchanged."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from rcdiag.statistics.accumulator import PairState
from rcdiag.statistics.clusters import cluster_sums
from rcdiag.statistics.merging import merge, take_in
from rcdiag.statistics.quantiles import Magnitudes, Ordered, Sketch, coarse_counts
from rcdiag.statistics.ranks import rank_sample
from rcdiag.statistics.suite import SuiteState, bounded
from rcdiag.usecases.corrected import asked_by
from rcdiag.usecases.score import PairWalk
from tests.builders import make_pair, make_state, mismatch, summed, values_of
from tests.corrections.builders import presets_of
from tests.statistics.comparisons import assert_same_values
from tests.statistics.strategies import seeded_batch

# Clusters enter these through their own standard errors.
OF_CLUSTERS = ("ratio_mean_z", "ratio_mean_seq_z", "kappa_se")


def halves(seed: int, rows: int = 300) -> list[SuiteState]:
    behavior, target = seeded_batch(seed, rows)
    middle = rows // 2
    first = make_state(behavior[:middle], target[:middle])
    return [first, make_state(behavior[middle:], target[middle:], first_row=middle)]


def test_folded_clusters_change_only_standard_errors(monkeypatch):
    expected = values_of(summed(halves(0)))
    monkeypatch.setattr("rcdiag.statistics.clusters.MAX_CLUSTERS", 64)
    state = summed(halves(0))
    assert (len(state.tokens), state.tokens.folded) == (64, True)
    result = values_of(state)
    for name in set(expected) - set(OF_CLUSTERS):
        assert result[name] == pytest.approx(expected[name], rel=1e-12, abs=1e-12), name
    for name in OF_CLUSTERS:
        assert result[name] == pytest.approx(expected[name], rel=0.4), name


def test_folded_clusters_have_intervals_of_nearly_the_same_width(monkeypatch):
    expected = mismatch(summed(halves(1)))
    monkeypatch.setattr("rcdiag.statistics.clusters.MAX_CLUSTERS", 100)
    result = mismatch(summed(halves(1)))
    for name in ("k1_kl", "k2_kl", "k3_kl", "prob_diff_mean", "log_ratio_abs_p50", "ess_token"):
        wider = (result[name].high - result[name].low) / (expected[name].high - expected[name].low)
        assert wider == pytest.approx(1.0, abs=0.3), name


def test_it_does_not_matter_when_clusters_are_folded(monkeypatch):
    monkeypatch.setattr("rcdiag.statistics.clusters.MAX_CLUSTERS", 10)
    random = np.random.default_rng(0)
    keys = random.integers(0, 2**63, 60).astype(np.uint64)
    rows = random.normal(size=(60, 3))
    whole = cluster_sums(keys, rows)
    few = [
        cluster_sums(keys[start : start + 4], rows[start : start + 4]) for start in range(0, 60, 4)
    ]
    assert not any(part.folded for part in few)
    halves = summed([summed(few[:8]), summed(few[8:])])
    for result in (summed(few), halves, summed([whole, cluster_sums(keys[:0], rows[:0])])):
        assert result.folded
        assert np.array_equal(result.keys, whole.keys)
        assert result.sums == pytest.approx(whole.sums)


def magnitudes_of(values: np.ndarray) -> Magnitudes:
    rows = len(values) // 10
    clusters = np.arange(rows).astype(np.uint64)
    counts = coarse_counts(values, np.full(rows, 10))
    return Magnitudes(Sketch((values,)), cluster_sums(clusters, counts))


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 5.0])
def test_quantiles_from_counts_are_within_a_thousandth(scale):
    values = scale * np.random.default_rng(0).lognormal(0.0, 1.5, size=20_000)
    result = Ordered.of(magnitudes_of(values).sketch.collapsed())
    for share in (0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0):
        assert result.quantile(share) == pytest.approx(np.quantile(values, share), rel=1e-3)


def test_the_top_share_from_counts_is_within_a_thousandth():
    values = np.random.default_rng(0).lognormal(0.0, 1.5, size=20_000)
    sketch = magnitudes_of(values).sketch
    expected = Ordered.of(sketch).top_share_of_squares(0.001)
    squares = np.sort(values**2)[::-1]
    assert expected == pytest.approx(squares[:20].sum() / squares.sum())
    result = Ordered.of(sketch.collapsed()).top_share_of_squares(0.001)
    assert result == pytest.approx(expected, rel=1e-3)


def test_values_and_counts_add_up_in_any_order():
    values = np.random.default_rng(1).lognormal(0.0, 1.5, size=3000)
    expected = magnitudes_of(values).sketch.collapsed()
    parts = [magnitudes_of(part).sketch for part in np.split(values, 3)]
    for counted in ({0}, {1, 2}, {0, 1, 2}):
        result = summed(
            part.collapsed() if index in counted else part for index, part in enumerate(parts)
        )
        assert result.raw is None
        assert np.array_equal(result.counts, expected.counts)


def test_zeros_are_counted_as_zeros():
    result = Ordered.of(magnitudes_of(np.array([0.0] * 9 + [0.5])).sketch.collapsed())
    assert result.quantile(0.5) == 0.0
    assert result.quantile(1.0) == pytest.approx(0.5, rel=1e-3)


def test_many_values_become_counts_and_a_sample(monkeypatch):
    expected = values_of(summed(halves(2)))
    monkeypatch.setattr("rcdiag.statistics.quantiles.VALUES_HELD", 1000)
    monkeypatch.setattr("rcdiag.statistics.suite.RANKS_HELD", 1000)
    states = bounded(dict(enumerate(halves(2)))).values()
    assert sum(state.magnitudes.sketch.held for state in states) <= 1000
    assert 400 < sum(len(state.ranks) for state in states) <= 1000
    result = values_of(summed(states))
    for name in set(expected) - {"prob_spearman"}:
        assert result[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-12), name
    assert result["prob_spearman"] == pytest.approx(expected["prob_spearman"], abs=0.03)


def test_the_sample_of_ranks_is_the_same_whatever_the_cut():
    behavior, target = seeded_batch(3, 100)
    whole = make_state(behavior, target).ranks.thinned(2**31)
    first, second = make_state(behavior[:40], target[:40]), make_state(behavior[40:], target[40:])
    result = summed([first.ranks.thinned(2**31), second.ranks])
    assert sorted(result.behavior) == sorted(whole.behavior)
    assert result.limit == whole.limit == 2**31
    assert 0 < len(result) < len(make_state(behavior, target).ranks)


@pytest.mark.parametrize("rows_per_batch", [7, 60, 90, 300])
def test_the_state_of_each_step_does_not_depend_on_the_cuts(monkeypatch, rows_per_batch):
    """All steps or none keep values: the last step alone would be small enough."""
    behavior, target = seeded_batch(5, 300)
    step = [1] * 140 + [2] * 140 + [3] * 20
    whole = make_pair(behavior, target, step=step)
    for share, counted in ((1.0, False), (0.99, True)):
        held = int(share * len(whole.log_ratio))
        monkeypatch.setattr("rcdiag.statistics.quantiles.VALUES_HELD", held)
        expected = PairState.of(whole).by_step()
        states: list[PairState] = []
        for start in range(0, 300, rows_per_batch):
            rows = slice(start, start + rows_per_batch)
            pair = make_pair(behavior[rows], target[rows], step=step[rows], first_row=start)
            take_in(states, PairState.of(pair))
        total = merge(states)
        for key, state in total.by_step().items():
            assert (state.magnitudes.sketch.raw is None) == counted
            assert_same_values(state, expected[key])


@pytest.mark.parametrize("rows_per_batch", [20, 80])
def test_a_long_stream_keeps_a_large_enough_sample_of_ranks(monkeypatch, rows_per_batch):
    """For any number of batches and any number of tokens in each."""
    held = 250
    monkeypatch.setattr("rcdiag.statistics.suite.RANKS_HELD", held)
    behavior, target = seeded_batch(4, 1600)
    states: list[PairState] = []
    for start in range(0, 1600, rows_per_batch):
        rows = slice(start, start + rows_per_batch)
        pair = make_pair(behavior[rows], target[rows], first_row=start)
        take_in(states, PairState.of(pair))
        total = merge(states)
        assert sum(len(state.ranks) for state in total.suites.values()) <= held
    whole = rank_sample(make_pair(behavior, target))
    (state,) = total.by_step().values()
    assert len(whole) > 20 * held
    assert held / 5 < len(state.ranks) <= held
    assert sorted(state.ranks.key) == sorted(whole.thinned(state.ranks.limit).key)
    expected = spearmanr(whole.behavior, whole.target).statistic
    assert values_of(state)["prob_spearman"] == pytest.approx(expected, abs=0.1)


def test_a_part_of_a_large_table_sends_counts_if_they_are_smaller():
    """Values of 100,000 tokens outnumber the counts of all bins, those of 1,000 do not."""
    random = np.random.default_rng(0)
    behavior = -random.exponential(size=(101, 1_000))
    target = np.minimum(behavior + random.normal(0.0, 0.1, behavior.shape), 0.0)
    pair = make_pair(behavior.tolist(), target.tolist(), step=[1] * 100 + [2])
    plan = presets_of("verl-0.6.0")
    walk = PairWalk(policies=("rollout", "old"), plan=plan, asked=asked_by(plan))
    whole = walk.state_of(iter([pair.tokens]))
    short = walk.in_short(whole)
    for step, counted in ((1, True), (2, False)):
        kept, handed_over = (
            [part.state.suites[step].magnitudes.sketch, *part.rows.steps[step].sketches.values()]
            for part in (whole, short)
        )
        assert len(kept) == len(handed_over) == 2  # verl 0.6.0 logs percentiles of its weights
        for before, after in zip(kept, handed_over, strict=True):
            assert (before.raw is not None, after.raw is None) == (True, counted)
            assert np.array_equal(after.collapsed().counts, before.collapsed().counts)
