"""Masked garbage and the stored precision of inputs change no metric."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.statistics.pair import pair_of
from rcdiag.statistics.profiles import Profiles, finished
from rcdiag.statistics.suite import Suite, SuiteState
from tests.builders import make_pair, make_state, make_trajectories, metrics, values_of
from tests.statistics.strategies import Batch, batches

GARBAGE = st.sampled_from([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0])


Dirty = tuple[list, list, list]  # behavior, target, mask


def with_garbage(batch: Batch, data: st.DataObject) -> Dirty:
    """Insert masked tokens with arbitrary values into a batch."""
    dirty: Dirty = ([], [], [])
    for one, other in zip(*batch, strict=True):
        rows: Dirty = ([], [], [])
        for place in range(len(one) + 1):
            for _ in range(data.draw(st.integers(0, 2))):
                garbage = (data.draw(GARBAGE), data.draw(GARBAGE), 0)
                for row, value in zip(rows, garbage, strict=True):
                    row.append(value)
            if place < len(one):
                for row, value in zip(rows, (one[place], other[place], 1), strict=True):
                    row.append(value)
        for all_rows, row in zip(dirty, rows, strict=True):
            all_rows.append(row)
    return dirty


@given(batches(), st.data())
def test_masked_garbage_is_not_in_a_token_batch(batch: Batch, data):
    pair = pair_of(make_trajectories(*with_garbage(batch, data)), "rollout", "old")
    clean = make_pair(*batch)
    assert np.array_equal(pair.lengths, clean.lengths)
    for name, values in clean.tokens.log_probs.items():
        assert np.array_equal(pair.tokens.log_probs[name], values)
    assert np.array_equal(pair.log_ratio, clean.log_ratio)


@given(batches(), st.data())
def test_masked_garbage_leaves_every_metric_unchanged_to_the_bit(batch: Batch, data):
    pair = pair_of(make_trajectories(*with_garbage(batch, data)), "rollout", "old")
    assert values_of(SuiteState.of(pair)) == values_of(make_state(*batch))


def test_masked_tokens_are_in_no_profile_but_count_as_positions():
    rows = make_trajectories([[-1.0, -1.0, -1.0]], [[np.nan, -1.5, -2.0]], [[0, 1, 1]])
    bins = finished(Profiles.of(pair_of(rows, "rollout", "old")))["position"].bins
    assert [(item.label, item.tokens) for item in bins] == [("1", 1), ("2-3", 1)]


def test_float32_inputs_are_accumulated_in_float64():
    random = np.random.default_rng(0)
    behavior = -random.exponential(1.0, size=32_768)
    target = np.minimum(behavior + random.normal(0, 0.02, size=len(behavior)), 0.0)
    rounded = [[values.astype(np.float32).tolist()] for values in (behavior, target)]
    exact = metrics([behavior.tolist()], [target.tolist()])
    result = metrics(*rounded)
    for name in ("k2_kl", "behavior_ppl", "target_ppl", "prob_diff_mean", "log_ratio_abs_mean"):
        assert result[name] == pytest.approx(exact[name], rel=1e-5), name


def test_totals_of_a_table_are_one_replicate():
    point = Suite(make_state([[-1.0, -2.0], [], [-1.0]], [[-1.0, -2.0], [], [-1.0]])).point
    assert point.tokens.tolist() == [3.0]
    assert point.sequences.tolist() == [2.0]
