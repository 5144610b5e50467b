"""Forecast acceptance and effective sample size at longer responses, from sums of log_ratio.

With a KL per token of k, the sum of log_ratio (target - behavior) over a sequence of T tokens is
modelled as N(drift k T, 2 k T), nats. If the behavior policy sampled the tokens, log_ratio plus the
KL at its prefix has mean 0 given the prefix: drift = -1, and the variances of tokens add up to
about 2 k T (martingale central limit theorem, Hall and Heyde 1980, chapter 3). That k varies
between sequences with a lognormal distribution is rcdiag's own assumption.

The distribution is fitted to all sequences, and tested: fitted to the shorter half of them, it must
fit the longer half, because a forecast extrapolates to longer sequences. A test on alternate bins
would only interpolate, where an offset of whole sequences (variance grows as T^2 instead of T) is
hardly visible.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.results import MetricValue
from rcdiag.results.forecast import Forecast, ForecastPoint, HeldOutBin
from rcdiag.statistics.clusters import added_by_index, cluster_sums, content_order
from rcdiag.statistics.intervals import (
    COVERAGE,
    FEW_CLUSTERS,
    ratio_errors,
    ratio_interval,
    standard_error,
    student_quantile,
)
from rcdiag.statistics.ratios import Array

# 16 to 65,536 tokens, four lengths per factor of two.
LENGTHS = np.unique(np.round(np.exp2(np.arange(16, 65) / 4.0)))
# Nats. No policy assigns a response a lower log-prob; powers of larger sums overflow float64.
LARGEST = 1e30
FEWEST = 2  # sequences needed for a variance
# Nodes for expectations over a normal variable. Evenly spaced nodes are exact up to rounding for
# smooth functions; at the step functions to which the geometric window tends at great lengths they
# are off by half a step (0.002), where the few nodes of Gauss-Hermite would be off by 0.05.
NODES = np.linspace(-8.0, 8.0, 1601)
SHARES = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
WIDEST = 2.5  # largest standard deviation of log k in the search
TYPICAL = 16  # number of quantiles that represent all lengths
BINS = 4  # bins of the longer half, by quantiles of the length
REFITS = 20  # jackknife refits, for the standard error of the fit
QUANTITIES = 3  # share in the geometric window, share in the sequence window, variance of sums


def forecast(
    lengths: NDArray[np.int64],
    log_ratio_sums: Array,
    cluster: NDArray[np.uint64],
    seq_bounds: tuple[float, float] = (0.5, 2.0),
    geo_bounds: tuple[float, float] = (0.999, 1.001),
) -> Forecast:
    """Fit the distribution to a table's sequences; return its predictions and whether it fits.

    `lengths` are unmasked tokens, `log_ratio_sums` target - behavior in nats; all [sequences].
    `seq_bounds` are for the ratio of a sequence, `geo_bounds` for its geometric mean over tokens.
    """
    data, left_out = _usable(lengths, log_ratio_sums, cluster)
    windows = AcceptanceBounds(np.log(seq_bounds), np.log(geo_bounds))
    fitted = None
    if len(data) >= FEWEST:
        fitted = fit_distribution(data.lengths, data.sums, estimates_differ(data))
    bins, holds = ([], None) if fitted is None else held_out(data, windows)
    nothing = float("nan")
    return Forecast(
        kl_token=nothing if fitted is None else fitted.kl,
        kl_token_by_mean=nothing if fitted is None else fitted.kl_by_mean,
        kl_token_by_variance=nothing if fitted is None else fitted.kl_by_variance,
        heterogeneity=nothing if fitted is None else fitted.spread,
        seq_bounds=list(map(float, seq_bounds)),
        geo_bounds=list(map(float, geo_bounds)),
        points=[] if fitted is None else _points(fitted, windows),
        held_out=bins,
        holds=holds,
        about=_about(fitted, holds, left_out),
    )


def _usable(
    lengths: NDArray[np.int64], sums: Array, cluster: NDArray[np.uint64]
) -> tuple[Sums, int]:
    """Return the sequences with a finite sum, sorted, and the number of the others.

    The result depends neither on the order of the rows nor on the names of their groups.
    """
    finite = (np.abs(sums) < LARGEST) & (lengths > 0)
    data = Sums(lengths.astype(np.float64), sums.astype(np.float64), cluster).take(finite)
    # Number the clusters by their contents, in a fixed order: float sums depend on it.
    keys, index = np.unique(data.cluster, return_inverse=True)
    rows = np.stack([data.lengths, np.abs(data.sums), np.square(data.sums)], axis=1)
    order = np.lexsort((data.sums, data.lengths))
    totals = added_by_index(index[order], rows[order], len(keys))
    numbers = np.empty(len(keys), np.uint64)
    numbers[content_order(totals)] = np.arange(len(keys), dtype=np.uint64)
    order = np.lexsort((data.sums, data.lengths, numbers[index]))
    data = Sums(data.lengths[order], data.sums[order], numbers[index][order])
    return data, int((~finite).sum())


def _points(fitted: TokenDistribution, windows: AcceptanceBounds) -> list[ForecastPoint]:
    geo, seq = (expected_inside(fitted, LENGTHS, *bounds) for bounds in windows.of(LENGTHS))
    columns = (LENGTHS, expected_ess(fitted, LENGTHS), seq, geo)
    return [
        ForecastPoint(
            response_length=int(length),
            ess_seq=float(ess),
            accepted_seq=float(inside),
            accepted_geo=float(geometric),
        )
        for length, ess, inside, geometric in zip(*columns, strict=True)
    ]


def _about(fitted: TokenDistribution | None, holds: bool | None, left_out: int) -> str:
    """Describe how the distribution was fitted, and its limitations."""
    words = [
        "sum log_ratio of T tokens ~ N(-k T, 2 k T), k lognormal over sequences; held-out bins: "
        "fitted on the shorter half, compared with the longer half"
    ]
    if left_out:
        words.append(f"sequences left out because their sums are not finite: {left_out}")
    if fitted is None:
        words.append(f"fewer than {FEWEST} sequences: nothing can be fitted")
    elif fitted.by_the_mean:
        words.append("mean and variance disagree significantly; k is taken from the mean")
    elif fitted.drift != -1.0:
        words.append(
            "variance and mean disagree beyond chance, as they would not had the behavior policy "
            f"sampled: the observed mean is used, {-fitted.kl_by_mean:.3g} nats per token"
        )
    if holds is None:
        words.append("too few sequences of different lengths to check the fit")
    return "; ".join(words)


class Sums(Struct, frozen=True):
    """Sums of log_ratio (target - behavior, nats) of sequences; all [sequences]."""

    lengths: Array
    sums: Array
    cluster: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, keep: NDArray[np.bool_]) -> Sums:
        return Sums(self.lengths[keep], self.sums[keep], self.cluster[keep])


class AcceptanceBounds(Struct, frozen=True):
    """Log bounds of both windows, nats: on the sum, and on the mean per token."""

    seq: Array  # [2]
    geo: Array  # [2]

    def of(self, lengths: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return the bounds on each sequence's sum, for the geometric and the sequence window."""
        ones = np.ones(len(lengths))
        return (
            (self.geo[0] * lengths, self.geo[1] * lengths),
            (self.seq[0] * ones, self.seq[1] * ones),
        )


