"""Inputs of the recommendation: weights of candidates, baselines, bounds on the bias."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from rcdiag.corrections.apply import outcome, token_effects
from rcdiag.corrections.arithmetic import Tokens
from rcdiag.corrections.sequences import rows_of
from rcdiag.table.trajectories import segment_sum
from rcdiag.usecases.sweep.candidates import CANDIDATES, find_candidate
from rcdiag.usecases.sweep.estimator_families import FAMILIES
from rcdiag.usecases.sweep.plan import SweepPlan
from rcdiag.usecases.sweep.sketched_gradients import Baseline, advantages
from tests.builders import make_pair
from tests.corrections.batches import batches, seeded
from tests.usecases.sweep.builders import added_up, flat, pair_from
from tests.usecases.sweep.policies import noisy, row_of, state_of_candidates

EVERY = pytest.mark.parametrize("name", CANDIDATES)


@EVERY
@given(batch=batches())
@settings(max_examples=30)
def test_final_weights_are_those_of_the_corrections(name, batch):
    correction, pair = CANDIDATES[name].correction, pair_from(batch)
    rows = rows_of(pair)
    with np.errstate(all="ignore"):
        run = outcome(rows, correction)
        result = token_effects(correction, Tokens(pair.log_ratio), rows).final
    expected = run.kept if run.kept_weights is None else run.kept_weights.sum
    assert segment_sum(result, pair.lengths) == pytest.approx(expected, rel=1e-12)


@EVERY
def test_bounds_have_the_names_of_their_family(name):
    item = CANDIDATES[name]
    if item.family != "none":
        assert set(item.bounds) == set(FAMILIES[item.family].grid(60)[0])


def bound_of(name: str, spread: float) -> tuple[float, np.ndarray, np.ndarray]:
    pair = noisy(0, 4000, spread)
    state = state_of_candidates([pair], None)
    result = row_of(state, name).weight_distance
    assert result is not None
    ratio = np.exp(segment_sum(pair.log_ratio, pair.lengths))
    return result, ratio, np.minimum(ratio, 2.0)


def test_the_bound_of_sequence_tis_is_its_truncation_loss():
    result, ratio, truncated = bound_of("seq_tis_2", 0.15)
    assert result == pytest.approx(1.0 - truncated.mean())
    # Provided that the mean ratio of the table is 1.
    assert result == pytest.approx(np.maximum(ratio - 2.0, 0.0).mean(), abs=0.03)


def test_the_bound_without_correction_is_twice_the_total_variation():
    result, ratio, _ = bound_of("none", 0.15)
    assert result == pytest.approx(2.0 * np.maximum(1.0 - ratio, 0.0).mean())
    assert result == pytest.approx(np.abs(ratio - 1.0).mean(), abs=0.03)


def test_advantages_are_recorded_or_computed_from_rewards():
    logs, reward = [[-1.0]] * 4, [1.0, 3.0, np.nan, 5.0]
    group = np.array([1, 1, 2, 2], np.uint64)
    pair = make_pair(logs, logs, group, reward=reward)
    by_group = Baseline.of(group, np.array(reward))
    assert advantages(pair, by_group) == pytest.approx([-1.0, 1.0, np.nan, 0.0], nan_ok=True)
    assert "group" in by_group.kind
    overall = Baseline.of(None, np.array(reward))
    assert advantages(pair, overall) == pytest.approx([-2.0, 0.0, np.nan, 2.0], nan_ok=True)
    assert np.isnan(advantages(pair, None)).all()


def test_groups_of_one_have_the_mean_of_all_as_baseline():
    result = Baseline.of(np.arange(3, dtype=np.uint64), np.array([1.0, 2.0, 6.0]))
    assert (result.overall, result.kind) == (3.0, "the mean of all")


def test_without_any_reward_there_is_no_advantage():
    logs = [[-1.0]] * 2
    result = Baseline.of(None, np.full(2, np.nan))
    assert np.isnan(advantages(make_pair(logs, logs), result)).all()
    assert np.isnan(advantages(make_pair(logs, logs, reward=[np.nan, np.nan]), result)).all()


def test_a_candidate_is_computed_from_the_sums_of_its_family():
    pair = pair_from(seeded(3))
    candidates = {**CANDIDATES, "token_k3_0.3": find_candidate("token_k3_0.3")}
    grids = {"none": [{}], **{name: family.grid(20) for name, family in FAMILIES.items()}}
    grids["token_k3"] = [*grids["token_k3"], {"upper": 0.3}]
    of_all = added_up([pair], SweepPlan(grids, candidates, grouped=True))
    for name, one in candidates.items():
        plan = SweepPlan({one.family: [one.bounds]}, {name: one}, grouped=True)
        alone = added_up([pair], plan)
        expected = pytest.approx(flat(row_of(alone, name)), rel=1e-12, abs=1e-12, nan_ok=True)
        assert flat(row_of(of_all, name)) == expected, name
        family, at = of_all.plan.place(name)
        weights = "kept" if one.correction.weighting is None else "weights"
        for quantity in ("means", weights):
            sums = of_all.of_settings(family, quantity)[:, [at]]
            np.testing.assert_allclose(sums, alone.of_settings(family, quantity), 1e-12, 1e-12)
