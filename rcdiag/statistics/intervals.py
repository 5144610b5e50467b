"""95% intervals are made from what each cluster of tokens adds to a number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from rcdiag.statistics.ratios import Array

COVERAGE = 0.95
TAIL = (1.0 - COVERAGE) / 2.0  # outside, on either side
NORMAL = 1.959963984540054  # the standard normal quantile at 0.5 + COVERAGE / 2
# With fewer clusters an interval is a rough guess, however it is made.
FEW_CLUSTERS = 20
# Below, the data are nearer to one cluster than to two, and one cluster has no interval.
LEAST_EFFECTIVE = 1.5

Interval = tuple[float | None, float | None]
NONE: Interval = (None, None)
Count = NDArray[np.int64] | int


def student_quantile(freedom: ArrayLike, tail: float) -> Array:
    """Return the quantile of Student's t that is exceeded with probability `tail`.

    `freedom` holds degrees of freedom, whole or not, in any shape; the result has that shape, and
    is NaN where they are below 1.

    >>> round(float(student_quantile(4, 0.025)), 3)
    2.776
    """
    from scipy.special import stdtrit  # here: it takes as long as the rest of `import rcdiag`

    degrees = np.asarray(freedom, dtype=np.float64)
    return np.where(degrees >= 1.0, -stdtrit(degrees, tail), np.nan)


def t_quantile(clusters: int) -> float:
    """Return how many standard errors a two-sided 95% interval reaches with `clusters` clusters."""
    return float(student_quantile(clusters - 1, TAIL))


def standard_error(left_out: Array) -> np.float64:
    """Return the jackknife error of a metric, from its values without each cluster in turn.

    sqrt((n - 1) / n sum (value_i - mean)^2). Source: Efron & Tibshirani 1993, ch. 11.
    """
    count = len(left_out)
    error: np.float64 = np.sqrt((count - 1) / count * np.square(left_out - left_out.mean()).sum())
    return error


def errors_and_reaches(
    influence: Array, clusters: Count, sizes: Array | None = None
) -> tuple[Array, Array, Array]:
    """Return the standard error of numbers, and how many of them an interval reaches down and up.

    `influence` [clusters, bins] is (n - 1) times what a number loses without each cluster in turn;
    it is 0 where a bin has nothing of a cluster, so that only `clusters` of them count, 2 or more.
    `sizes` has its shape: the tokens (or sequences) of each cluster, 0 where there are none; equal
    if not given. All three results are [bins].

    The error is the jackknife's: in a mean, a cluster that holds a share h of the data counts with
    its residual over 1 - h (CR3; Bell & McCaffrey 2002, Survey Methodology 28(2)). Reaches are
    those of Hall's cubic transformation, which takes the skewness out of a studentised mean: with
    T the mean less the truth in standard errors and g its skewness,
    T + g T^2 / 3 + g^2 T^3 / 27 + g / 6 is all but symmetric (Hall 1992, On the removal of skewness
    by transformation, JRSS B 54(1)). Its quantile is that of Student's t with one degree of freedom
    less than there are effective clusters, (sum v)^2 / sum v^2 of the variances v of what each
    cluster adds (Satterthwaite); and more, as far as skewness and kurtosis make a two-sided
    interval too short (`_more_for_skewness`).

    Skewness and kurtosis lie half way between two estimates. Those of the influences themselves
    are too small where clusters are unequal: a few large clusters hold the third moment, and seldom
    show their tail. Those of a sum whose addends have unequal variances and one shape are somewhat
    too large, as the shape is also that of small, noisy clusters (`benchmarks/coverage.py`).
    """
    count = np.asarray(clusters, dtype=np.float64)
    scale = np.abs(influence).max(axis=0)
    scaled = influence / np.where(scale > 0.0, scale, 1.0)  # no power of it leaves its range
    with np.errstate(divide="ignore", invalid="ignore"):
        error = scale * np.sqrt(np.square(scaled).sum(axis=0) / (count * (count - 1.0)))
        sizes = (np.ones_like(influence) if sizes is None else sizes).astype(np.float64)
        skewness, excess, effective = _shape_of_sum(scaled, sizes, count)
    quantile = student_quantile(_freedom(effective), TAIL) + _more_for_skewness(skewness, excess)
    return error, _untransformed(quantile, skewness), -_untransformed(-quantile, skewness)


def effective_clusters(sizes: Array) -> Array:
    """Return how many clusters there are in effect, by their `sizes` [clusters, ...]: [...].

    It is Satterthwaite's (sum v)^2 / sum v^2 where clusters differ, so that what each adds has a
    variance v in proportion to its squared size. It hangs on sizes alone: by what clusters add, a
    few large ones look harmless just where they happen to lie near the mean, and there the error is
    too small.
    """
    squares = np.square(sizes.astype(np.float64) / max(float(sizes.max(initial=0.0)), 1.0))
    total = squares.sum(axis=0)
    effective: Array = np.divide(
        total**2, np.square(squares).sum(axis=0), out=np.zeros_like(total), where=total > 0.0
    )
    return effective


def too_few(sizes: Array) -> bool:
    """Tell whether clusters of these sizes [clusters] are too few, or too unequal, for an interval.

    Of 15 clusters two may hold three quarters of the data; with one such there is no interval.
    """
    return bool(effective_clusters(sizes) < LEAST_EFFECTIVE)


def share_interval(events: Array, sizes: Array) -> Interval:
    """Return the 95% interval of the share of tokens with a rare property, by cluster.

    `events` and `sizes` [clusters] count the tokens with it and all tokens. The interval is that of
    a Poisson count by Byar's approximation, k (1 - 1 / (9 k) -+ z / (3 sqrt(k)))^3 with k + 1 for
    the upper end (Breslow & Day 1987, Statistical Methods in Cancer Research II, p. 69). k is the
    number of effective events, those that would have the cluster-robust error:
    k = (share / error)^2 (z / t)^2, with t of Satterthwaite's degrees of freedom and more for
    skewed clusters, and never more than were counted (the effective sample size of Korn & Graubard
    1998, Survey Methodology 24(2)). Ten events in one cluster are one.

    The upper end is further where the rates of clusters differ. Events come in bursts, as large as
    the fewest that a cluster with any has. What the count of bursts does not explain of
    (error / share)^2 is of the rates: they move the share by a factor, as a gamma number with that
    squared coefficient of variation, times (t / z)^2. The upper ends of count and factor are joined
    as a hypotenuse of logs (Zou & Donner 2008, Statistics in Medicine 27(10)).
    """
    if too_few(sizes):
        return NONE
    share = float(events.sum() / sizes.sum())
    influence, number = influences(events[:, None], sizes[:, None])
    count = number.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = float(np.sqrt(np.square(influence).sum() / (count[0] * (count[0] - 1.0))))
        skewness, _, groups = _shape_of_sum(influence, sizes[:, None].astype(np.float64), count)
    relative = (share / error) ** 2 if error > 0.0 else np.inf
    # What the skewness of groups adds, beyond that of a Poisson count with the same error.
    beyond = np.sqrt(np.maximum(np.square(skewness) - 1.0 / relative, 0.0))
    more = _more_for_skewness(beyond, np.zeros(1))
    quantile = student_quantile(_freedom(groups), TAIL) + more
    counted = float(events.sum()) / max(1.0 - share, 1e-12)
    wider = (float(quantile[0]) / NORMAL) ** 2
    effective = min(relative / wider, counted)
    up = np.log(_byar(effective + 1.0, NORMAL) / effective)
    bursts = counted / float(events[events > 0.0].min())
    of_rates = (1.0 / relative - 1.0 / bursts) * wider
    if of_rates > 0.0:
        with np.errstate(divide="ignore"):
            factor = -np.log(of_rates * _byar(1.0 / of_rates, -NORMAL))
        up = max(up, np.hypot(np.log(_byar(bursts + 1.0, NORMAL) / bursts), factor))
    low = _byar(effective, -NORMAL) / effective
    return share * low, float(np.exp(min(np.log(share) + up, 0.0)))


def _byar(count: float, deviations: float) -> float:
    """Return a quantile of the gamma distribution of shape `count`, in normal deviations."""
    root = 1.0 - 1.0 / (9.0 * count) + deviations / (3.0 * float(np.sqrt(count)))
    return count * max(root, 0.0) ** 3


def _freedom(effective: Array) -> Array:
    return np.maximum(effective - 1.0, 1.0)


def _shape_of_sum(influence: Array, sizes: Array, count: Array) -> tuple[Array, Array, Array]:
    """Return skewness and excess kurtosis of a number, and its effective clusters, all [bins].

    What a cluster of size m adds is m e, where e has the variance a + b / m: a differs between
    clusters, b between the tokens within one. e over its standard deviation has one shape, of which
    every cluster tells as much as any other.
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
    """Return skewness and excess kurtosis of `count` values about 0 in each column, [bins]."""
    squares = np.square(values)
    second, third, fourth = (
        power.sum(axis=0) / count for power in (squares, squares * values, squares * squares)
    )
    # Unbiased for normal values; that of two values is 0 anyway.
    of_sample = np.sqrt(count * (count - 1.0)) / np.maximum(count - 2.0, 1.0)
    skewness = np.where(second > 0.0, of_sample * third / second**1.5, 0.0)
    return skewness, np.where(second > 0.0, fourth / second**2 - 3.0, 0.0)