class TokenDistribution(Struct, frozen=True):
    """The fitted distribution of sums of log_ratio."""

    kl_by_mean: float  # nats per token, -sum log_ratio / sum T
    kl_by_variance: float  # nats per token, from the variance of sums
    spread: float  # standard deviation of log k over sequences
    drift: float  # mean of log_ratio in units of k; -1 for tokens of the behavior policy
    by_the_mean: bool = False  # whether kl_by_mean is used instead of kl_by_variance

    @property
    def kl(self) -> float:
        """Return the KL per token, nats, never below 0."""
        return max(self.kl_by_mean if self.by_the_mean else self.kl_by_variance, 0.0)

    def factors(self) -> Array:
        """Return a sequence's k over the mean k, at NODES; the mean of this factor is 1."""
        return np.exp(self.spread * NODES - 0.5 * self.spread**2)


def typical_lengths(lengths: Array) -> Array:
    """Return the mid-quantiles of TYPICAL equal shares of the lengths, to represent them all."""
    return np.quantile(lengths, (np.arange(TYPICAL) + 0.5) / TYPICAL).astype(np.float64)


def expected_ess(fitted: TokenDistribution, lengths: Array) -> Array:
    """Return the expected ESS of sequences (Kish), a fraction [lengths]: mean over k of e^{-2 k T}.

    It is E[ratio]^2 / E[ratio^2] of a ratio whose log is N(-k T, 2 k T).
    """
    exponent = -2.0 * fitted.kl * np.multiply.outer(lengths, fitted.factors())
    expected: Array = np.exp(exponent) @ SHARES
    return expected


