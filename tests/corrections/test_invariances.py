"""Invariances of the results: order, shards, masked positions, rows without a token."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.statistics.merging import merge
from rcdiag.trainers import TRAINERS
from rcdiag.usecases.corrected import CorrectionRows, correction_results
from tests.builders import summed
from tests.corrections.batches import batches, seeded
from tests.corrections.builders import (
    Padded,
    correction_rows,
    plan_of,
    presets_of,
    result_of,
    results_of,
    without_prefix,
)
from tests.corrections.comparisons import changed_in_any, changed_metrics, changed_outcome
from tests.corrections.configs import configs_of
from tests.examples import dear

every_trainer = pytest.mark.parametrize("trainer", TRAINERS)
# Without log-ratios of a thousand, beside which all others would be lost.
MODERATE = batches(kinds=("near", "wide", "met", "equal"))


@every_trainer
@given(batch=MODERATE, data=st.data())
@dear(10)
def test_the_order_of_rows(trainer, batch, data):
    plan = presets_of(trainer)
    order = np.array(data.draw(st.permutations(range(len(batch)))))
    expected = results_of(plan, batch)
    assert changed_in_any(expected, results_of(plan, batch.rows(order))) == {}


@every_trainer
@given(batch=MODERATE, data=st.data(), cuts=st.integers(2, 5))
@dear(20)
def test_shards(trainer, batch, data, cuts):
    plan = plan_of(trainer, data.draw(configs_of(trainer)))
    assert changed_in_any(results_of(plan, batch), results_of(plan, batch, cuts)) == {}


def test_as_many_shards_as_rows():
    plan = presets_of("verl-0.6.1")
    batch = seeded(0, rows=150)
    assert changed_in_any(results_of(plan, batch), results_of(plan, batch, 150)) == {}


@pytest.mark.parametrize("cuts", [1, 3, 30])
def test_large_samples_become_counts_for_any_sharding(monkeypatch, cuts):
    """Only percentiles need single ratios; from counts they are accurate to a thousandth."""
    plan = plan_of("verl-0.6.0", {"rollout_is": True, "rollout_is_threshold": 2.0})
    batch = seeded(0, rows=150)
    exact = results_of(plan, batch)["it"].metrics
    monkeypatch.setattr("rcdiag.statistics.quantiles.VALUES_HELD", int(batch.mask.sum()) - 1)
    rows = correction_rows(plan, batch, cuts).whole
    (ratios,) = rows.sketches.values()
    assert ratios.raw is None
    result = correction_results(plan, rows)["it"].metrics
    assert changed_metrics(exact, result) != []
    assert result == pytest.approx(exact, rel=1e-3)


@every_trainer
@pytest.mark.parametrize("at", [1, 7, 15])
def test_rows_add_up_in_either_order(trainer, at):
    plan, batch = presets_of(trainer), seeded(at)
    first = correction_rows(plan, batch.rows(slice(at)))
    rest = correction_rows(plan, batch.rows(slice(at, None)))
    expected = results_of(plan, batch)
    for rows in (merge([first, rest]), merge([rest, first])):
        assert changed_in_any(expected, correction_results(plan, rows.whole)) == {}


def test_rows_of_every_step_add_up_by_step_and_to_the_whole():
    plan, batch = presets_of("verl-0.9"), seeded(4, rows=30)
    steps = np.arange(30) % 3
    expected = results_of(plan, batch)
    shards = [
        CorrectionRows({step: correction_rows(plan, batch.rows(rows)).whole})
        for step in (0, 1, 2)
        for rows in np.array_split(np.flatnonzero(steps == step), 2)
    ]
    result = summed(shards)
    assert sorted(result.steps) == [0, 1, 2]
    for step, rows in result.steps.items():
        of_step = results_of(plan, batch.rows(np.flatnonzero(steps == step)))
        assert changed_in_any(of_step, correction_results(plan, rows)) == {}
    assert changed_in_any(expected, correction_results(plan, result.whole)) == {}


@every_trainer
@given(batch=batches(), data=st.data())
@dear(10)
def test_masked_places(trainer, batch, data):
    plan = presets_of(trainer)
    garbage = st.sampled_from((0.0, -7.0, np.nan, np.inf, -np.inf, 1e300))
    other = batch.with_masked(data.draw(garbage), data.draw(garbage))
    assert changed_in_any(results_of(plan, batch), results_of(plan, other)) == {}


def with_empty_rows(batch: Padded, count: int) -> Padded:
    """Append rows without a token."""
    old, rollout = (np.pad(item, ((0, count), (0, 0))) for item in (batch.old, batch.rollout))
    mask = np.pad(batch.mask, ((0, count), (0, 0)))
    return replace(batch, old=old, rollout=rollout, mask=mask, group=None, reward=None)


# Means, extremes and shares over rows: verl counts rows without a token.
OVER_ROWS = re.compile(r"ppl|chi2_seq|_(is|rs)_seq_|rs_seq_masked_fraction|veto_fraction")
# At row level their log-ratio is 0.
AT_ROW_LEVEL = re.compile(r"rollout_(is|rs)_(max|min|ratio_fraction_(high|low))$")


@pytest.mark.parametrize("trainer", [name for name in TRAINERS if name.startswith("verl")])
@given(data=st.data(), seed=st.integers(0, 50), count=st.integers(1, 3))
@dear(20)
def test_rows_without_a_token_change_means_over_rows_alone(trainer, data, seed, count):
    plan = plan_of(trainer, data.draw(configs_of(trainer)))
    batch = replace(seeded(seed, rows=6), group=None, reward=None)
    one, other = (results_of(plan, item)["it"] for item in (batch, with_empty_rows(batch, count)))
    assert changed_outcome(one, other) == []
    for name in changed_metrics(one.metrics, other.metrics):
        k_option = re.search(r"rs_(token|seq_\w+)_k\d_", name)
        factor = trainer in ("verl-0.6.1", "verl-20251203") and name.endswith("batch_norm_factor")
        assert not k_option, name
        assert OVER_ROWS.search(name) or AT_ROW_LEVEL.search(name) or factor, name


@pytest.mark.parametrize("trainer", ["verl-0.6.1", "verl-0.7.0", "verl-0.7.1", "verl-0.9"])
@pytest.mark.parametrize("count", [1, 4])
def test_rows_without_a_token_enter_means_with_a_perplexity_of_one(trainer, count):
    batch = replace(seeded(3, rows=6), group=None, reward=None)
    config = {"rollout_is": "token"}
    before = without_prefix(result_of(trainer, config, batch).metrics)
    after = without_prefix(result_of(trainer, config, with_empty_rows(batch, count)).metrics)
    adds = {"training_ppl": 1, "rollout_ppl": 1, "ppl_ratio": 1, "training_log_ppl": 0}
    adds |= {"rollout_log_ppl": 0, "log_ppl_diff": 0, "log_ppl_abs_diff": 0, "chi2_seq": 0}
    adds |= {"rollout_is_seq_mean": 0}
    for name, value in adds.items():
        expected = (before[name] * len(batch) + value * count) / (len(batch) + count)
        assert after[name] == pytest.approx(expected, rel=1e-12), name


@given(data=st.data(), seed=st.integers(0, 50), count=st.integers(1, 3))
@dear(20)
def test_slime_divides_by_all_rows(data, seed, count):
    plan = plan_of("slime", {**data.draw(configs_of("slime")), "tis_batch_normalize": False})
    batch = replace(seeded(seed, rows=6), group=None, reward=None)
    one, other = (results_of(plan, item)["it"] for item in (batch, with_empty_rows(batch, count)))
    assert changed_outcome(one, other) == []
    scaled = {name: value * 6 / (6 + count) for name, value in one.metrics.items()}
    assert changed_metrics(scaled, other.metrics) == []