def _variance_by_size(
    squares: Array, share: Array, inside: NDArray[np.bool_], count: Array
) -> Array:
    """Return a + b / share with the a and b, neither below 0, that fit `squares` best."""
    x = np.divide(1.0, share, out=np.zeros_like(share), where=inside)
    x_mean, y_mean = x.sum(axis=0) / count, squares.sum(axis=0) / count
    from_mean = np.where(inside, x - x_mean, 0.0)
    spread = np.square(from_mean).sum(axis=0)
    b = np.where(spread > 1e-9 * count, (from_mean * squares).sum(axis=0) / spread, 0.0)
    b = np.clip(b, 0.0, y_mean / x_mean)
    return np.where(inside, y_mean - b * x_mean + b * x, 0.0)


def _more_for_skewness(skewness: Array, excess: Array) -> Array:
    """Return what a skewed distribution adds to the normal quantile of a 95% interval.

    Where a mean has skewness g and excess kurtosis k, mean / its standard error is within z + c as
    often as a normal number is within z, with
    c = z (g^2 (z^4 + 2 z^2 - 3) / 18 - k (z^2 - 3) / 12 + (z^2 + 3) / (4 n)). Source: Hall 1992,
    The Bootstrap and Edgeworth Expansion, 2.6. The last term, of normal values, is left out: it is
    what Student's t gives exactly.
    """
    z2 = NORMAL**2
    of_skewness = np.square(skewness) * (z2**2 + 2.0 * z2 - 3.0) / 18.0
    return NORMAL * (of_skewness - excess * (z2 - 3.0) / 12.0)