def expected_inside(fitted: TokenDistribution, lengths: Array, lower: Array, upper: Array) -> Array:
    """Return the share of sequences with lower <= sum log_ratio <= upper (nats), [lengths].

    Mean over k of Phi((upper - drift k T) / s) - Phi((lower - drift k T) / s), s^2 = 2 k T.
    For a window on the geometric mean, the bounds are T times its log bounds.
    """
    from scipy.special import ndtr

    of_sequence = fitted.kl * np.multiply.outer(lengths, fitted.factors())
    if fitted.kl == 0.0:  # zero variance
        centre = -fitted.kl_by_mean * lengths
        return ((lower <= centre) & (centre <= upper)).astype(np.float64)
    centre, scale = fitted.drift * of_sequence, np.sqrt(2.0 * of_sequence)
    inside = ndtr((upper[:, None] - centre) / scale) - ndtr((lower[:, None] - centre) / scale)
    kept: Array = inside @ SHARES
    return kept


def expected_variance(fitted: TokenDistribution, lengths: Array) -> Array:
    """Return the variance of sum log_ratio, nats^2: 2 k T + (drift k T)^2 c^2; [lengths].

    c^2 = e^{spread^2} - 1 is the squared coefficient of variation of k (rule of total variance).
    """
    total = fitted.kl * lengths
    variance: Array = 2.0 * total + np.square(fitted.drift * total) * np.expm1(fitted.spread**2)
    return variance


def fit_distribution(lengths: Array, sums: Array, differ: int = 0) -> TokenDistribution:
    """Fit mean, variance and mean absolute deviation of sums, [sequences], at least 2.

    `differ` is the sign of (KL by variance - KL by mean) if they differ significantly, else 0. With
    0, KL by variance is used, because its relative error sqrt(2 / n) is smaller than that of the
    mean, sqrt(2 / KL of all n sequences). Otherwise the larger one is used; if that is KL by
    variance, the drift is the observed one.
    """
    mean = float(sums.sum() / lengths.sum())
    deviations = sums - mean * lengths
    squares = float(np.square(deviations).sum() * len(sums) / (len(sums) - 1.0))
    if squares == 0.0:
        return TokenDistribution(-mean, 0.0, 0.0, -1.0)
    seen = _flatness(deviations / np.sqrt(lengths))
    variance = squares / lengths.sum()  # per token
    spread = _spread(seen, mean, variance, lengths)
    kl = _kl_by_variance(mean, variance, spread, lengths)
    drift = mean / kl if differ > 0 and kl > 0.0 else -1.0
    return TokenDistribution(-mean, kl, spread, drift, by_the_mean=differ < 0)


def _flatness(values: Array) -> float:
    """Return (E|x|)^2 / E[x^2]: 2 / pi for a Gaussian, less with heavier tails.

    Source: Geary 1935, Biometrika 27. Used instead of the kurtosis, because fourth powers are too
    noisy for lognormal scales with some thousand sequences.
    """
    return float(np.square(np.abs(values).mean()) / np.square(values).mean())


def _kl_by_variance(mean: float, variance: float, spread: float, lengths: Array) -> float:
    """Return half the variance per token, nats, without the part due to unequal sequence means.

    sum E[dev^2] / sum T = 2 k + mean^2 c^2 sum T^2 / sum T.
    """
    of_means = mean**2 * np.expm1(spread**2) * np.square(lengths).sum() / lengths.sum()
    return float(max(variance - of_means, 0.0) / 2.0)


