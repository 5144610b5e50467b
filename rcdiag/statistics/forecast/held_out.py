"""A law of single tokens is tested here: fitted on short sequences, it must fit longer ones.

Fitted on the shorter half and held against the longer half, as a forecast goes from lengths that
were seen to longer ones. Alternate bins would test the law between lengths only, where an offset of
whole sequences (variance as T^2, not T) hardly shows.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.results import MetricValue
from rcdiag.results.sweep import HeldOutBin
from rcdiag.statistics.clusters import cluster_sums
from rcdiag.statistics.distributions import student_quantile
from rcdiag.statistics.forecast.token_law import (
    TokenLaw,
    expected_inside,
    expected_variance,
    fit_law,
    typical_lengths,
)
from rcdiag.statistics.intervals import (
    COVERAGE,
    FEW_CLUSTERS,
    ratio_errors,
    ratio_interval,
    standard_error,
)
from rcdiag.statistics.ratios import Array

BINS = 4  # of the longer half, by quantiles of the length
REFITS = 20  # of the jackknife that says how sure the fit is
QUANTITIES = 3  # share in the geometric window, in the window of sequences, variance of sums


class Sums(Struct, frozen=True):
    """Sums of log_ratio (target - behavior, nats) of sequences; all [sequences]."""

    lengths: Array
    sums: Array
    cluster: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, keep: NDArray[np.bool_]) -> Sums:
        return Sums(self.lengths[keep], self.sums[keep], self.cluster[keep])


class Windows(Struct, frozen=True):
    """Log bounds of both windows, nats: of the sum, and of the mean per token."""

    seq: Array  # [2]
    geo: Array  # [2]

    def of(self, lengths: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return the bounds on each sequence's sum: of the geometric window, of the other."""
        ones = np.ones(len(lengths))
        return (
            (self.geo[0] * lengths, self.geo[1] * lengths),
            (self.seq[0] * ones, self.seq[1] * ones),
        )


def estimates_differ(data: Sums) -> int:
    """Sign of KL by variance less KL by mean where its 95% interval leaves 0 out, else 0.

    The difference is sum((dev^2 - m^2 c^2 T^2) / 2 + sum log_ratio) / sum T, nats per token, which
    is 0 under the law of tokens (`token_law`). m is the mean log_ratio of tokens, and
    c^2 = e^{spread^2} - 1 takes off what unequal k add to the variance.
    """
    mean = data.sums.sum() / data.lengths.sum()
    spread = fit_law(data.lengths, data.sums).spread
    of_means = mean**2 * np.expm1(spread**2) * np.square(data.lengths)
    squares = np.square(data.sums - mean * data.lengths) - of_means
    columns = np.stack([0.5 * squares + data.sums, data.lengths], axis=1)
    by_cluster = cluster_sums(data.cluster, columns).sums
    low, high = ratio_interval(by_cluster[:, :1], by_cluster[:, 1:])
    return int(low[0] > 0.0) - int(high[0] < 0.0)


def held_out(data: Sums, windows: Windows) -> tuple[list[HeldOutBin], bool | None]:
    """Return the bins of the longer half, and whether all fit; None where none can be judged.

    A bin is judged from 20 sequences of 20 clusters on.
    """
    short, bins = _split(data)
    if len(np.unique(short.cluster)) < FEW_CLUSTERS:
        return [], None
    differ = estimates_differ(short)
    law = fit_law(short.lengths, short.sums, differ)
    refits = _refits(short, differ)
    judged = [bin_ for bin_ in bins if len(np.unique(bin_.cluster)) >= FEW_CLUSTERS]
    holds = [_as_expected(bin_, law, refits, windows, len(judged)) for bin_ in judged]
    return [_bin(bin_, law, windows) for bin_ in bins], all(holds) if holds else None


def _split(data: Sums) -> tuple[Sums, list[Sums]]:
    """Split off the shorter half and bin the others; a common greatest length is a bin alone."""
    cut = np.median(data.lengths)
    cut = cut if (data.lengths > cut).any() else np.nextafter(cut, 0.0)
    longer = data.take(data.lengths > cut)
    edges = np.unique(np.quantile(longer.lengths, np.arange(1, BINS) / BINS, method="lower"))
    index = np.searchsorted(edges, longer.lengths)
    bins = [longer.take(index == number) for number in np.unique(index)]
    return data.take(data.lengths <= cut), bins


def _refits(data: Sums, differ: int) -> list[TokenLaw]:
    """Fit the law without each twentieth of the clusters."""
    group = np.unique(data.cluster, return_inverse=True)[1] % REFITS
    parts = [data.take(group != left_out) for left_out in range(REFITS)]
    return [fit_law(part.lengths, part.sums, differ) for part in parts]


def _expected(law: TokenLaw, lengths: Array, windows: Windows) -> Array:
    """The QUANTITIES by the law, averaged over the lengths of a bin."""
    typical = typical_lengths(lengths)
    shares = [expected_inside(law, typical, *bounds).mean() for bounds in windows.of(typical)]
    return np.array([*shares, expected_variance(law, typical).mean()])


def _seen(data: Sums, windows: Windows) -> tuple[Array, Array]:
    """Sums of the QUANTITIES by cluster, and numbers of sequences; both [clusters, QUANTITIES]."""
    deviations = data.sums - data.sums.sum() / data.lengths.sum() * data.lengths
    inside = [(low <= data.sums) & (data.sums <= up) for low, up in windows.of(data.lengths)]
    squares = np.square(deviations) * len(data) / max(len(data) - 1.0, 1.0)
    columns = np.stack([*inside, squares, np.ones(len(data))], axis=1).astype(np.float64)
    by_cluster = cluster_sums(data.cluster, columns).sums
    return by_cluster[:, :QUANTITIES], np.repeat(by_cluster[:, QUANTITIES:], QUANTITIES, axis=1)


def _as_expected(
    data: Sums, law: TokenLaw, refits: list[TokenLaw], windows: Windows, bins: int
) -> bool:
    """Tell whether no quantity is off by more than the chance of the bin and the fit.

    With Bonferroni's allowance for all quantities of all bins. The error of what was seen is never
    taken smaller than the law itself would have it: at 0 or 1 a share seems to have none.
    """
    expected = _expected(law, data.lengths, windows)
    numerators, counts = _seen(data, windows)
    error, clusters = ratio_errors(numerators, counts)
    refitted = np.stack([_expected(refit, data.lengths, windows) for refit in refits])
    of_fit = np.array([standard_error(column) for column in refitted.T])
    error = np.hypot(np.maximum(error, _least_error(expected, len(data))), of_fit)
    tail = (1.0 - COVERAGE) / (2.0 * QUANTITIES * bins)
    off = np.abs(numerators.sum(axis=0) / len(data) - expected)
    return bool((off <= student_quantile(clusters - 1, tail) * error).all())


def _least_error(expected: Array, count: int) -> Array:
    """Return the least error of a share (binomial) or of a variance v, v sqrt(2 / n)."""
    shares, variance = expected[:-1], expected[-1]
    binomial = np.sqrt(np.maximum(count * shares * (1.0 - shares), 1.0)) / count
    return np.append(binomial, variance * np.sqrt(2.0 / count))


def _bin(data: Sums, law: TokenLaw, windows: Windows) -> HeldOutBin:
    geo, seq, variance = _expected(law, data.lengths, windows)
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
