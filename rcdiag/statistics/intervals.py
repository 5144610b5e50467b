"""95% confidence intervals, from the contribution of each cluster to a number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from rcdiag.statistics.ratios import Array

COVERAGE = 0.95
TAIL = (1.0 - COVERAGE) / 2.0  # probability outside, on either side
NORMAL = 1.959963984540054  # the standard normal quantile at 0.5 + COVERAGE / 2
# With fewer clusters than this, any interval is a rough guess.
FEW_CLUSTERS = 20
# With fewer effective clusters than this there is no interval, as for a single cluster.
LEAST_EFFECTIVE = 1.5

Interval = tuple[float | None, float | None]
NONE: Interval = (None, None)
Count = NDArray[np.int64] | int


def student_quantile(freedom: ArrayLike, tail: float) -> Array:
    """Return the quantile of Student's t distribution that is exceeded with probability `tail`.

    `freedom` holds degrees of freedom (any real numbers, any shape); the result has that shape, and
    is NaN where they are below 1.

    >>> round(float(student_quantile(4, 0.025)), 3)
    2.776
    """
    from scipy.special import stdtrit  # imported here: it takes as long as `import rcdiag`

    degrees = np.asarray(freedom, dtype=np.float64)
    return np.where(degrees >= 1.0, -stdtrit(degrees, tail), np.nan)


def t_quantile(clusters: int) -> float:
    """Return the half-width of a two-sided 95% interval in standard errors, for `clusters`."""
    return float(student_quantile(clusters - 1, TAIL))


def standard_error(left_out: Array) -> np.float64:
    """Return the jackknife standard error of a metric, from its leave-one-cluster-out values.

    sqrt((n - 1) / n sum (value_i - mean)^2). Source: Efron & Tibshirani 1993, ch. 11.
    """
    count = len(left_out)
    error: np.float64 = np.sqrt((count - 1) / count * np.square(left_out - left_out.mean()).sum())
    return error


def errors_and_reaches(
    influence: Array, clusters: Count, sizes: Array | None = None
) -> tuple[Array, Array, Array]:
    """Return standard errors, and the distances of both interval ends in standard errors.

    The three results are [bins]: the error, and how many errors the interval extends down and up.

    `influence` [clusters, bins] is (n - 1) times the decrease of a number when a cluster is left
    out; it is 0 if the bin has nothing of the cluster, so that n = `clusters` (2 or more) counts
    only the others. `sizes` [clusters, bins] are the tokens or sequences of each cluster, 0 if it
    has none; equal by default.

    The error is the jackknife's: in a mean, the residual of a cluster that holds a share h of the
    data is divided by 1 - h (CR3; Bell & McCaffrey 2002, Survey Methodology 28(2)). The distances
    come from Hall's cubic transformation, which removes the skewness of a studentised mean: with T
    the mean minus the truth in standard errors and g its skewness,
    T + g T^2 / 3 + g^2 T^3 / 27 + g / 6 is almost symmetric (Hall 1992, On the removal of skewness
    by transformation, JRSS B 54(1)). Its quantile is that of Student's t with one degree of freedom
    less than the effective number of clusters, (sum v)^2 / sum v^2 for the variances v of the
    contributions of clusters (Satterthwaite), plus a correction, because skewness and kurtosis make
    a two-sided interval too short (`_skewness_correction`).

    Skewness and kurtosis are averages of two estimates. The estimates from the influences are too
    small if clusters are unequal: the third moment is then that of a few large clusters, whose tail
    is rarely observed. The estimates for a sum of terms with unequal variances but one common shape
    are somewhat too large, as small, noisy clusters shape them too (`benchmarks/coverage.py`).
    """
    count = np.asarray(clusters, dtype=np.float64)
    scale = np.abs(influence).max(axis=0)
    scaled = influence / np.where(scale > 0.0, scale, 1.0)  # so that powers cannot overflow
    with np.errstate(divide="ignore", invalid="ignore"):
        error = scale * np.sqrt(np.square(scaled).sum(axis=0) / (count * (count - 1.0)))
        sizes = (np.ones_like(influence) if sizes is None else sizes).astype(np.float64)
        skewness, excess, effective = _shape_of_sum(scaled, sizes, count)
    quantile = student_quantile(_freedom(effective), TAIL) + _skewness_correction(skewness, excess)
    return error, _inverse_transform(quantile, skewness), -_inverse_transform(-quantile, skewness)


def effective_clusters(sizes: Array) -> Array:
    """Return the effective number of clusters, from their `sizes` [clusters, ...]: [...].

    Satterthwaite's (sum v)^2 / sum v^2, with the variance v of a cluster's contribution taken as
    proportional to its squared size. It depends only on the sizes: if v were estimated from the
    contributions, a few large clusters would look harmless exactly when they happen to be near the
    mean, where the error is underestimated.
    """
    squares = np.square(sizes.astype(np.float64) / max(float(sizes.max(initial=0.0)), 1.0))
    total = squares.sum(axis=0)
    effective: Array = np.divide(
        total**2, np.square(squares).sum(axis=0), out=np.zeros_like(total), where=total > 0.0
    )
    return effective


def too_few(sizes: Array) -> bool:
    """Tell whether clusters of these sizes [clusters] are too few or too unequal for an interval.

    Two of 15 clusters may hold three quarters of the data; if only one does, there is no interval.
    Nor is there one of two single rows: without either, one row is left, whose ESS is always 1.
    """
    alone = float(sizes.sum() - sizes.max(initial=0)) < 2
    return alone or bool(effective_clusters(sizes) < LEAST_EFFECTIVE)


def share_interval(events: Array, sizes: Array) -> Interval:
    """Return the 95% interval of the share of tokens with a rare property.

    `events` and `sizes` [clusters] count the tokens with the property and all tokens. The interval
    is that of a Poisson count by Byar's approximation, k (1 - 1 / (9 k) -+ z / (3 sqrt(k)))^3, with
    k + 1 for the upper end (Breslow & Day 1987, Statistical Methods in Cancer Research II, p. 69).
    k is the effective number of events, at which the error would be the cluster-robust one:
    k = (share / error)^2 (z / t)^2, where t has Satterthwaite's degrees of freedom and is increased
    for skewed clusters; k never exceeds the number counted (the effective sample size of Korn &
    Graubard 1998, Survey Methodology 24(2)). Ten events in one cluster count as one.

    The upper end is higher if rates differ between clusters. Events come in bursts; the size of a
    burst is taken as the smallest number of events in any cluster that has some. The part of
    (error / share)^2 that the number of bursts does not explain is attributed to the rates: they
    multiply the share by a gamma variable with that squared coefficient of variation, times
    (t / z)^2. Upper ends of count and factor are combined as the root of the sum of squared logs
    (Zou & Donner 2008, Statistics in Medicine 27(10)).

    Without an event the upper end is that of a count of 0, 3.7 / tokens, times (t / z)^2, as for a
    single event. Events are then taken to come one by one, since none shows how large bursts are.
    """
    if too_few(sizes):
        return NONE
    share = float(events.sum() / sizes.sum())
    if share == 0.0:
        # The variance of a Poisson count is proportional to the tokens of its cluster.
        t = float(student_quantile(_freedom(effective_clusters(np.sqrt(sizes))), TAIL))
        return 0.0, min(_byar(1.0, NORMAL) * (t / NORMAL) ** 2 / float(sizes.sum()), 1.0)
    influence, number = influences(events[:, None], sizes[:, None])
    count = number.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = float(np.sqrt(np.square(influence).sum() / (count[0] * (count[0] - 1.0))))
        skewness, _, groups = _shape_of_sum(influence, sizes[:, None].astype(np.float64), count)
    relative = (share / error) ** 2 if error > 0.0 else np.inf
    # Skewness of the sum over groups beyond that of a Poisson count with the same relative error.
    beyond = np.sqrt(np.maximum(np.square(skewness) - 1.0 / relative, 0.0))
    more = _skewness_correction(beyond, np.zeros(1))
    quantile = student_quantile(_freedom(groups), TAIL) + more
    counted = float(events.sum()) / max(1.0 - share, 1e-12)
    wider = (float(quantile[0]) / NORMAL) ** 2
    effective = min(relative / wider, counted)
    low = _byar(effective, -NORMAL) / effective
    up = np.log(_byar(effective + 1.0, NORMAL) / effective)
    bursts = counted / float(events[events > 0.0].min())
    up = max(up, _up_of_bursts(bursts, (1.0 / relative - 1.0 / bursts) * wider))
    return share * low, float(np.exp(min(np.log(share) + up, 0.0)))


def _up_of_bursts(bursts: float, of_rates: float) -> float:
    """Return log(upper end / share) of a number of bursts whose rates differ between clusters.

    The rates multiply the share by a gamma variable; `of_rates` is its squared coefficient of
    variation. If it is not positive, the number of bursts explains the whole error: the result is
    0.
    """
    if of_rates <= 0.0:
        return 0.0
    with np.errstate(divide="ignore"):
        factor = -np.log(of_rates * _byar(1.0 / of_rates, -NORMAL))
    return float(np.hypot(np.log(_byar(bursts + 1.0, NORMAL) / bursts), factor))


def _byar(count: float, deviations: float) -> float:
    """Return the quantile of a gamma distribution of shape `count` at a normal deviate."""
    root = 1.0 - 1.0 / (9.0 * count) + deviations / (3.0 * float(np.sqrt(count)))
    return count * max(root, 0.0) ** 3


def _freedom(effective: Array) -> Array:
    return np.maximum(effective - 1.0, 1.0)


def _shape_of_sum(influence: Array, sizes: Array, count: Array) -> tuple[Array, Array, Array]:
    """Return a number's skewness, excess kurtosis and effective number of clusters, all [bins].

    The contribution of a cluster of size m is m e, where e has variance a + b / m: a is the
    variance between clusters, b that between tokens of one cluster. e divided by its standard
    deviation is assumed to have the same shape in all clusters, so all count equally for it.
    """
    inside = sizes > 0.0
    share = sizes * count / sizes.sum(axis=0)  # of the mean size
    e = np.divide(influence, share, out=np.zeros_like(influence), where=inside)
    variance = _variance_by_size(np.square(e), share, inside, count)
    u = np.divide(e, np.sqrt(variance), out=np.zeros_like(e), where=variance > 0.0)
    u = np.where(inside, u - u.sum(axis=0) / count, 0.0)
    added = np.square(share) * variance
    total, squares = added.sum(axis=0), np.square(added).sum(axis=0)
    effective = np.where(squares > 0.0, total**2 / squares, count)
    of_sum = np.where(total > 0.0, (added**1.5).sum(axis=0) / total**1.5, 0.0)
    (direct, flat), (shape, flat_shape) = _shape(influence, count), _shape(u, count)
    skewness = 0.5 * (direct / np.sqrt(count) + shape * of_sum)
    return skewness, 0.5 * (flat / count + flat_shape / effective), effective


def _shape(values: Array, count: Array) -> tuple[Array, Array]:
    """Return skewness and excess kurtosis about 0 of `count` values in each column, [bins]."""
    squares = np.square(values)
    second, third, fourth = (
        power.sum(axis=0) / count for power in (squares, squares * values, squares * squares)
    )
    # Unbiased for normal values; the skewness of two values is 0 anyway.
    of_sample = np.sqrt(count * (count - 1.0)) / np.maximum(count - 2.0, 1.0)
    skewness = np.where(second > 0.0, of_sample * third / second**1.5, 0.0)
    return skewness, np.where(second > 0.0, fourth / second**2 - 3.0, 0.0)


def _variance_by_size(
    squares: Array, share: Array, inside: NDArray[np.bool_], count: Array
) -> Array:
    """Return the best fit of a + b / share to `squares`, with a and b not negative."""
    x = np.divide(1.0, share, out=np.zeros_like(share), where=inside)
    x_mean, y_mean = x.sum(axis=0) / count, squares.sum(axis=0) / count
    from_mean = np.where(inside, x - x_mean, 0.0)
    spread = np.square(from_mean).sum(axis=0)
    b = np.where(spread > 1e-9 * count, (from_mean * squares).sum(axis=0) / spread, 0.0)
    b = np.clip(b, 0.0, y_mean / x_mean)
    return np.where(inside, y_mean - b * x_mean + b * x, 0.0)


def _skewness_correction(skewness: Array, excess: Array) -> Array:
    """Return what must be added to the normal quantile of a 95% interval of a skewed mean.

    For a mean of skewness g and excess kurtosis k, mean / standard error is within z + c as often
    as a normal variable is within z, with
    c = z (g^2 (z^4 + 2 z^2 - 3) / 18 - k (z^2 - 3) / 12 + (z^2 + 3) / (4 n)). Source: Hall 1992,
    The Bootstrap and Edgeworth Expansion, 2.6. The last term, which applies to normal values too,
    is left out, because Student's t already accounts for it exactly.
    """
    z2 = NORMAL**2
    of_skewness = np.square(skewness) * (z2**2 + 2.0 * z2 - 3.0) / 18.0
    return NORMAL * (of_skewness - excess * (z2 - 3.0) / 12.0)


def _inverse_transform(transformed: Array, skewness: Array) -> Array:
    """Invert Hall's transformation: return T; `skewness` is that of the mean."""
    some = np.where(np.abs(skewness) < 1e-9, 1.0, skewness)
    root = np.cbrt(1.0 + some * (transformed - some / 6.0))
    return np.where(np.abs(skewness) < 1e-9, transformed, 3.0 * (root - 1.0) / some)