def _spread(seen: float, mean: float, variance: float, lengths: Array) -> float:
    """Return the standard deviation of log k that gives the data's flatness; 0 if none does."""
    from scipy.optimize import brentq

    typical = typical_lengths(lengths)

    def excess(spread: float) -> float:
        kl = _kl_by_variance(mean, variance, spread, lengths)
        return _expected_flatness(kl, mean, spread, typical) - seen

    if excess(0.0) <= 0.0:
        return 0.0
    return WIDEST if excess(WIDEST) >= 0.0 else float(brentq(excess, 0.0, WIDEST, xtol=1e-4))


def _expected_flatness(kl: float, mean: float, spread: float, lengths: Array) -> float:
    """Return the expected `_flatness` of deviations / sqrt(T), averaged over k and T.

    E|N(m, s^2)| = s sqrt(2 / pi) e^{-m^2 / 2 s^2} + m (1 - 2 Phi(-m / s)).
    """
    from scipy.special import ndtr

    factors = TokenDistribution(0.0, 0.0, spread, -1.0).factors()
    m = mean * np.multiply.outer(np.sqrt(lengths), factors - 1.0)
    s = np.sqrt(2.0 * kl * factors)
    with np.errstate(divide="ignore", invalid="ignore"):
        away = np.where(s > 0.0, m / s, np.copysign(np.inf, m))
    folded = s * np.sqrt(2.0 / np.pi) * np.exp(-0.5 * away**2) + m * (1.0 - 2.0 * ndtr(-away))
    second = 2.0 * kl + np.square(mean) * np.expm1(spread**2) * lengths.mean()
    return float(np.square((folded @ SHARES).mean()) / second)


def estimates_differ(data: Sums) -> int:
    """Return the sign of KL by variance - KL by mean if its 95% interval excludes 0, else 0.

    The difference is sum((dev^2 - m^2 c^2 T^2) / 2 + sum log_ratio) / sum T, nats per token; it has
    expectation 0 if `TokenDistribution` holds. m is the mean log_ratio of tokens, and
    c^2 = e^{spread^2} - 1 removes what unequal k add to the variance.
    """
    mean = data.sums.sum() / data.lengths.sum()
    spread = fit_distribution(data.lengths, data.sums).spread
    of_means = mean**2 * np.expm1(spread**2) * np.square(data.lengths)
    squares = np.square(data.sums - mean * data.lengths) - of_means
    columns = np.stack([0.5 * squares + data.sums, data.lengths], axis=1)
    by_cluster = cluster_sums(data.cluster, columns).sums
    low, high = ratio_interval(by_cluster[:, :1], by_cluster[:, 1:])
    return int(low[0] > 0.0) - int(high[0] < 0.0)


def held_out(data: Sums, windows: AcceptanceBounds) -> tuple[list[HeldOutBin], bool | None]:
    """Return the bins of the longer half, and whether the distribution fits all of them.

    A bin is tested if it has 20 clusters or more. None: no bin can be tested.
    """
    short, bins = _split(data)
    if len(np.unique(short.cluster)) < FEW_CLUSTERS:
        return [], None
    differ = estimates_differ(short)
    fitted = fit_distribution(short.lengths, short.sums, differ)
    # Fits without each twentieth of the clusters.
    group = np.unique(short.cluster, return_inverse=True)[1] % REFITS
    parts = [short.take(group != left_out) for left_out in range(REFITS)]
    refits = [fit_distribution(part.lengths, part.sums, differ) for part in parts]
    judged = [bin_ for bin_ in bins if len(np.unique(bin_.cluster)) >= FEW_CLUSTERS]
    holds = [_as_expected(bin_, fitted, refits, windows, len(judged)) for bin_ in judged]
    return [_bin(bin_, fitted, windows) for bin_ in bins], all(holds) if holds else None


