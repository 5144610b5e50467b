"""Pareto k-hat: how heavy the upper tail of importance ratios is (PSIS).

arviz-stats is not used because its public functions need all ratios in memory, while the fit needs
only the tail, which a stream can keep. Tests compare with arviz-stats.
"""

from __future__ import annotations

from math import log10, sqrt

import numpy as np

from rcdiag.statistics.intervals import NORMAL
from rcdiag.statistics.ratios import Array
from rcdiag.table.token_batch import RowFrame

# Enough for the tail of a hundred million ratios; with more ratios the tail is truncated.
KEPT = 1 << 15
# With fewer exceedances the tail is not fitted.
FEWEST = 5
# A tail index of 0.5 or more has no second moment. Just below 0.5 the second moment has no bound.
# At 0.48 the root mean square is ten times the scale, the most that an interval assumes: rcdiag's
# proposal.
NO_SECOND_MOMENT = 0.5
LARGEST_SHAPE = 0.48
# Standard errors from k-hat to the upper end of its 95% interval, and to that of its 80% interval.
UPPER_END, LIKELY_END = NORMAL, 1.2815515655446004


class UpperTail(RowFrame, frozen=True):
    """The largest log-ratios of some tokens or sequences, and how many there were in all."""

    count: int
    kept: Array  # unordered
    not_numbers: int  # NaN and positive infinities; with any of them no tail is fitted

    @classmethod
    def of(cls, log_ratio: Array) -> UpperTail:
        """Keep the largest log-ratios, nats; a ratio of 0 (-inf) is not in an upper tail."""
        count, not_numbers = len(log_ratio), 0
        # Only a sum that is not finite makes it necessary to look at each value.
        with np.errstate(over="ignore", invalid="ignore"):
            total = log_ratio.sum()
        if not np.isfinite(total):
            numbers = np.isfinite(log_ratio)
            not_numbers = int((~numbers & (log_ratio != -np.inf)).sum())
            log_ratio = log_ratio[numbers]
        return cls(count, log_ratio, not_numbers).bounded()

    def bounded(self) -> UpperTail:
        if len(self.kept) <= KEPT:
            return self
        # Copied, because a view would keep all values in memory.
        largest = np.partition(self.kept, -KEPT)[-KEPT:].copy()
        return UpperTail(self.count, largest, self.not_numbers)


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
    """Return the shape of a generalised Pareto fit to the ratios' upper tail, and the tail's size.

    The tail is the M = min(0.2 S, 3 sqrt(S)) largest of S ratios, all less the largest ratio
    outside of it. The shape is NaN if a ratio is infinite or too few ratios differ. The
    distribution has 1 / k finite moments.
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
    """Return how much larger the true mean of (ratio - 1)^2 may be than the sample's.

    A sample of a heavy tail rarely contains the ratios that dominate its second moment. The tail is
    therefore modelled as a generalised Pareto distribution. Its shape k is `errors` standard errors
    above k-hat, and its median m is that of the exceedances. Its scale is s = m k / (2^k - 1), its
    mean s / (1 - k), and its mean square 2 s^2 / ((1 - k) (1 - 2 k)). The result is the modelled
    mean of the tail less the sampled one, weighted by the tail's share of all ratios.

    k is capped at LARGEST_SHAPE, so that the second moment exists; `is_observable` checks whether
    it does, since a tail of ratios near 1 is harmless whatever its shape. The result is 0 if there
    is no tail to fit.
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

    The profile likelihood weights a grid of b = -k / scale, and k is estimated at the weighted mean
    of b. Source: Zhang & Stephens 2009, Technometrics 51(3), eqs. 3 to 6.
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
    """Shrink k-hat as by ten observations of k = 0.5, for short tails. Source: Vehtari et al."""
    return (count * shape + 5.0) / (count + 10.0)


def k_hat_error(shape: float, count: int) -> float:
    """Return the standard error (1 + k) / sqrt(M), assuming that the tail's values are independent.

    Source: Smith 1987, Annals of Statistics 15(3), for k > -1/2. For smaller k, estimates converge
    faster than 1 / sqrt(M), so the error at -1/2 is an upper bound.
    """
    return (1.0 + max(shape, -0.5)) / sqrt(count)