def _untransformed(transformed: Array, skewness: Array) -> Array:
    """Return the T whose transformation is given; `skewness` is that of the mean."""
    some = np.where(np.abs(skewness) < 1e-9, 1.0, skewness)
    root = np.cbrt(1.0 + some * (transformed - some / 6.0))
    return np.where(np.abs(skewness) < 1e-9, transformed, 3.0 * (root - 1.0) / some)


def jackknife_interval(
    value: float, left_out: Array, bound: float | None = None, sizes: Array | None = None
) -> Interval:
    """Return the 95% interval of a metric from its values without each cluster in turn.

    `sizes` [clusters] are the tokens or sequences of each cluster, equal if not given. A metric
    that is never on the other side of `bound` is measured by the log of its distance from it, which
    is less skewed, and whose interval cannot pass the bound. No ends where a value is not finite,
    nor where clusters are `too_few`.
    """
    return jackknife_intervals([JackknifeReplicates(value, left_out, bound, sizes)])[0]


class JackknifeReplicates(Struct, frozen=True):
    """A metric's value, and its values without each cluster in turn."""

    value: float
    left_out: Array  # [clusters]
    bound: float | None = None  # what the metric never passes
    sizes: Array | None = None  # [clusters] tokens or sequences; None where they are equal

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


def jackknife_intervals(metrics: Sequence[JackknifeReplicates]) -> list[Interval]:
    """Return `jackknife_interval` of several metrics with the same clusters, made together."""
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
    """Return both ends of the 95% interval of a quotient of sums by bin; NaN of too few clusters.

    See `too_few`.
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
