"""Gaussian log-ratios, for which every number has a closed form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import norm

from rcdiag.results import CorrectionResult
from tests.corrections.builders import Padded, result_of, without_prefix

BLOCKS, SEQUENCES = 30, 1000
SPREADS = [0.3, 0.5, 1.0, 1.5]  # of a sequence's log-ratio
AT_LEVEL = {"rollout_is": "sequence"}


def gaussian(random: np.random.Generator, spread: float, length: int) -> Padded:
    """Make Gaussian log-ratios with mean -spread^2 / 2 per sequence, so that E[ratio] = 1."""
    scale = spread / np.sqrt(length)
    ratio = random.normal(-(scale**2) / 2.0, scale, (SEQUENCES, length))
    return Padded(ratio, np.zeros_like(ratio), np.ones(ratio.shape, np.bool_))


def agrees(
    value: Callable[[CorrectionResult], float],
    expected: float,
    config: dict,
    spread: float,
    length: int = 1,
    trainer: str = "verl-0.9",
) -> bool:
    """Check that the mean over many batches is within 4.5 standard errors of the closed form."""
    random = np.random.default_rng(int(100 * spread) + length)
    result = np.array(
        [value(result_of(trainer, config, gaussian(random, spread, length))) for _ in range(BLOCKS)]
    )
    error = result.std(ddof=1) / np.sqrt(BLOCKS)
    assert error < 0.05 * max(expected, 0.2)  # otherwise the test has no power
    # Ratios of means have a relative bias of about 1 / SEQUENCES.
    return bool(abs(result.mean() - expected) < 4.5 * error + expected / SEQUENCES)


def logged(name: str) -> Callable[[CorrectionResult], float]:
    return lambda result: without_prefix(result.metrics)[name]


def below(bound: float, spread: float, shift: float = 0.0) -> float:
    """P(ratio < bound) under samples weighted by ratio^shift."""
    return float(norm.cdf((np.log(bound) + spread**2 / 2.0 - shift * spread**2) / spread))


def above(bound: float, spread: float, shift: float = 0.0) -> float:
    return 1.0 - below(bound, spread, shift)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("length", [1, 8])
@pytest.mark.parametrize("bound", [1.5, 2.0])
def test_share_of_large_ratios(spread, length, bound):
    name = "rollout_is_ratio_fraction_high"
    config = {**AT_LEVEL, "rollout_is_threshold": bound}
    assert agrees(logged(name), above(bound, spread), config, spread, length)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("bound", [1.2, 2.0])
def test_mean_of_truncated_weights_and_truncation_loss(spread, bound):
    expected = below(bound, spread, 1.0) + bound * above(bound, spread)
    config = {**AT_LEVEL, "rollout_is_threshold": bound}
    assert agrees(logged("rollout_is_mean"), expected, config, spread)
    assert agrees(lambda found: found.actual["truncation_loss"], 1.0 - expected, config, spread)
    assert agrees(lambda found: found.actual["bias_bound"], 1.0 - expected, config, spread)


@pytest.mark.parametrize("spread", SPREADS)
def test_sample_size_of_truncated_weights(spread):
    bound = 2.0
    mean = below(bound, spread, 1.0) + bound * above(bound, spread)
    squares = np.exp(spread**2) * below(bound, spread, 2.0) + bound**2 * above(bound, spread)
    config = {**AT_LEVEL, "rollout_is_threshold": bound}
    for name in ("ess_token_applied", "ess_seq_applied"):
        expected = mean**2 / squares
        assert agrees(lambda found, name=name: found.actual[name], expected, config, spread, 4)


@pytest.mark.parametrize("spread", [0.1, 0.3, 0.5])
def test_sample_size_of_untruncated_weights(spread):
    config = {**AT_LEVEL, "rollout_is_threshold": 1e9}
    expected = float(np.exp(-(spread**2)))
    assert agrees(lambda found: found.actual["ess_seq_applied"], expected, config, spread, 4)


def kept_share(result: CorrectionResult) -> float:
    return result.kept_sequences / SEQUENCES


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("length", [1, 8])
def test_acceptance_of_sequences(spread, length):
    """verl bounds 1 / ratio; [0.5, 2.0] is symmetric, so it makes no difference."""
    expected = below(2.0, spread) - below(0.5, spread)
    by_k = {"rollout_is": None, "rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"}
    assert agrees(kept_share, expected, by_k, spread, length)
    by_ratio = {"rollout_rs": "sequence", "rollout_rs_threshold": 2.0}
    assert agrees(kept_share, expected, by_ratio, spread, length, "verl-0.7.0")


@pytest.mark.parametrize("spread", [0.5, 1.0])
@pytest.mark.parametrize(("lower", "upper"), [(0.5, 2.0), (0.6, 3.0)])
def test_lost_target_mass(spread, lower, upper):
    """The lost mass is the share of the target's own samples that would be rejected."""
    config = {
        "rollout_is": None,
        "rollout_rs": "sequence",
        "rollout_rs_threshold": upper,
        "rollout_rs_threshold_lower": lower,
    }
    expected = above(upper, spread, 1.0) + below(lower, spread, 1.0)
    lost = "lost_target_mass_seq"
    assert agrees(lambda found: found.actual[lost], expected, config, spread, 4, "verl-0.7.0")


@pytest.mark.parametrize("length", [25, 100])
@pytest.mark.parametrize("per_token", [5e-4, 2e-3])
@pytest.mark.parametrize("reach", [1e-3, 1e-2])
def test_acceptance_by_the_geometric_mean(length, per_token, reach):
    """Geometric rejection depends on the KL per token only."""
    ends = np.log([1.0 - reach, 1.0 + reach])
    z = (ends + per_token) * np.sqrt(length / (2.0 * per_token))
    # The code applies the bounds to 1 / ratio.
    mirrored = (-ends[::-1] + per_token) * np.sqrt(length / (2.0 * per_token))
    bounds = f"{1.0 - reach}_{1.0 + reach}"
    by_k = {"rollout_is": None, "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": bounds}
    spread = float(np.sqrt(2.0 * per_token * length))
    expected = float(norm.cdf(mirrored[1]) - norm.cdf(mirrored[0]))
    assert agrees(kept_share, expected, by_k, spread, length)
    by_ratio = {
        "rollout_rs": "geometric",
        "rollout_rs_threshold": 1.0 + reach,
        "rollout_rs_threshold_lower": 1.0 - reach,
    }
    expected = float(norm.cdf(z[1]) - norm.cdf(z[0]))
    assert agrees(kept_share, expected, by_ratio, spread, length, "verl-0.7.0")