def _split(data: Sums) -> tuple[Sums, list[Sums]]:
    """Split off the shorter half and bin the rest; a frequent maximum length is its own bin."""
    cut = np.median(data.lengths)
    cut = cut if (data.lengths > cut).any() else np.nextafter(cut, 0.0)
    longer = data.take(data.lengths > cut)
    edges = np.unique(np.quantile(longer.lengths, np.arange(1, BINS) / BINS, method="lower"))
    index = np.searchsorted(edges, longer.lengths)
    bins = [longer.take(index == number) for number in np.unique(index)]
    return data.take(data.lengths <= cut), bins


def _expected(fitted: TokenDistribution, lengths: Array, windows: AcceptanceBounds) -> Array:
    """Return the expected QUANTITIES, averaged over the lengths of a bin."""
    typical = typical_lengths(lengths)
    shares = [expected_inside(fitted, typical, *bounds).mean() for bounds in windows.of(typical)]
    return np.array([*shares, expected_variance(fitted, typical).mean()])


def _seen(data: Sums, windows: AcceptanceBounds) -> tuple[Array, Array]:
    """Return sums of the QUANTITIES and numbers of sequences; both [clusters, QUANTITIES]."""
    deviations = data.sums - data.sums.sum() / data.lengths.sum() * data.lengths
    inside = [(low <= data.sums) & (data.sums <= up) for low, up in windows.of(data.lengths)]
    squares = np.square(deviations) * len(data) / max(len(data) - 1.0, 1.0)
    columns = np.stack([*inside, squares, np.ones(len(data))], axis=1).astype(np.float64)
    by_cluster = cluster_sums(data.cluster, columns).sums
    return by_cluster[:, :QUANTITIES], np.repeat(by_cluster[:, QUANTITIES:], QUANTITIES, axis=1)


def _as_expected(
    data: Sums,
    fitted: TokenDistribution,
    refits: list[TokenDistribution],
    windows: AcceptanceBounds,
    bins: int,
) -> bool:
    """Tell whether every quantity agrees with its expectation, given the errors of bin and fit.

    Uses a Bonferroni correction for all quantities of all bins. The standard error of an observed
    share is at least the one under the fitted distribution, because at 0 or 1 it would be estimated
    as 0.
    """
    expected = _expected(fitted, data.lengths, windows)
    numerators, counts = _seen(data, windows)
    error, clusters = ratio_errors(numerators, counts)
    refitted = np.stack([_expected(refit, data.lengths, windows) for refit in refits])
    of_fit = np.array([standard_error(column) for column in refitted.T])
    # Lower bounds: binomial for a share, v sqrt(2 / n) for a variance v.
    shares, variance, count = expected[:-1], expected[-1], len(data)
    binomial = np.sqrt(np.maximum(count * shares * (1.0 - shares), 1.0)) / count
    least = np.append(binomial, variance * np.sqrt(2.0 / count))
    error = np.hypot(np.maximum(error, least), of_fit)
    tail = (1.0 - COVERAGE) / (2.0 * QUANTITIES * bins)
    off = np.abs(numerators.sum(axis=0) / count - expected)
    return bool((off <= student_quantile(clusters - 1, tail) * error).all())


def _bin(data: Sums, fitted: TokenDistribution, windows: AcceptanceBounds) -> HeldOutBin:
    geo, seq, variance = _expected(fitted, data.lengths, windows)
    numerators, counts = _seen(data, windows)
    low, high = ratio_interval(numerators, counts)
    value = numerators.sum(axis=0) / len(data)
    low, high = np.maximum(low, 0.0), np.append(np.minimum(high[:2], 1.0), high[2])
    seen = [_metric(*ends) for ends in zip(value[:2], low[:2], high[:2], strict=True)]
    return HeldOutBin(
        label=f"{data.lengths.min():.0f} to {data.lengths.max():.0f}",
        num_sequences=len(data),
        mean_length=float(data.lengths.mean()),
        expected_geo=float(geo),
        seen_geo=seen[0],
        expected_seq=float(seq),
        seen_seq=seen[1],
        expected_std=float(np.sqrt(variance)),
        seen_std=_metric(*np.sqrt([value[2], low[2], high[2]])),
    )


def _metric(value: float, low: float, high: float) -> MetricValue:
    ends = [None if np.isnan(end) else float(end) for end in (low, high)]
    return MetricValue(value=float(value), low=ends[0], high=ends[1])
