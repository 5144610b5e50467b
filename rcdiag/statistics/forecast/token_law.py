"""The law of single tokens: sums of log-ratios over a sequence, by its length.

Given its KL per token k, a sequence of T tokens has sum log_ratio ~ N(drift k T, 2 k T), nats, with
log_ratio = target - behavior. Where the tokens were drawn from the behavior policy, log_ratio plus
the KL of its prefix has mean 0 given that prefix: drift = -1, and variances of tokens add up to
about 2 k T (martingale central limit theorem, Hall and Heyde 1980, chapter 3). That k differs
between sequences, as a lognormal number, is rcdiag's proposal.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rcdiag.statistics.ratios import Array

# Nodes of a normal variable. Evenly spaced: exact to rounding for smooth functions, and half a step
# wrong (0.002) for the steps that the geometric window becomes at great lengths, where the few
# nodes of Gauss and Hermite would be wrong by 0.05.
NODES = np.linspace(-8.0, 8.0, 1601)
SHARES = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
WIDEST = 2.5  # largest spread of log k that is looked for
TYPICAL = 16  # lengths that stand for all of them


class TokenLaw(Struct, frozen=True):
    """A law fitted to sequences."""

    kl_by_mean: float  # nats per token, -sum log_ratio / sum T
    kl_by_variance: float  # nats per token, from the variance of sums
    spread: float  # standard deviation of log k over sequences
    drift: float  # mean of log_ratio in units of k; -1 for tokens of the behavior policy
    by_the_mean: bool = False  # which of both estimates is used

    @property
    def kl(self) -> float:
        """Return nats per token, never below 0."""
        return max(self.kl_by_mean if self.by_the_mean else self.kl_by_variance, 0.0)

    def factors(self) -> Array:
        """Return the quotients of a sequence's k and the mean k, at NODES; their mean is 1."""
        return np.exp(self.spread * NODES - 0.5 * self.spread**2)


def typical_lengths(lengths: Array) -> Array:
    """Return quantiles in the middle of equal shares: lengths that stand for many."""
    return np.quantile(lengths, (np.arange(TYPICAL) + 0.5) / TYPICAL).astype(np.float64)


def expected_ess(law: TokenLaw, lengths: Array) -> Array:
    """Return the mean over k of e^{-2 k T}: Kish's ESS of sequences, a fraction, [lengths].

    It is E[ratio]^2 / E[ratio^2] of a ratio whose log is N(-k T, 2 k T).
    """
    exponent = -2.0 * law.kl * np.multiply.outer(lengths, law.factors())
    return np.exp(exponent) @ SHARES


def expected_inside(law: TokenLaw, lengths: Array, lower: Array, upper: Array) -> Array:
    """Return the share of sequences with lower <= sum log_ratio <= upper (nats), [lengths].

    Mean over k of Phi((upper - drift k T) / s) - Phi((lower - drift k T) / s), s^2 = 2 k T.
    For a window of the geometric mean the bounds are T times its log bounds.
    """
    from scipy.special import ndtr

    of_sequence = law.kl * np.multiply.outer(lengths, law.factors())
    if law.kl == 0.0:  # nothing varies
        centre = -law.kl_by_mean * lengths
        return ((lower <= centre) & (centre <= upper)).astype(np.float64)
    centre, scale = law.drift * of_sequence, np.sqrt(2.0 * of_sequence)
    inside = ndtr((upper[:, None] - centre) / scale) - ndtr((lower[:, None] - centre) / scale)
    return inside @ SHARES


def expected_variance(law: TokenLaw, lengths: Array) -> Array:
    """Return the variance of sum log_ratio, nats^2: 2 k T + (drift k T)^2 c^2; [lengths].

    c^2 = e^{spread^2} - 1 is the squared coefficient of variation of k (law of total variance).
    """
    total = law.kl * lengths
    return 2.0 * total + np.square(law.drift * total) * np.expm1(law.spread**2)


def fit_law(lengths: Array, sums: Array, differ: int = 0) -> TokenLaw:
    """Fit mean, variance and mean absolute deviation of sums, [sequences], at least 2.

    `differ` is the sign of KL by variance less KL by mean, 0 where the two agree: then that by
    variance is used, the surer one (its relative error is sqrt(2 / n), that of the mean
    sqrt(2 / KL of all n sequences)). Else the larger is; if by variance, with the observed mean.
    """
    mean = float(sums.sum() / lengths.sum())
    deviations = sums - mean * lengths
    squares = float(np.square(deviations).sum() * len(sums) / (len(sums) - 1.0))
    if squares == 0.0:
        return TokenLaw(-mean, 0.0, 0.0, -1.0)
    seen = _flatness(deviations / np.sqrt(lengths))
    variance = squares / lengths.sum()  # per token
    spread = _spread(seen, mean, variance, lengths)
    kl = _kl_by_variance(mean, variance, spread, lengths)
    drift = mean / kl if differ > 0 and kl > 0.0 else -1.0
    return TokenLaw(-mean, kl, spread, drift, by_the_mean=differ < 0)


def _flatness(values: Array) -> float:
    """Return (E|x|)^2 / E[x^2]: 2 / pi for a Gaussian, less with heavier tails.

    Source: Geary 1935, Biometrika 27. Taken rather than the kurtosis, whose fourth powers say
    little about lognormal scales at some thousand sequences.
    """
    return float(np.square(np.abs(values).mean()) / np.square(values).mean())


def _kl_by_variance(mean: float, variance: float, spread: float, lengths: Array) -> float:
    """Return half the variance per token, nats, less the part of unequal sequence means.

    sum E[dev^2] / sum T = 2 k + mean^2 c^2 sum T^2 / sum T.
    """
    of_means = mean**2 * np.expm1(spread**2) * np.square(lengths).sum() / lengths.sum()
    return float(max(variance - of_means, 0.0) / 2.0)


def _spread(seen: float, mean: float, variance: float, lengths: Array) -> float:
    """Return the spread of log k that makes the law as flat as the data, 0 if they are flatter."""
    from scipy.optimize import brentq

    typical = typical_lengths(lengths)

    def excess(spread: float) -> float:
        kl = _kl_by_variance(mean, variance, spread, lengths)
        return _flatness_of_law(kl, mean, spread, typical) - seen

    if excess(0.0) <= 0.0:
        return 0.0
    return WIDEST if excess(WIDEST) >= 0.0 else float(brentq(excess, 0.0, WIDEST, xtol=1e-4))


def _flatness_of_law(kl: float, mean: float, spread: float, lengths: Array) -> float:
    """Return `_flatness` of deviations / sqrt(T) under the law, averaged over k and T.

    E|N(m, s^2)| = s sqrt(2 / pi) e^{-m^2 / 2 s^2} + m (1 - 2 Phi(-m / s)).
    """
    from scipy.special import ndtr

    factors = TokenLaw(0.0, 0.0, spread, -1.0).factors()
    m = mean * np.multiply.outer(np.sqrt(lengths), factors - 1.0)
    s = np.sqrt(2.0 * kl * factors)
    with np.errstate(divide="ignore", invalid="ignore"):
        away = np.where(s > 0.0, m / s, np.copysign(np.inf, m))
    folded = s * np.sqrt(2.0 / np.pi) * np.exp(-0.5 * away**2) + m * (1.0 - 2.0 * ndtr(-away))
    second = 2.0 * kl + np.square(mean) * np.expm1(spread**2) * lengths.mean()
    return float(np.square((folded @ SHARES).mean()) / second)
