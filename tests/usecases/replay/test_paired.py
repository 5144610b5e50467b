"""Paired differences of presets against losses of batches without one group."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.losses.batch import loss_batch
from rcdiag.losses.evaluate import evaluate
from rcdiag.losses.settings import LossSettings
from rcdiag.statistics.intervals import jackknife_interval
from rcdiag.trainers import find_trainer
from rcdiag.usecases.replay.paired import PresetNumbers, WithoutGroups, paired_differences
from tests.pages.makers import replayed

RULES = find_trainer("verl").update
LENGTHS = np.array([3, 1, 4, 2, 5, 2])
GROUP = np.array([0, 0, 1, 1, 2, 2])
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
LOSSES = ("vanilla", "gspo", "cispo", "geo_mean")


def loss_of(rows: np.ndarray, loss: str, aggregation: str):
    random = np.random.default_rng(4)
    tokens = int(LENGTHS.sum())
    old = -random.exponential(1.0, tokens)
    current = old + random.normal(0.0, 0.3, tokens)
    advantages = np.repeat(random.normal(size=len(LENGTHS)), LENGTHS)
    kept = random.random(tokens) < 0.8
    some = np.repeat(rows, LENGTHS)
    batch = loss_batch(
        current[some],
        old[some],
        advantages[some],
        LENGTHS[rows],
        kept=kept[some],
        padded_width=8,
    )
    return evaluate(batch, loss, LossSettings(aggregation=aggregation), RULES)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_without_a_group_is_that_of_the_batch_without_it(loss, aggregation):
    whole = loss_of(np.ones(len(LENGTHS), bool), loss, aggregation)
    left_out = whole.rows.without_groups(GROUP)
    for group in range(3):
        expected = loss_of(group != GROUP, loss, aggregation).loss
        assert left_out[group] == pytest.approx(expected, rel=1e-7)


def test_a_sum_is_rescaled_from_the_remaining_groups():
    whole = loss_of(np.ones(len(LENGTHS), bool), "vanilla", "token-sum")
    for group, value in enumerate(whole.rows.without_groups(GROUP)):
        part = loss_of(group != GROUP, "vanilla", "token-sum").loss
        assert value == pytest.approx(part * 3 / 2)


def test_common_noise_of_two_presets_cancels_in_their_difference():
    random = np.random.default_rng(0)
    noise = random.normal(0.0, 5.0, 40)
    one = WithoutGroups(2.0, 2.0 + noise)
    other = WithoutGroups(1.5, 1.5 + noise + random.normal(0.0, 1e-3, 40))
    value = one.minus(other)
    low, high = jackknife_interval(0.5, one.left_out - other.left_out)
    assert (value.value, value.low, value.high) == (0.5, low, high)
    assert high - low < 0.1


def test_equal_presets_are_named_once():
    numbers = {
        "a": PresetNumbers(WithoutGroups(1.0, np.array([1.0, 1.1]))),
        "b": PresetNumbers(WithoutGroups(1.0 + 1e-15, np.array([1.0, 1.1]))),
        "c": PresetNumbers(WithoutGroups(3.0, np.array([2.0, 4.0]))),
    }
    pairs = paired_differences(numbers)
    assert list(pairs) == ["a"]
    assert list(pairs["a"]) == ["c"]
    assert pairs["a"]["c"].loss.value == -2.0


def test_a_replay_holds_the_differences_of_its_losses():
    result = replayed()
    losses = {name: preset.loss for name, preset in result.presets.items()}
    assert result.paired
    for one, others in result.paired.items():
        for other, pair in others.items():
            assert pair.loss.value == pytest.approx(losses[one] - losses[other])
            assert pair.loss.low <= pair.loss.value <= pair.loss.high
            assert pair.grad_norm is None