def jackknife_interval(
    value: float, left_out: Array, bound: float | None = None, sizes: Array | None = None
) -> Interval:
    """Return the 95% interval of a metric from its leave-one-cluster-out values.

    `sizes` [clusters] are the tokens or sequences of each cluster, equal by default. If the metric
    cannot cross `bound`, its interval is computed on the log of the distance to the bound, which is
    less skewed, and transformed back, so that it cannot cross the bound either. There is no
    interval if a value is not finite or if clusters are `too_few`.
    """
    return jackknife_intervals([JackknifeReplicates(value, left_out, bound, sizes)])[0]


class JackknifeReplicates(Struct, frozen=True):
    """A metric's value, and its values with each cluster left out in turn."""

    value: float
    left_out: Array  # [clusters]
    bound: float | None = None  # a bound that the metric cannot cross
    sizes: Array | None = None  # [clusters] tokens or sequences; None if they are equal

    @property
    def side(self) -> float:
        """Return 1 if the metric is above its bound, -1 if it is below."""
        assert self.bound is not None
        return 1.0 if self.value >= self.bound else -1.0

    @property
    def log_distances(self) -> tuple[float, Array] | None:
        """Return log |x - bound| of the value and the left-out values; None if one is infinite.

        A distance can be 0, for instance if a single cluster causes all of it.
        """
        if self.bound is None or self.value == self.bound:
            return None
        distances = self.side * (self.left_out - self.bound)
        if not (distances > 0.0).all():
            return None
        return float(np.log(self.side * (self.value - self.bound))), np.log(distances)

    def interval(self, low: float, high: float, *, logs: bool) -> Interval:
        """Transform interval ends (of the value, or of its log distance) back to the metric."""
        if self.bound is None:
            return low, high
        if not logs:
            return (max(low, self.bound), high) if self.side > 0.0 else (low, min(high, self.bound))
        with np.errstate(over="ignore"):
            ends = self.bound + self.side * np.exp([low, high])
        if not np.isfinite(ends).all():
            return NONE
        return float(ends.min()), float(ends.max())


