"""These functions tell whether data can show the second moment of ratios, and how large it may be.

An effective sample size, E[ratio]^2 / E[ratio^2], hangs on ratios so large that a sample need not
hold one. Where it holds none, the sample's own number is too high, and so is every interval that is
made of the sample's ratios: k-hat too is lowest just where the giants are missed. The variance of
log-ratios tells of them all the same, since it is as plain in the small ratios as in the large.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from rcdiag.statistics.intervals import jackknife_interval
from rcdiag.statistics.pareto import NO_SECOND_MOMENT
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import Totals

# k-hat is blind to scale: however heavy, a tail of ratios near 1 moves no weighted mean.
HARMLESS_ESS = 0.9
# How many times the ratios that a second moment takes there must be; rcdiag's proposal.
ENOUGH = 10.0


def ess(t: Totals, level: str) -> Array:
    """Return the effective sample size (sum ratio)^2 / (n sum ratio^2) of tokens or sequences.

    It is a fraction in (0, 1], computed in log space so that no ratio overflows.

    Source: Kong 1992; Owen, Monte Carlo theory, methods and examples, ch. 9.
    """
    name = f"{level}_ratio"
    count = t.sequences if level == "seq" else t.tokens
    share: Array = np.exp(2.0 * t.log_sums[name] - t.log_squares[name] - np.log(count))
    return share


def squares_of_sums(t: Totals) -> Array:
    """Return sum (S - m T)^2, nats^2, over sequences of T tokens with the summed log-ratio S.

    m is the mean log-ratio of a token.
    """
    mean = t.per_token("log_ratio")
    return (
        2.0 * t.sums["seq_k2"]
        - 2.0 * mean * t.sums["log_ratio_by_length"]
        + mean**2 * t.sums["length_squared"]
    )


def variance(t: Totals, level: str) -> Array:
    """Return the variance of log-ratios, nats^2: of tokens, or of sequences' sums per token."""
    if level == "seq":
        return squares_of_sums(t) / t.tokens
    variance: Array = 2.0 * t.per_token("k2") - np.square(t.per_token("log_ratio"))
    return variance


def is_observable(suite: Suite, level: str) -> bool:
    """Tell whether the ratios of tokens or sequences are enough to show their second moment.

    They are not where their tail has none (k-hat), and not where ratios with a log of variance v
    are fewer than 10 e^{2v}: E[ratio^2] is made of ratios under the distribution that is tilted by
    ratio^2. Its KL from the sampler is 2v for a lognormal ratio, and that takes e^{2v} of them.
    Sources: Vehtari et al. 2024, JMLR 25(72); Chatterjee & Diaconis 2018, Annals of Applied
    Probability 28(2), arXiv 1511.01437.
    """
    tail, _ = suite.k_hat_seq if level == "seq" else suite.k_hat_token
    if tail >= NO_SECOND_MOMENT and ess(suite.point, level)[0] < HARMLESS_ESS:
        return False
    lengths = suite.state.table.lengths
    count, length = (len(lengths), lengths.mean()) if level == "seq" else (lengths.sum(), 1.0)
    exponent = 2.0 * float(variance(suite.point, level)[0]) * length
    return bool(np.log(count) >= np.log(ENOUGH) + exponent)


def largest_growth(suite: Suite, level: str, sampled: float) -> float:
    """Return how large E[ratio^2] / E[ratio]^2 may be, given the upper end `sampled` of the sample.

    It is the larger of that end and of the mean of e^{v T} over the lengths T, which is the growth
    of lognormal ratios, v being the upper end of the 95% interval of the variance of log-ratios per
    token. Either grows by e^{b T}: b is what the Pareto tail of the tokens' ratios may have beyond
    the sample (`squares_beyond`). Infinite where the interval has no end.
    """
    lengths, lognormal = _largest_exponents(suite, level)
    beyond = suite.squares_beyond * lengths
    return float(max(np.exp(lognormal + beyond).mean(), sampled * np.exp(beyond).mean()))


def largest_entropy(suite: Suite, level: str, sampled: float) -> float:
    """Return how large E[ratio log ratio], nats, may be, given the upper end of the sample.

    As in `largest_growth`, with (v + b) T / 2 for lognormal ratios.
    """
    lengths, lognormal = _largest_exponents(suite, level)
    beyond = suite.squares_beyond * lengths.mean() / 2.0
    return float(max(lognormal.mean() / 2.0, sampled) + beyond)


def _largest_exponents(suite: Suite, level: str) -> tuple[Array, Array]:
    """Return the lengths T of sequences, 1 for tokens, and v T."""
    of_level = partial(variance, level=level)
    value, left_out = float(of_level(suite.point)[0]), of_level(suite.left_out)
    high = jackknife_interval(value, left_out, 0.0, suite.sizes(level))[1]
    lengths = suite.state.table.lengths.astype(np.float64) if level == "seq" else np.ones(1)
    return lengths, (np.inf if high is None else high) * lengths


def largest_mean_square(suite: Suite, name: str, sampled: float) -> float:
    """Return how large E[log_ratio^2] may be, given the upper end `sampled` of the sample.

    `name` is the token sum that holds half of it, to second order in the log-ratio: k2, k3, or k3
    under the target. A heavy tail seldom shows the tokens that make up its mean square, so the end
    is as far out at least as the observed mean and what the tail is likely to have beyond the
    sample, by the upper end of the 80% interval of its k-hat.
    """
    seen = 2.0 * float(suite.point.per_token(name)[0])
    return max(sampled, seen + suite.likely_squares_beyond)
