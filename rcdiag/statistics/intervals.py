"""95% intervals are made from what each cluster of tokens adds to a number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rcdiag.frozen import dataclass
from rcdiag.statistics.distributions import student_quantile
from rcdiag.statistics.ratios import Array

COVERAGE = 0.95
TAIL = (1.0 - COVERAGE) / 2.0  # outside, on either side
NORMAL = 1.959963984540054  # the standard normal quantile at 0.5 + COVERAGE / 2
# With fewer clusters an interval is a rough guess, however it is made.
FEW_CLUSTERS = 20

Interval = tuple[float | None, float | None]
NONE: Interval = (None, None)
Count = NDArray[np.int64] | int


def t_quantile(clusters: int) -> float:
    """Return how many standard errors a two-sided interval reaches, with so many clusters."""
    return float(student_quantile(clusters - 1, TAIL))


def standard_error(left_out: Array) -> np.float64:
    """Return the jackknife error of a metric, from its values without each cluster in turn.

    sqrt((n - 1) / n sum (value_i - mean)^2). Source: Efron & Tibshirani 1993, ch. 11.
    """
    count = len(left_out)
    return np.sqrt((count - 1) / count * np.square(left_out - left_out.mean()).sum())


def errors_and_reaches(influence: Array, clusters: Count) -> tuple[Array, Array, Array]:
    """Return the standard error of numbers, and how many of them an interval reaches down and up.

    `influence` [clusters, bins] is (n - 1) times what a number loses without each cluster in turn;
    it is 0 where a bin has nothing of a cluster, so that only `clusters` of them count, 2 or more.
    All three results are [bins].

    The error is the jackknife's: in a mean, a cluster that holds a share h of the data counts with
    its residual over 1 - h (CR3; Bell & McCaffrey 2002, Survey Methodology 28(2)). Reaches are
    those of Hall's cubic transformation, which takes the skewness out of a studentised mean: with
    T the mean less the truth in standard errors and g its skewness / sqrt(n),
    T + g T^2 / 3 + g^2 T^3 / 27 + g / 6 is all but symmetric (Hall 1992, On the removal of skewness
    by transformation, JRSS B 54(1)). Its quantile is that of Student's t with 3 n / kurtosis
    degrees of freedom, n - 1 at most, which Satterthwaite's formula gives where the influences are
    normal with unequal variances; and c / n more, as far as skewness and kurtosis make a two-sided
    interval too short (`_more_for_skewness`).
    """
    count = np.asarray(clusters, dtype=np.float64)
    scale = np.abs(influence).max(axis=0)
    scaled = influence / np.where(scale > 0.0, scale, 1.0)  # no power of it leaves its range
    squares = np.square(scaled)
    second, third, fourth = (
        power.sum(axis=0) / count for power in (squares, squares * scaled, squares * squares)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        error = scale * np.sqrt(second / (count - 1.0))
        # Unbiased for normal values; that of two values is 0 anyway.
        of_sample = np.sqrt(count * (count - 1.0)) / np.maximum(count - 2.0, 1.0)
        skewness = np.where(second > 0.0, of_sample * third / second**1.5, 0.0)
        kurtosis = np.where(second > 0.0, fourth / second**2, 3.0)
    freedom = np.minimum(3.0 * count / kurtosis, count - 1.0)
    quantile = student_quantile(np.maximum(freedom, 1.0), TAIL)
    quantile = quantile + _more_for_skewness(skewness, kurtosis) / count
    skewness = skewness / np.sqrt(count)
    return error, _untransformed(quantile, skewness), -_untransformed(-quantile, skewness)


def _more_for_skewness(skewness: Array, kurtosis: Array) -> Array:
    """Return n times what n values of a skewed law add to the normal quantile of a 95% interval.

    Where n values have skewness g and excess kurtosis k, mean / (standard deviation / sqrt(n)) is
    within z + c / n as often as a normal number is within z, with
    c = z (g^2 (z^4 + 2 z^2 - 3) / 18 - k (z^2 - 3) / 12 + (z^2 + 3) / 4). Source: Hall 1992, The
    Bootstrap and Edgeworth Expansion, 2.6. The last term, of normal values, is left out: it is what
    Student's t gives exactly.
    """
    z2 = NORMAL**2
    of_skewness = np.square(skewness) * (z2**2 + 2.0 * z2 - 3.0) / 18.0
    return NORMAL * (of_skewness - (kurtosis - 3.0) * (z2 - 3.0) / 12.0)


def _untransformed(transformed: Array, skewness: Array) -> Array:
    """Return the T whose transformation is given; `skewness` is already divided by sqrt(n)."""
    some = np.where(np.abs(skewness) < 1e-9, 1.0, skewness)
    root = np.cbrt(1.0 + some * (transformed - some / 6.0))
    return np.where(np.abs(skewness) < 1e-9, transformed, 3.0 * (root - 1.0) / some)


def jackknife_interval(value: float, left_out: Array, bound: float | None = None) -> Interval:
    """Return the 95% interval of a metric from its values without each cluster in turn.

    A metric that is never on the other side of `bound` is measured by the log of its distance from
    it, which is less skewed, and whose interval cannot pass the bound. No ends where a value is not
    finite.
    """
    return jackknife_intervals([Replicates(value, left_out, bound)])[0]


@dataclass(frozen=True, slots=True)
class Replicates:
    """A metric's value, and its values without each cluster in turn."""

    value: float
    left_out: Array  # [clusters]
    bound: float | None = None  # what the metric never passes

    @property
    def side(self) -> float:
        """Return 1 where the metric is above its bound, -1 where it is below."""
        assert self.bound is not None
        return 1.0 if self.value >= self.bound else -1.0

    @property
    def log_distances(self) -> tuple[float, Array] | None:
        """Return log |x - bound| of the value, and without each cluster; None where some is none.

        One cluster may hold all of the distance.
        """
        if self.bound is None or self.value == self.bound:
            return None
        distances = self.side * (self.left_out - self.bound)
        if not (distances > 0.0).all():
            return None
        return float(np.log(self.side * (self.value - self.bound))), np.log(distances)

    def interval(self, low: float, high: float, *, logs: bool) -> Interval:
        """Return the ends as the metric has them, given those of its value or its log distance."""
        if self.bound is None:
            return low, high
        if not logs:
            return (max(low, self.bound), high) if self.side > 0.0 else (low, min(high, self.bound))
        with np.errstate(over="ignore"):
            ends = self.bound + self.side * np.exp([low, high])
        if not np.isfinite(ends).all():
            return NONE
        return float(ends.min()), float(ends.max())


