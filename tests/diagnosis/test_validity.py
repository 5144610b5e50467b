"""Validity of importance weights, on tables whose sampling distribution is known."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.thresholds import FEWEST_ROWS
from rcdiag.diagnosis.validity import (
    INVALID,
    LARGEST,
    MOST_BY_KAPPA,
    UNKNOWN,
    VALID,
    Interval,
    Validity,
    validity_of,
)

ROWS, LENGTH, VOCABULARY = 200, 50, 30


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def case_of(sampler: np.ndarray, recorded: np.ndarray, trained: np.ndarray, seed: int = 0) -> Case:
    """Sample from `sampler` and record `recorded`; all are logits [tokens, vocabulary]."""
    rng = np.random.default_rng(seed)
    noise = rng.gumbel(size=sampler.shape)
    token = np.argmax(log_softmax(sampler) + noise, axis=1)
    of_token = (np.arange(len(token)), token)
    rows = len(token) // LENGTH
    return Case(
        sampler="rollout",
        trainer="old",
        row=np.arange(rows),
        lengths=np.full(rows, LENGTH),
        token_id=token.astype(np.int32),
        mask=np.ones(len(token), np.bool_),
        log_probs={
            "rollout": log_softmax(recorded)[of_token],
            "old": log_softmax(trained)[of_token],
        },
    )


def logits(seed: int = 0, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 2.0, (rows * LENGTH, VOCABULARY))


def moved(size: float, seed: int = 1) -> np.ndarray:
    return logits() + np.random.default_rng(seed).normal(0.0, size, (ROWS * LENGTH, VOCABULARY))


@pytest.mark.parametrize("size", [0.1, 0.5, 2.0, 4.0])
def test_weights_are_valid_for_any_difference_if_the_record_sampled(size):
    found = validity_of(case_of(logits(), logits(), moved(size)))
    assert found.answer == VALID
    assert ": the recorded distribution sampled" in found.sentence


@pytest.mark.parametrize("temperature", [0.6, 0.8, 1.3])
def test_a_record_from_before_the_temperature_did_not_sample(temperature):
    sampled = logits() / temperature
    found = validity_of(case_of(sampled, logits(), sampled))
    assert found.answer == INVALID
    assert not found.lacks_support
    assert found.excess.value > 0.5


def test_a_record_that_is_as_far_from_the_sampler_as_the_trainer_is_halfway():
    found = validity_of(case_of(logits(), moved(0.3, seed=1), moved(0.3, seed=2)))
    assert found.excess.value == pytest.approx(0.5, abs=0.1)
    assert found.answer != VALID


def test_a_kept_set_lacks_support():
    cut = np.where(logits() < 1.0, -np.inf, logits())
    usable = np.isfinite(cut).any(axis=1)
    cut[~usable] = logits()[~usable]
    found = validity_of(case_of(cut, cut, logits()))
    assert (found.answer, found.lacks_support) == (INVALID, True)
    assert found.ratio_mean.high < 1.0


def test_few_tokens_with_little_mismatch_are_unknown_with_the_number_needed():
    few = case_of(logits(rows=10), logits(rows=10), moved(0.2)[: 10 * LENGTH])
    found = validity_of(few)
    assert found.answer == UNKNOWN
    assert "more rows like these 10 would decide" in found.sentence


def validity(mean: Interval, excess: Interval, upper: float = 1.0, chance: float = 0.0) -> Validity:
    return Validity(
        ratio_mean=mean,
        excess=excess,
        by_kappa=Interval(excess.value, -np.inf, np.inf),
        mean_square=0.015,
        upper=upper,
        chance=chance,
        unseen=0.001,
        rows=100,
    )


def test_the_rows_needed_are_those_that_take_the_interval_off_its_nearest_bound():
    """Half of the way to the bound is twice the reach: four times the rows, 300 more."""
    found = validity(Interval(1.002, 0.99, 1.02), Interval(0.25, -0.3, 0.75))
    assert found.answer == UNKNOWN
    assert "about 300 more rows like these 100 would decide" in found.sentence


def test_a_mean_that_depends_on_cut_log_ratios_is_said_as_such():
    """Three tokens 16 to 799 nats apart: no number of rows like these is said to decide."""
    case = case_of(logits(), logits(), moved(0.2))
    case.log_probs["rollout"][[5, 700]] -= (16.0, 57.0)
    case.log_probs["old"][1500] -= 799.0
    found = validity_of(case)
    assert found.answer == UNKNOWN
    assert "E[ratio, cut at e^±15]" in found.sentence
    assert "tokens differ by more than 15 nats" in found.sentence


def test_a_mean_ratio_within_rounding_is_valid_however_wide_its_excess():
    found = validity(Interval(0.9999, 0.9992, 1.0004), Interval(-0.11, -0.56, 0.31))
    assert found.answer == VALID
    assert found.reads == found.evidence["reads"]
    assert "1 to within an engine's rounding" in found.sentence


def test_what_would_show_is_said_where_weights_are_valid():
    found = validity(Interval(1.001, 0.994, 1.004), Interval(0.1, -0.4, 0.3))
    assert found.sentence.endswith("sampled ≥70% of rows; 1.0150 if the trainer's had.")


@pytest.mark.parametrize("share", [0.0, 0.02])
def test_no_more_rows_are_said_to_have_the_recorded_sampler_than_have_it(share: float) -> None:
    own, trained = logits(), moved(0.4)
    by_trainer = np.arange(len(own)) < share * len(own)
    found = validity_of(case_of(np.where(by_trainer[:, None], trained, own), own, trained))
    (said,) = re.findall(r"≥(\d+)% of rows", found.reads)
    assert 60 < int(said) <= 100 * (1 - share)


@pytest.mark.parametrize(("upper", "answer"), [(0.1, INVALID), (1.0, UNKNOWN)])
def test_a_mean_ratio_below_1_without_large_ratios_is_a_lack_of_support(upper, answer):
    found = validity(Interval(0.92, 0.917, 0.926), Interval(-0.3, -0.4, -0.2), upper)
    assert (found.answer, found.lacks_support) == (answer, answer == INVALID)


def test_tokens_that_chance_may_have_left_out_are_no_lack():
    found = validity(Interval(0.99, 0.98, 0.9945), Interval(-0.1, -0.2, -0.02))
    assert found.answer == VALID


def test_fewer_rows_than_an_interval_needs_are_unknown():
    few = FEWEST_ROWS - 1
    case = case_of(logits(rows=few), logits(rows=few), moved(2.0)[: few * LENGTH])
    assert validity_of(case).answer == UNKNOWN


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_contains_1_if_the_record_sampled(seed):
    found = validity_of(case_of(logits(), logits(), moved(0.5), seed=seed))
    assert found.ratio_mean.low <= 1.0 <= found.ratio_mean.high
    assert found.excess.low <= 0.0 <= found.excess.high


@given(st.lists(st.floats(-6, 3), min_size=2, max_size=8), st.integers(0, 99))
def test_kappa_of_a_recorded_distribution_that_sampled_is_never_below_its_bound(shift, seed):
    """By enumeration of one context: E over the recorded distribution, all ratios within reach."""
    rng = np.random.default_rng(seed)
    recorded = log_softmax(rng.normal(size=len(shift)))
    trained = log_softmax(recorded + np.array(shift))
    log_ratio = trained - recorded
    p = np.exp(recorded)
    if np.dot(p, log_ratio**2) < 1e-9 or log_ratio.min() < -LARGEST:
        return
    kappa = -2.0 * np.dot(p, log_ratio) / np.dot(p, log_ratio**2)
    assert (1.0 - kappa) / 2.0 <= MOST_BY_KAPPA + 1e-9
    assert np.dot(p, np.exp(log_ratio)) == pytest.approx(1.0)


def test_a_small_kept_set_is_not_hidden_by_a_large_difference_of_weights():
    """What top-k leaves out is 3% of the trainer's mass, the rest of the mismatch is 0.7 nats."""
    full = logits(rows=4 * ROWS)
    kept = np.where(full >= np.sort(full, axis=1)[:, -16, None], full, -np.inf)
    lag = np.random.default_rng(2).normal(0.0, 0.7, full.shape)
    found = validity_of(case_of(kept, kept, full + lag))
    assert found.ratio_mean.high < 0.995
    assert found.answer == UNKNOWN
    assert found.overrules_cause
    honest = validity_of(case_of(full, full, full + lag))
    assert honest.answer == VALID


def test_the_number_that_decides_is_the_one_that_is_said():
    case = case_of(logits(), logits(), moved(0.3))
    far = case.log_probs["rollout"].copy()
    far[::1000] = -12.0  # a few giants make the interval of E[ratio] wide
    found = validity_of(case.with_log_probs("rollout", far))
    name, number = found.decisive
    assert name in found.sentence
    if found.answer == INVALID:
        assert not number.low <= 1.0 <= number.high


@pytest.mark.parametrize(("chance", "answer"), [(0.003, INVALID), (0.0076, UNKNOWN)])
def test_a_mean_ratio_that_chance_over_tokens_explains_does_not_show_another_sampler(
    chance, answer
):
    """16 rows may by chance differ less from each other than their tokens' noise allows."""
    found = validity(Interval(1.022, 1.010, 1.035), Interval(0.45, 0.2, 0.7), chance=chance)
    assert found.answer == answer
