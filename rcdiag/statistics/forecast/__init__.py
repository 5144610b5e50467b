"""Longer responses are forecast: acceptance and effective sample size, by the law of tokens."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.results.sweep import Forecast, ForecastPoint
from rcdiag.statistics.clusters import added_by_index, content_order
from rcdiag.statistics.forecast.held_out import Sums, Windows, estimates_differ, held_out
from rcdiag.statistics.forecast.token_law import TokenLaw, expected_ess, expected_inside, fit_law
from rcdiag.statistics.ratios import Array

# 16 to 65,536 tokens, four to an octave.
LENGTHS = np.unique(np.round(np.exp2(np.arange(16, 65) / 4.0)))
# Nats. No policy gives a response less; powers of larger sums leave the range of float64.
LARGEST = 1e30
FEWEST = 2  # sequences that have a variance


def forecast(
    lengths: NDArray[np.int64],
    log_ratio_sums: Array,
    cluster: NDArray[np.uint64],
    seq_bounds: tuple[float, float] = (0.5, 2.0),
    geo_bounds: tuple[float, float] = (0.999, 1.001),
) -> Forecast:
    """Fit the law to a table of sequences, say what it expects, and whether it holds.

    `lengths` are unmasked tokens, `log_ratio_sums` target - behavior in nats; all [sequences].
    Bounds are those of the ratio of a sequence, and of its geometric mean over tokens.
    """
    data, left_out = _usable(lengths, log_ratio_sums, cluster)
    windows = Windows(np.log(seq_bounds), np.log(geo_bounds))
    law = None
    if len(data) >= FEWEST:
        law = fit_law(data.lengths, data.sums, estimates_differ(data))
    bins, holds = ([], None) if law is None else held_out(data, windows)
    nothing = float("nan")
    return Forecast(
        kl_token=nothing if law is None else law.kl,
        kl_token_by_mean=nothing if law is None else law.kl_by_mean,
        kl_token_by_variance=nothing if law is None else law.kl_by_variance,
        heterogeneity=nothing if law is None else law.spread,
        seq_bounds=list(map(float, seq_bounds)),
        geo_bounds=list(map(float, geo_bounds)),
        points=[] if law is None else _points(law, windows),
        held_out=bins,
        holds=holds,
        about=_about(law, holds, left_out),
    )


def _numbered(data: Sums) -> NDArray[np.uint64]:
    """Return the clusters by number, [sequences], in an order that no name has a part in."""
    keys, cluster = np.unique(data.cluster, return_inverse=True)
    rows = np.stack([data.lengths, np.abs(data.sums), np.square(data.sums)], axis=1)
    order = np.lexsort((data.sums, data.lengths))  # sums do not hang on the order of rows either
    totals = added_by_index(cluster[order], rows[order], len(keys))
    number = np.empty(len(keys), np.uint64)
    number[content_order(totals)] = np.arange(len(keys), dtype=np.uint64)
    return number[cluster]


def _usable(
    lengths: NDArray[np.int64], sums: Array, cluster: NDArray[np.uint64]
) -> tuple[Sums, int]:
    """Return sequences with a sum in range, in an order that does not hang on that of the rows."""
    finite = (np.abs(sums) < LARGEST) & (lengths > 0)
    data = Sums(lengths.astype(np.float64), sums.astype(np.float64), cluster).take(finite)
    data = replace(data, cluster=_numbered(data))
    order = np.lexsort((data.sums, data.lengths, data.cluster))
    return Sums(*(column[order] for column in (data.lengths, data.sums, data.cluster))), int(
        (~finite).sum()
    )


def _points(law: TokenLaw, windows: Windows) -> list[ForecastPoint]:
    geo, seq = (expected_inside(law, LENGTHS, *bounds) for bounds in windows.of(LENGTHS))
    columns = (LENGTHS, expected_ess(law, LENGTHS), seq, geo)
    return [
        ForecastPoint(
            response_length=int(length),
            ess_seq=float(ess),
            accepted_seq=float(inside),
            accepted_geo=float(geometric),
        )
        for length, ess, inside, geometric in zip(*columns, strict=True)
    ]


def _about(law: TokenLaw | None, holds: bool | None, left_out: int) -> str:
    """Say how the law was fitted, and what a reader has to know about it."""
    words = [
        "sum log_ratio of T tokens ~ N(-k T, 2 k T), k lognormal over sequences; held-out bins: "
        "fitted on the shorter half, seen in the longer half"
    ]
    if left_out:
        words.append(f"sequences left out, as their sums are not finite: {left_out}")
    if law is None:
        words.append(f"fewer than {FEWEST} sequences: nothing can be fitted")
    elif law.by_the_mean:
        words.append("the mean says more than the variance, beyond chance: k is that by the mean")
    elif law.drift != -1.0:
        words.append(
            "variance and mean disagree beyond chance: the mean is taken as observed, "
            f"{-law.kl_by_mean:.3g} nats per token; tokens of the behavior policy would not do this"
        )
    if holds is None:
        words.append("too few sequences of different lengths to check it")
    return "; ".join(words)
