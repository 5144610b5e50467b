"""rcdiag's own metrics of a correction, against loops over tokens."""

from __future__ import annotations

from collections import Counter
from math import isnan, log, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr

from tests.corrections.batches import batches
from tests.corrections.brute_force import Config, Corrected, corrected
from tests.corrections.builders import padded, result_of
from tests.corrections.configs import configs_of

TRAINERS = pytest.mark.parametrize("trainer", ["verl-0.7.0", "verl-0.9"])
BATCHES = batches(kinds=("near", "wide", "equal"))


def close(expected: float | None) -> Any:
    return None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-12)


def final_weights(row: Corrected) -> list[float]:
    return [weight * kept for weight, kept in zip(row.weights, row.kept, strict=True)]


def kish(weights: list[float]) -> float | None:
    squares = sum(weight**2 for weight in weights)
    return sum(weights) ** 2 / (len(weights) * squares) if squares else None


@TRAINERS
@given(data=st.data(), batch=BATCHES)
def test_kept_tokens_and_weights(trainer, data, batch):
    config = data.draw(configs_of(trainer))
    rows, result = corrected(config, batch), result_of(trainer, config, batch)
    assert result.kept_tokens == sum(sum(row.kept) for row in rows)
    assert result.kept_sequences == sum(any(row.kept) for row in rows)
    if result.weight_sum is not None:
        assert result.weight_sum == close(sum(sum(row.weights) for row in rows))


@TRAINERS
@given(data=st.data(), batch=BATCHES)
def test_sample_sizes(trainer, data, batch):
    config = data.draw(configs_of(trainer))
    rows, actual = corrected(config, batch), result_of(trainer, config, batch).actual
    of_tokens = [weight for row in rows for weight in final_weights(row)]
    of_rows = [sum(final_weights(row)) / len(row.ratios) for row in rows]
    assert actual["ess_token_applied"] == close(kish(of_tokens))
    assert actual["ess_seq_applied"] == close(kish(of_rows))


@TRAINERS
@given(data=st.data(), batch=BATCHES)
def test_lost_target_mass(trainer, data, batch):
    config = data.draw(configs_of(trainer))
    rows, actual = corrected(config, batch), result_of(trainer, config, batch).actual
    pairs = [pair for row in rows for pair in zip(row.ratios, row.kept, strict=True)]
    lost = sum(ratio for ratio, kept in pairs if not kept)
    assert actual["lost_target_mass_token"] == close(lost / sum(ratio for ratio, _ in pairs))
    products = [prod(row.ratios) for row in rows]
    gone = sum(mass for mass, row in zip(products, rows, strict=True) if not any(row.kept))
    assert actual["lost_target_mass_seq"] == close(gone / sum(products))


def truncation_loss(config: Config, rows: list[Corrected]) -> float | None:
    level, threshold = config["rollout_is"], config["rollout_is_threshold"]
    if level is None or threshold is None or "_" in str(threshold):
        return None
    upper = float(threshold)
    ratios = [prod(row.ratios) for row in rows]
    if level == "token":
        ratios = [ratio for row in rows for ratio in row.ratios]
    return sum(max(ratio - upper, 0.0) for ratio in ratios) / sum(ratios)


@TRAINERS
@given(data=st.data(), batch=BATCHES)
def test_truncation_loss(trainer, data, batch):
    config = data.draw(configs_of(trainer))
    rows, actual = corrected(config, batch), result_of(trainer, config, batch).actual
    assert actual["truncation_loss"] == close(truncation_loss(config, rows))


@TRAINERS
@given(data=st.data(), batch=BATCHES)
def test_bound_on_the_bias(trainer, data, batch):
    config = data.draw(configs_of(trainer))
    rows, actual = corrected(config, batch), result_of(trainer, config, batch).actual
    if config["rollout_is"] != "sequence" or config["rollout_is_threshold"] is None:
        assert actual["bias_bound"] is None
        return
    products = [prod(row.ratios) for row in rows]
    weights = [sum(final_weights(row)) / len(row.ratios) for row in rows]
    gaps = sum(abs(one - other) for one, other in zip(products, weights, strict=True))
    assert actual["bias_bound"] == close(gaps / sum(products))


def correlation(pairs: list[tuple[float, float]]) -> float | None:
    known = [pair for pair in pairs if not isnan(pair[1])]
    if len(known) < 2:
        return None
    shares, values = zip(*known, strict=True)
    if len(set(shares)) == 1 or len(set(values)) == 1:
        return None
    return float(pearsonr(shares, values).statistic)


@TRAINERS
@given(data=st.data(), batch=BATCHES)
def test_correlation_of_rejection_with_length_and_reward(trainer, data, batch):
    config = data.draw(configs_of(trainer))
    rows, actual = corrected(config, batch), result_of(trainer, config, batch).actual
    shares = [sum(row.kept) / len(row.kept) for row in rows]
    lengths = [(share, float(len(row.kept))) for share, row in zip(shares, rows, strict=True)]
    rewards = [(share, row.reward) for share, row in zip(shares, rows, strict=True)]
    assert actual["keep_length_correlation"] == close(correlation(lengths))
    assert actual["keep_reward_correlation"] == close(correlation(rewards))
    sizes = Counter(row.group for row in rows)
    left = Counter(row.group for row in rows if any(row.kept))
    few = [group for group, size in sizes.items() if size >= 2 and left[group] < 2]
    assert actual["groups_below_two"] == len(few)


@pytest.mark.parametrize("trainer", ["verl-0.7.1", "verl-0.8.0", "verl-0.9"])
@given(data=st.data(), batch=batches(kinds=("near", "wide", "cancelling")))
def test_combined_options_keep_their_intersection(trainer, data, batch):
    config = data.draw(configs_of(trainer))
    rows, result = corrected(config, batch), result_of(trainer, config, batch)
    assert result.kept_tokens == sum(sum(row.kept) for row in rows)
    assert result.kept_sequences == sum(any(row.kept) for row in rows)


def test_tokens_at_the_safety_bound_are_counted():
    batch = padded([[20.0, 0.0], [-25.0, 19.0], [19.0, 2.0], [0.0]])
    actual = result_of("verl-0.9", {"rollout_is": None}, batch).actual
    assert actual["unsafe_tokens"] == pytest.approx(2 / 7)
    assert actual["unsafe_sequences"] == pytest.approx(2 / 4)


def test_sequence_mass_is_right_where_the_products_overflow():
    batch = padded([[800.0], [800.0 + log(3.0)], [0.0]])
    config = {"rollout_is": None, "rollout_rs": "seq_max_k2", "rollout_rs_threshold": "1"}
    actual = result_of("verl-0.9", config, batch).actual
    assert actual["lost_target_mass_seq"] == pytest.approx(1.0)
    assert actual["lost_target_mass_token"] == pytest.approx(1.0)
    kept = result_of("verl-0.9", {"rollout_is": None}, batch).actual
    assert (kept["lost_target_mass_token"], kept["lost_target_mass_seq"]) == (None, 0.0)


def test_rejection_can_leave_a_group_without_a_baseline():
    config = {"rollout_is": None, "rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"}
    rows = [[0.0], [3.0], [0.1], [0.2], [3.0], [3.0], [0.0]]
    groups = [
        1,
        1,
        2,
        2,
        3,
        3,
        4,
    ]  # groups with one left, two left, none left, and one from the start
    batch = padded(rows, group=np.array(groups))
    assert result_of("verl-0.9", config, batch).actual["groups_below_two"] == 2
