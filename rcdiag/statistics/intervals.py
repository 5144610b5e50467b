"""Cluster replicates give 95% intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.ratios import Array

COVERAGE = 0.95
NORMAL = 1.959963984540054  # the standard normal quantile at 0.5 + COVERAGE / 2
# With fewer clusters an interval is a rough guess, however it is made.
FEW_CLUSTERS = 20

Interval = tuple[float | None, float | None]
NONE: Interval = (None, None)


def t_quantile(clusters: int) -> float:
    """Return how many standard errors a two-sided interval reaches, with so many clusters."""
    from scipy.special import stdtrit

    return float(stdtrit(clusters - 1, 0.5 + COVERAGE / 2.0))


def skewed_t_quantile(away: Array) -> Array:
    """Return `t_quantile` [bins] for skewed clusters `away` [clusters, bins] from their mean.

    Where n values have skewness g and excess kurtosis k, mean / (standard deviation / sqrt(n)) is
    within z + c / n as often as a normal number is within z, with
    c = z (g^2 (z^4 + 2 z^2 - 3) / 18 - k (z^2 - 3) / 12 + (z^2 + 3) / 4). Source: Hall 1992, The
    Bootstrap and Edgeworth Expansion, 2.6. The last term, of normal values, is what Student's t
    gives exactly. A sample's g^2 is below n, so the reach doubles at the most.
    """
    count = len(away)
    away = away / np.abs(away).max(axis=0)  # so that no power of it leaves its range
    squares = np.square(away)
    square, cube, fourth = (x.mean(axis=0) for x in (squares, squares * away, squares**2))
    z2 = NORMAL**2
    skewness = np.square(cube) / square**3 * (z2**2 + 2.0 * z2 - 3.0) / 18.0
    kurtosis = (fourth / square**2 - 3.0) * (z2 - 3.0) / 12.0
    return t_quantile(count) + NORMAL * (skewness - kurtosis) / count


def standard_error(left_out: Array) -> np.float64:
    """Return the jackknife error of a metric, from its values without each cluster in turn.

    sqrt((n - 1) / n sum (value_i - mean)^2). Source: Efron & Tibshirani 1993, ch. 11.
    """
    count = len(left_out)
    return np.sqrt((count - 1) / count * np.square(left_out - left_out.mean()).sum())


def bootstrap(value: float, replicates: Array, left_out: Array) -> Interval:
    """Return the BCa interval: percentiles corrected for bias, skewness and few clusters.

    None where a replicate is not finite. Sources: Efron 1987 (BCa); Hesterberg 2015,
    arXiv 1411.5279, 4.2: a percentile interval is too narrow as t is wider than normal and as
    n - 1 is less than n, so its tails are taken at Phi(-t sqrt(n / (n - 1))). The t is that for
    skewed clusters: derived for studentised means, measured to serve here (tests/statistics).
    """
    from scipy.special import ndtr, ndtri

    if not np.isfinite(replicates).all():
        return NONE
    clusters = len(left_out)
    if np.ptp(replicates) <= 1e-12 * abs(value):
        return float(replicates.min()), float(replicates.max())
    reach = _reach(left_out) * np.sqrt(clusters / (clusters - 1))
    bias = float(ndtri(_share_below(value, replicates)))
    ends = bias + np.array([-reach, reach])
    shrink = 1.0 - _acceleration(left_out) * ends
    if not (shrink > 0.0).all():  # so skewed that the correction turns over: leave it out
        shrink = np.ones(2)
    bounds = np.quantile(replicates, ndtr(bias + ends / shrink))
    return float(bounds[0]), float(bounds[1])


def _reach(left_out: Array) -> float:
    """Return `skewed_t_quantile` of the jackknife values, Student's where one is not finite."""
    away = left_out.mean() - left_out
    if not 0.0 < np.abs(away).max() < np.inf:
        return t_quantile(len(left_out))
    return float(skewed_t_quantile(away[:, None])[0])


def _share_below(value: float, replicates: Array) -> float:
    below = np.mean(replicates < value) + 0.5 * np.mean(replicates == value)
    count = len(replicates)
    return float(np.clip(below, 1.0 / (count + 1), count / (count + 1)))


def _acceleration(left_out: Array) -> float:
    """Return a sixth of the skewness of the jackknife values, 0 where one is not finite."""
    if not np.isfinite(left_out).all():
        return 0.0
    away = left_out.mean() - left_out
    largest = float(np.abs(away).max())
    if not 0.0 < largest < np.inf:
        return 0.0
    away = away / largest  # so that no power of it underflows
    return float(np.power(away, 3).sum() / (6.0 * np.square(away).sum() ** 1.5))


def ratio_errors(numerators: Array, denominators: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the cluster-robust error of sum(numerators) / sum(denominators), and its clusters.

    Both [clusters, bins], result [bins]. With a_c - R n_c the residual of cluster c, the error is
    sqrt(G / (G - 1) sum residual^2) / N. Source: Cochran 1977, Sampling Techniques, 6.4.
    """
    total = denominators.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = numerators.sum(axis=0) / total
        residuals = numerators - value * denominators
        clusters = (denominators > 0).sum(axis=0)
        widened = clusters / (clusters - 1.0)
        return np.sqrt(widened * np.square(residuals).sum(axis=0)) / total, clusters


def ratio_interval(numerators: Array, denominators: Array) -> tuple[Array, Array]:
    """Return both ends of the 95% interval of a quotient of sums by bin; NaN below two clusters."""
    from scipy.special import stdtrit

    error, clusters = ratio_errors(numerators, denominators)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = numerators.sum(axis=0) / denominators.sum(axis=0)
        reach = stdtrit(np.maximum(clusters - 1, 1), 0.5 + COVERAGE / 2.0) * error
    reach[clusters < 2] = np.nan
    return value - reach, value + reach
