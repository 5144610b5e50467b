"""These functions say what rounding alone makes of sequence ratios at the lengths of a table.

Rounding differences of two engines hardly depend on each other, so that the log-ratio of a sequence
of T tokens is all but normal, with variance 2 k T where k is the KL of a token (martingale central
limit theorem, Hall & Heyde 1980, chapter 3). Long responses alone make the effective sample size
small and the tail index large; how small and how large is known.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from rcdiag.results.guide import Guide
from rcdiag.statistics.pareto import k_hat_error, tail_size, with_prior
from rcdiag.statistics.suite import Suite

# Where less is expected of honest rounding than this, guides move by as much; rcdiag's proposal.
SHORT = 0.75
# Standard errors of a fitted tail index by which honest rounding is rarely, and hardly ever, off.
RARE, VERY_RARE = 2.0, 4.0


def rounding_kl(suite: Suite) -> float | None:
    """Return the KL of a token, nats, that rounding makes: noise^2 E[(1 - p)^2] / 2.

    p are the behavior policy's probabilities. None of the observed mismatch is in it, so that it
    does not excuse what it is to be compared with. None where the noise is not known.
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
    """Return the tail index that k-hat sees in lognormal ratios of sequences.

    Near x = e^{s z}, with s the standard deviation of its log, a lognormal ratio has exceedances
    of the generalised Pareto shape d/dx ((1 - F(x)) / f(x)) = (s + z) m(z) - 1 (von Mises), where
    m(z) = (1 - Phi(z)) / phi(z) is the Mills ratio. z is taken in the middle of the tail that k-hat
    is fitted to; the fit's prior is counted.
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
    """Return the bounds of sequence ESS on one suite's tokens."""
    expected = expected_ess_seq(suite)
    return guide if expected is None else lowered_ess_guide(guide, expected)


def lowered_ess_guide(guide: Guide, expected: float) -> Guide:
    """Return the bounds of sequence ESS, lower where rounding alone makes it small."""
    share = min(1.0, expected / SHORT)
    return replace(guide, warning=guide.warning * share, error=guide.error * share)


def k_hat_guide(guide: Guide, suite: Suite) -> Guide:
    """Return the bounds of sequence k-hat, higher by what rounding alone makes of the tail."""
    expected = expected_k_hat_seq(suite)
    if expected is None:
        return guide
    error = k_hat_error(expected, tail_size(len(suite.state.table.lengths)))
    return replace(
        guide,
        warning=max(guide.warning, expected + RARE * error),
        error=max(guide.error, expected + VERY_RARE * error),
    )
