"""Second moments of ratios: whether a sample can show them, and how large they may be.

An effective sample size, E[ratio]^2 / E[ratio^2], depends on ratios so large that a sample may
contain none of them. Then the sample's ESS is too high, and so is every interval computed from its
ratios. k-hat does not help: it is lowest when the largest ratios are missing. The variance of
log-ratios does, since small ratios show it as well as large ones.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from rcdiag.statistics.intervals import jackknife_interval
from rcdiag.statistics.pareto import NO_SECOND_MOMENT
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import Totals

# k-hat ignores scale: even a heavy tail of ratios near 1 does not change a weighted mean.
HARMLESS_ESS = 0.9
# A second moment needs this many times the ratios that its sample-size bound asks for; rcdiag's
# proposal.
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

    m is the mean log-ratio per token.
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
    """Tell whether E[ratio^2] of tokens or sequences can be estimated from this many of them.

    Two conditions must hold:

    - The tail has a second moment, by its k-hat (Vehtari et al. 2024, JMLR 25(72)).
    - There are at least 10 e^{2v} ratios, where v is the variance of the log-ratio; for sequences
      the mean of 10 e^{2vT} over their lengths T. An importance-sampling mean needs about
      e^KL samples (Chatterjee & Diaconis 2018, Annals of Applied Probability 28(2),
      arXiv 1511.01437), where KL is that of the distribution that dominates the mean from the
      sampler. For E[ratio^2] it is the sampler's, tilted by ratio^2: 2v if ratios are lognormal.
    """
    tail, _ = suite.k_hat_seq if level == "seq" else suite.k_hat_token
    if tail >= NO_SECOND_MOMENT and ess(suite.point, level)[0] < HARMLESS_ESS:
        return False
    lengths = suite.state.table.lengths.astype(np.float64)
    count, of_each = (len(lengths), lengths) if level == "seq" else (lengths.sum(), np.ones(1))
    with np.errstate(over="ignore"):
        needed = ENOUGH * np.exp(2.0 * variance(suite.point, level)[0] * of_each).mean()
    return bool(count >= needed)


def largest_growth(suite: Suite, level: str, sampled: float) -> float:
    """Return how large E[ratio^2] / E[ratio]^2 may be, given the upper end `sampled` of the sample.

    It is the larger of that end and of the mean of e^{v T} over the lengths T, which holds for
    lognormal ratios. v is the upper end of the 95% interval of the variance of log-ratios per
    token. Both are multiplied by e^{b T}, where b is what the Pareto tail of the tokens' ratios may
    add to the sample (`squares_beyond`). Infinite if the interval has no upper end.
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
    """Return the sequences' lengths T (1 for tokens), and v T as in `largest_growth`."""
    of_level = partial(variance, level=level)
    value, left_out = float(of_level(suite.point)[0]), of_level(suite.left_out)
    high = jackknife_interval(value, left_out, 0.0, suite.sizes(level))[1]
    lengths = suite.state.table.lengths.astype(np.float64) if level == "seq" else np.ones(1)
    return lengths, (np.inf if high is None else high) * lengths


def largest_mean_square(suite: Suite, name: str, sampled: float) -> float:
    """Return how large E[log_ratio^2] may be, given the upper end `sampled` of the sample.

    `name` is the token sum that is half of it, to second order in the log-ratio: k2, k3, or k3
    under the target. A sample of a heavy tail rarely contains the tokens that dominate the mean
    square. The result is therefore at least the observed mean plus what the tail is likely to add
    to the sample, by the upper end of the 80% interval of its k-hat.
    """
    seen = 2.0 * float(suite.point.per_token(name)[0])
    return max(sampled, seen + suite.likely_squares_beyond)
