"""Pareto k-hat: how heavy the upper tail of importance ratios is (PSIS).

Fitted here and not by arviz-stats, whose public functions want every ratio in memory at once: a
fit needs only the tail, which a stream can hold. Tests compare with arviz-stats.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log10, sqrt

import numpy as np

from rcdiag.statistics.intervals import NORMAL
from rcdiag.statistics.ratios import Array
from rcdiag.table.token_batch import RowFrame

# Enough for the tail of a hundred million ratios; beyond, the tail is cut shorter.
KEPT = 1 << 15
# One value in SAMPLED is looked at to find a bound that the largest are above.
SAMPLED = 16
# Fewer exceedances tell nothing about a tail.
FEWEST = 5
# From a tail index of a half on there is no second moment. Just below it is anything, and here the
# root mean square ten times the scale: as far as an interval goes; rcdiag's proposal.
NO_SECOND_MOMENT = 0.5
LARGEST_SHAPE = 0.48
# Standard errors from k-hat to the upper end of its 95% interval, and to that of its 80% interval.
UPPER_END, LIKELY_END = NORMAL, 1.2815515655446004


class UpperTail(RowFrame, frozen=True):
    """The largest log-ratios of some tokens or sequences, and how many there were in all."""

    count: int
    kept: Array  # in no order
    not_numbers: int  # NaN and positive infinities: with one there is no tail to fit

    @classmethod
    def of(cls, log_ratio: Array) -> UpperTail:
        """Keep the largest of some log-ratios, nats; a ratio of 0 (-inf) is in no upper tail."""
        return cls.of_blocks([log_ratio])

    @classmethod
    def of_blocks(cls, blocks: Sequence[Array]) -> UpperTail:
        """Keep the largest of the log-ratios of all blocks, nats."""
        finite, not_numbers = [], 0
        for log_ratio in blocks:
            # A sum of finite numbers that is not finite costs a look at them, and nothing else.
            with np.errstate(over="ignore", invalid="ignore"):
                total = log_ratio.sum()
            if not np.isfinite(total):
                numbers = np.isfinite(log_ratio)
                not_numbers += int((~numbers & (log_ratio != -np.inf)).sum())
                log_ratio = log_ratio[numbers]
            finite.append(log_ratio)
        return cls(sum(map(len, blocks)), _largest_of(finite), not_numbers)

    def bounded(self) -> UpperTail:
        return UpperTail(self.count, _largest(self.kept), self.not_numbers)


def _largest_of(blocks: Sequence[Array]) -> Array:
    """Return the KEPT largest of all blocks.

    A sample of them tells below which value surely none of these is, so that few are compared.
    """
    count = sum(map(len, blocks))
    if count > 4 * KEPT:
        sample = np.concatenate([values[::SAMPLED] for values in blocks])
        wanted = int(1.2 * KEPT / count * len(sample)) + 1
        least = np.partition(sample, -wanted)[-wanted]
        above = [values[values > least] for values in blocks]
        if sum(map(len, above)) >= KEPT:  # else the sample was not like the rest
            return _largest(np.concatenate(above))
    return _largest(np.concatenate([np.empty(0), *blocks]))


def _largest(values: Array) -> Array:
    # Copied: a view would keep all of the values in memory.
    return values if len(values) <= KEPT else np.partition(values, -KEPT)[-KEPT:].copy()


def reliable_below(count: int) -> float:
    """Return the largest reliable k-hat of PSIS on `count` ratios: min(1 - 1/log10 S, 0.7).

    Source: Vehtari et al. 2024, JMLR 25(72), 3.2.
    """
    return min(1.0 - 1.0 / log10(count), 0.7) if count > 10 else 0.0


def tail_size(count: int) -> int:
    """Return how many of `count` ratios S are the tail: min(0.2 S, 3 sqrt(S)).

    Source: Vehtari et al. 2024, JMLR 25(72), appendix.
    """
    return int(min(0.2 * count, 3.0 * sqrt(count)))


def k_hat(tail: UpperTail) -> tuple[float, int]:
    """Return the shape of the generalised Pareto of the ratios' upper tail, and its length.

    The tail is the M = min(0.2 S, 3 sqrt(S)) largest of S ratios, less the next one. NaN where
    a ratio is infinite or there are too few different ones. The number of finite moments is 1 / k.
    Source: Vehtari et al. 2024, JMLR 25(72), 2.2 and appendix.
    """
    if tail.not_numbers:
        return np.nan, 0
    size = min(tail_size(tail.count), len(tail.kept) - 1)
    if size < FEWEST:
        return np.nan, 0
    ordered = np.sort(tail.kept)[-size - 1 :]
    scaled = np.exp(ordered - ordered[-1])
    exceedances = scaled[1:] - scaled[0]
    exceedances = exceedances[exceedances > 0.0]
    if len(exceedances) < FEWEST:
        return np.nan, 0
    return with_prior(_pareto_shape(exceedances), len(exceedances)), len(exceedances)


def squares_beyond(tail: UpperTail, errors: float = UPPER_END) -> float:
    """Return how much larger the mean squared excess (ratio - 1)^2 may be than it seems.

    A sample of a heavy tail seldom holds the ratios that its second moment is made of. The tail is
    given a generalised Pareto distribution whose shape k lies `errors` standard errors above k-hat
    and whose median m is that of the exceedances: m k / (2^k - 1) is its scale s, s / (1 - k) its
    mean, and 2 s^2 / ((1 - k) (1 - 2 k)) its mean square. What the tail has then, less what its
    ratios in the sample have, counts with its share of all ratios. k is LARGEST_SHAPE at most,
    where there still is a second moment: whether there is one at all `is_observable` asks, which
    knows that a tail of ratios near 1 is harmless whatever its shape. 0 where there is no tail to
    fit.
    """
    shape, size = k_hat(tail)
    if not size:
        return 0.0
    k = min(shape + errors * k_hat_error(shape, size), LARGEST_SHAPE)
    ratios = np.exp(np.sort(tail.kept)[-tail_size(tail.count) - 1 :])
    least, above = ratios[0], ratios[1:] - ratios[0]
    median = float(np.median(above))
    scale = median * k / np.expm1(k * np.log(2.0)) if abs(k) > 1e-9 else median / np.log(2.0)
    mean, square = scale / (1.0 - k), 2.0 * scale**2 / ((1.0 - k) * (1.0 - 2.0 * k))
    whole = (least - 1.0) ** 2 + 2.0 * (least - 1.0) * mean + square
    more = float(whole - np.square(ratios[1:] - 1.0).mean())
    return max(more, 0.0) * len(above) / tail.count


def _pareto_shape(exceedances: Array) -> float:
    """Return the posterior mean of the Pareto shape; `exceedances` are ascending and positive.

    Over a grid of b = -k / scale the profile likelihood gives weights, and k is its estimate at
    the weighted mean of b. Source: Zhang & Stephens 2009, Technometrics 51(3), eqs. 3 to 6.
    """
    count = len(exceedances)
    grid = 30 + int(sqrt(count))
    quarter = exceedances[int(count / 4 + 0.5) - 1]
    steps = 1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    b = 1.0 / exceedances[-1] + steps / (3.0 * quarter)
    shape = np.log1p(-b[:, None] * exceedances).mean(axis=1)
    log_likelihood = count * (np.log(-b / shape) - shape - 1.0)
    weights = np.exp(log_likelihood - log_likelihood.max())
    mean_b = float(np.average(b, weights=weights))
    return float(np.log1p(-mean_b * exceedances).mean())


def with_prior(shape: float, count: int) -> float:
    """Ten observations' worth of k = 0.5, which steadies short tails. Source: Vehtari et al."""
    return (count * shape + 5.0) / (count + 10.0)


def k_hat_error(shape: float, count: int) -> float:
    """Return the standard error (1 + k) / sqrt(M), the tail's values taken as independent.

    Source: Smith 1987, Annals of Statistics 15(3), for k > -1/2. Below it estimates converge faster
    than with the root of M, and the error at -1/2 is more than theirs.
    """
    return (1.0 + max(shape, -0.5)) / sqrt(count)