def jackknife_intervals(metrics: Sequence[Replicates]) -> list[Interval]:
    """Return `jackknife_interval` of several metrics with the same clusters, made together."""
    intervals: list[Interval] = [NONE] * len(metrics)
    varies: list[tuple[int, Replicates, float, Array, bool]] = []
    for number, metric in enumerate(metrics):
        if not np.isfinite(metric.left_out).all():
            continue
        if np.ptp(metric.left_out) <= 1e-12 * abs(metric.value):
            intervals[number] = metric.value, metric.value
        elif (logs_of := metric.log_distances) is None:
            varies.append((number, metric, metric.value, metric.left_out, False))
        else:
            varies.append((number, metric, *logs_of, True))
    if varies:
        rows = np.stack([values for *_, values, _ in varies])  # [metrics, clusters]
        clusters = rows.shape[1]
        influence = (clusters - 1.0) * (rows.mean(axis=1, keepdims=True) - rows)
        error, down, up = errors_and_reaches(influence.T, clusters)
        for place, (number, metric, centre, _, logs) in enumerate(varies):
            low, high = centre - down[place] * error[place], centre + up[place] * error[place]
            intervals[number] = metric.interval(float(low), float(high), logs=logs)
    return intervals


def influences(numerators: Array, denominators: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return what `errors_and_reaches` asks of sum(numerators) / sum(denominators), by bin.

    All are [clusters, bins], the numbers of clusters [bins]. With a_c - R n_c the residual of
    cluster c, the quotient R loses (a_c - R n_c) / (N - n_c) without it.
    """
    total = denominators.sum(axis=0)
    clusters = (denominators > 0).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = numerators.sum(axis=0) / total
        lost = (numerators - value * denominators) / (total - denominators)
        return (clusters - 1.0) * lost, clusters


def ratio_errors(numerators: Array, denominators: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the cluster-robust error of sum(numerators) / sum(denominators), and its clusters.

    Both [clusters, bins], result [bins]: the jackknife's, of values without each cluster in turn.
    """
    influence, clusters = influences(numerators, denominators)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(np.square(influence).sum(axis=0) / (clusters * (clusters - 1.0))), clusters


def ratio_interval(numerators: Array, denominators: Array) -> tuple[Array, Array]:
    """Return both ends of the 95% interval of a quotient of sums by bin; NaN below two clusters."""
    influence, clusters = influences(numerators, denominators)
    enough = clusters >= 2
    with np.errstate(divide="ignore", invalid="ignore"):
        value = numerators.sum(axis=0) / denominators.sum(axis=0)
    low, high = np.full_like(value, np.nan), np.full_like(value, np.nan)
    error, down, up = errors_and_reaches(influence[:, enough], clusters[enough])
    low[enough], high[enough] = value[enough] - down * error, value[enough] + up * error
    return low, high