def jackknife_intervals(metrics: Sequence[JackknifeReplicates]) -> list[Interval]:
    """Return `jackknife_interval` of several metrics with the same clusters, in one go."""
    intervals: list[Interval] = [NONE] * len(metrics)
    varies: list[tuple[int, JackknifeReplicates, float, Array, bool]] = []
    for number, metric in enumerate(metrics):
        if not np.isfinite(metric.left_out).all():
            continue
        if metric.sizes is not None and too_few(metric.sizes):
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
        sizes = [
            np.ones(clusters) if metric.sizes is None else metric.sizes for _, metric, *_ in varies
        ]
        error, down, up = errors_and_reaches(influence.T, clusters, np.stack(sizes).T)
        for place, (number, metric, centre, _, logs) in enumerate(varies):
            low, high = centre - down[place] * error[place], centre + up[place] * error[place]
            intervals[number] = metric.interval(float(low), float(high), logs=logs)
    return intervals


def influences(numerators: Array, denominators: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the influences of sum(numerators) / sum(denominators), and the number of clusters.

    Arguments are [clusters, bins], the numbers of clusters [bins]. Influences are defined in
    `errors_and_reaches`: without cluster c, the quotient R decreases by
    (a_c - R n_c) / (N - n_c), where a_c - R n_c is the residual of the cluster.
    """
    total = denominators.sum(axis=0)
    clusters = (denominators > 0).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = numerators.sum(axis=0) / total
        lost = (numerators - value * denominators) / (total - denominators)
        return (clusters - 1.0) * lost, clusters


def ratio_errors(numerators: Array, denominators: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the cluster-robust standard error of sum(numerators) / sum(denominators), by bin.

    Arguments are [clusters, bins], results [bins]: the jackknife error, and the number of clusters.
    """
    influence, clusters = influences(numerators, denominators)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(np.square(influence).sum(axis=0) / (clusters * (clusters - 1.0))), clusters


def ratio_interval(numerators: Array, denominators: Array) -> tuple[Array, Array]:
    """Return both ends of the 95% interval of a quotient of sums, by bin.

    NaN for bins with too few effective clusters (see `too_few`).
    """
    influence, clusters = influences(numerators, denominators)
    enough = effective_clusters(denominators) >= LEAST_EFFECTIVE
    with np.errstate(divide="ignore", invalid="ignore"):
        value = numerators.sum(axis=0) / denominators.sum(axis=0)
    low, high = np.full_like(value, np.nan), np.full_like(value, np.nan)
    error, down, up = errors_and_reaches(
        influence[:, enough], clusters[enough], denominators[:, enough]
    )
    low[enough], high[enough] = value[enough] - down * error, value[enough] + up * error
    return low, high
