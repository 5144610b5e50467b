"""The effect of rounding alone on sequence ratios, at the lengths of a table.

Rounding differences between two engines are almost independent, so that the log-ratio of a sequence
of T tokens is almost normal with variance 2 k T, where k is the KL per token (martingale central
limit theorem, Hall & Heyde 1980, chapter 3). Long responses alone therefore make the effective
sample size small and the tail index large, by an amount that can be computed.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from rcdiag.results.guide import Guide
from rcdiag.statistics.pareto import k_hat_error, tail_size, with_prior
from rcdiag.statistics.suite import Suite

# If rounding alone gives less than this, guides are lowered in proportion; rcdiag's proposal.
SHORT = 0.75
# Deviations of a fitted tail index, in standard errors, that rounding alone causes rarely and
# almost never.
RARE, VERY_RARE = 2.0, 4.0


def rounding_kl(suite: Suite) -> float | None:
    """Return the KL per token, nats, that rounding causes: noise^2 E[(1 - p)^2] / 2.

    p are the behavior policy's probabilities. The observed mismatch is not used, so that it cannot
    excuse itself. None if the noise is unknown.
    """
    if suite.rounding.noise is None:
        return None
    misses = float(suite.point.per_token("behavior_miss_squared")[0])
    return 0.5 * suite.rounding.noise**2 * misses


def expected_ess_seq(suite: Suite) -> float | None:
    """Return 1 / mean(e^{2 k T}) over the lengths T: E[ratio]^2 / E[ratio^2] of normal sums."""
    kl = rounding_kl(suite)
    if kl is None:
        return None
    exponents = 2.0 * kl * suite.state.table.lengths.astype(np.float64)
    return float(1.0 / np.exp(exponents).mean())


def expected_k_hat_seq(suite: Suite) -> float | None:
    """Return the tail index that k-hat finds for lognormal ratios of sequences.

    Near x = e^{s z}, with s the standard deviation of its log, the exceedances of a lognormal ratio
    have the generalised Pareto shape d/dx ((1 - F(x)) / f(x)) = (s + z) m(z) - 1 (von Mises), where
    m(z) = (1 - Phi(z)) / phi(z) is the Mills ratio. z is taken in the middle of the tail to which
    k-hat is fitted, and the prior of the fit is included.
    """
    from scipy.special import ndtr, ndtri

    kl = rounding_kl(suite)
    if kl is None:
        return None
    lengths = suite.state.table.lengths.astype(np.float64)
    size = tail_size(len(lengths))
    z = ndtri(1.0 - size / len(lengths) / 2.0)
    mills = ndtr(-z) * np.exp(0.5 * z * z) * np.sqrt(2.0 * np.pi)
    deviation = np.sqrt(2.0 * kl * lengths.mean())
    return with_prior(float((deviation + z) * mills - 1.0), size)


def ess_guide(guide: Guide, suite: Suite) -> Guide:
    """Return the guide of sequence ESS for a suite."""
    expected = expected_ess_seq(suite)
    return guide if expected is None else lowered_ess_guide(guide, expected)


def lowered_ess_guide(guide: Guide, expected: float) -> Guide:
    """Return the guide of sequence ESS, lowered if rounding alone makes ESS small."""
    share = min(1.0, expected / SHORT)
    return replace(guide, warning=guide.warning * share, error=guide.error * share)


def k_hat_guide(guide: Guide, suite: Suite) -> Guide:
    """Return the guide of sequence k-hat, raised if rounding alone gives a heavy tail."""
    expected = expected_k_hat_seq(suite)
    if expected is None:
        return guide
    error = k_hat_error(expected, tail_size(len(suite.state.table.lengths)))
    return replace(
        guide,
        warning=max(guide.warning, expected + RARE * error),
        error=max(guide.error, expected + VERY_RARE * error),
    )
