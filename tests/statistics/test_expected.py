"""Sequence ratios under rounding noise alone: closed forms, and simulated ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.diagnosis.rules import level
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.metrics.expected import (
    ess_guide,
    expected_ess_seq,
    expected_k_hat_seq,
    k_hat_guide,
    rounding_kl,
)
from rcdiag.statistics.metrics.overlap import ESS_SEQ_GUIDE
from rcdiag.statistics.metrics.tail import K_HAT_GUIDE
from rcdiag.statistics.pareto import UpperTail, k_hat
from rcdiag.statistics.rounding import RoundingNoise, rounding_of
from rcdiag.statistics.suite import Suite
from tests.builders import make_state
from tests.statistics.strategies import batches


def suite(kl: float, lengths: list[int] | np.ndarray):
    """Make a table on which rounding gives a KL per token of `kl`."""
    noise, misses = 0.1, 2.0 * kl / 0.1**2
    point = SimpleNamespace(per_token={"behavior_miss_squared": np.array([misses])}.__getitem__)
    table = SimpleNamespace(lengths=np.asarray(lengths))
    return SimpleNamespace(
        point=point, state=SimpleNamespace(table=table), rounding=RoundingNoise(noise, "")
    )


def test_the_ess_of_equal_lengths_is_its_closed_form():
    assert expected_ess_seq(suite(5e-4, [100] * 64)) == pytest.approx(np.exp(-0.1))


def test_long_sequences_dominate_the_second_moment():
    lengths = [10, 1000]
    expected = 2.0 / (np.exp(0.01) + np.exp(1.0))
    assert expected_ess_seq(suite(5e-4, lengths)) == pytest.approx(expected)


@given(batches(), st.floats(-3.0, 0.0))
def test_expected_values_do_not_depend_on_the_mismatch(batch, less):
    """They would otherwise excuse the mismatch that they are compared with."""
    behavior, target = batch
    other = [[min(value + less, 0.0) for value in row] for row in target]
    suites = [Suite(make_state(behavior, column)) for column in (target, other)]
    for name in ("ess_seq", "khat_seq"):
        with np.errstate(all="ignore"):  # few sequences have no tail
            one, two = (METRICS[name].expects(suite) for suite in suites)
        assert np.array_equal(one, two, equal_nan=True)


def test_rounding_noise_of_a_token_is_logit_noise_times_one_minus_p():
    """A softmax of noisy logits over the token and one other token with the rest."""
    random = np.random.default_rng(0)
    probability = random.uniform(0.01, 0.99, 200_000)
    logits = np.log(np.stack([probability, 1.0 - probability]))
    noise = random.normal(0.0, 0.01, logits.shape)
    moved = logits + noise
    log_prob = moved[0] - np.logaddexp(*moved)
    half_square = float(np.square(log_prob - logits[0]).mean()) / 2.0
    two_logits = RoundingNoise(0.01 * np.sqrt(2.0), "")
    state = make_state([list(logits[0])], [list(log_prob)])
    assert rounding_kl(Suite(state, two_logits)) == pytest.approx(half_square, rel=0.02)


@pytest.mark.parametrize(
    ("one", "other", "noise", "precisions"),
    [
        ({"dtype": "bfloat16"}, {"dtype": "float32"}, 0.1, "bfloat16 against float32"),
        ({"dtype": "float16"}, {"dtype": "float16"}, 0.0177, "float16 against float16"),
        ({}, {}, 0.1, "bfloat16 against float32 (assumed)"),
        ({"dtype": "float16"}, {}, 0.0125, "float16 against float32 (one assumed)"),
        ({"dtype": "bfloat16", "quantization": "fp8"}, {}, None, "fp8 against float32"),
    ],
)
def test_precisions_are_read_from_the_metadata(one, other, noise, precisions):
    rounding = rounding_of({"a": one, "b": other}, "a", "b")
    assert rounding.noise == (None if noise is None else pytest.approx(noise, rel=1e-2))
    assert rounding.precisions.startswith(precisions)
    suite = Suite(make_state([[-1.0, -2.0]] * 30, [[-1.1, -1.9]] * 30), rounding)
    value = METRICS["ess_seq"].value(suite)
    assert (value.expected is None) == (noise is None)
    assert value.expected_of == rounding.precisions


@pytest.mark.parametrize("length", [200, 1000, 4000])
def test_k_hat_of_simulated_rounding_is_near_the_expected_value(length):
    kl, rng = 2e-4, np.random.default_rng(length)
    drawn = rng.normal(-kl * length, np.sqrt(2.0 * kl * length), (40, 512))
    fitted = [k_hat(UpperTail.of(row))[0] for row in drawn]
    assert np.mean(fitted) == pytest.approx(expected_k_hat_seq(suite(kl, [length] * 512)), abs=0.1)


@pytest.mark.parametrize("length", [60, 1000, 4000, 30_000])
def test_length_alone_is_never_an_error(length):
    """With rounding at the warning threshold of k3, neither metric is an error at any length."""
    kl, rng = 1e-3, np.random.default_rng(length)
    data = suite(kl, [length] * 512)
    for row in rng.normal(-kl * length, np.sqrt(2.0 * kl * length), (20, 512)):
        weights = np.exp(row - row.max())
        ess = float(weights.sum() ** 2 / (512 * (weights**2).sum()))
        assert level(ess_guide(ESS_SEQ_GUIDE, data), ess) != "error"
        assert level(k_hat_guide(K_HAT_GUIDE, data), k_hat(UpperTail.of(row))[0]) != "error"


def test_short_sequences_keep_the_thresholds_of_the_guide():
    data = suite(1e-4, [100] * 512)
    assert ess_guide(ESS_SEQ_GUIDE, data) == ESS_SEQ_GUIDE
    assert k_hat_guide(K_HAT_GUIDE, data) == K_HAT_GUIDE
