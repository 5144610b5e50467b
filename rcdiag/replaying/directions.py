"""Gradients of independent prompt groups: their common direction, bias and noise.

Everything comes from inner products of the groups' gradients. A product of a group with itself
holds its noise, so only products of different groups are used: they are unbiased. Source:
reference/theory.md 2.7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import MetricValue

Array = NDArray[np.float64]

REPLICATES = 300


@dataclass(frozen=True, slots=True)
class Products:
    """Inner products [groups, groups] of two sets of gradients G and R, sums over each group."""

    gg: Array
    gr: Array
    rr: Array

    @classmethod
    def of(cls, g: Array, r: Array) -> Products:
        """From sketches [groups, dims]."""
        return cls(g @ g.T, g @ r.T, r @ r.T)

    def __len__(self) -> int:
        return len(self.gg)


def by_group(sketches: Array, group: NDArray) -> Array:
    """Sketches [rows, dims] added up by group, [groups, dims]."""
    keys, index = np.unique(group, return_inverse=True)
    sums = np.zeros((len(keys), sketches.shape[1]))
    np.add.at(sums, index, sketches)
    return sums


def off_diagonal(products: Array, counts: Array) -> Array:
    """sum_{c != d} w_c w_d <c, d> for each of `counts` [replicates, groups]; copies left out.

    Times n / (n - 1) it estimates the squared norm (or product) of the expected sum.
    """
    whole = ((counts @ products) * counts).sum(axis=1)
    return whole - np.square(counts) @ np.diag(products)


def draws(groups: int, seed: int) -> Array:
    """First once each, then groups drawn anew: [1 + REPLICATES, groups]."""
    random = np.random.default_rng(seed)
    found = np.ones((1 + REPLICATES, groups))
    for replicate in range(1, 1 + REPLICATES):
        found[replicate] = np.bincount(random.integers(groups, size=groups), minlength=groups)
    return found


def cosine(products: Products, seed: int) -> MetricValue:
    """E<G, R> / sqrt(E|G|^2 E|R|^2) by products of different groups; None below three of them.

    None too where noise leaves no squared norm above 0: then no direction can be told.
    """
    if len(products) < 3:
        return MetricValue(value=None)
    counts = draws(len(products), seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        gr, gg, rr = (
            off_diagonal(each, counts) for each in (products.gr, products.gg, products.rr)
        )
        values = np.where((gg > 0) & (rr > 0), gr / np.sqrt(gg * rr), np.nan)
    return _with_interval(np.clip(values, -1.0, 1.0))


def relative_norm(products: Products, seed: int) -> MetricValue:
    """sqrt(E|G|^2 / E|R|^2) by products of different groups; None where noise hides either."""
    if len(products) < 3:
        return MetricValue(value=None)
    counts = draws(len(products), seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        gg, rr = off_diagonal(products.gg, counts), off_diagonal(products.rr, counts)
        values = np.where((gg > 0) & (rr > 0), np.sqrt(gg / rr), np.nan)
    return _with_interval(values)


def relative_bias(products: Products, seed: int) -> MetricValue:
    """|E[G - R]|^2 / |E[R]|^2, both by products of different groups."""
    if len(products) < 3:
        return MetricValue(value=None)
    counts = draws(len(products), seed)
    difference = products.gg - products.gr - products.gr.T + products.rr
    with np.errstate(invalid="ignore", divide="ignore"):
        apart, rr = off_diagonal(difference, counts), off_diagonal(products.rr, counts)
        values = np.where(rr > 0, np.maximum(apart, 0.0) / rr, np.nan)
    return _with_interval(values)


def relative_variance(gg: Array) -> float | None:
    """Trace of the covariance of the summed gradient over the squared norm of its expectation.

    n / (n - 1) sum_c |G_c - mean|^2 over n / (n - 1) sum_{c != d} <G_c, G_d>.
    """
    count = len(gg)
    if count < 3:
        return None
    expected = float(off_diagonal(gg, np.ones((1, count)))[0])
    noise = float(np.trace(gg) - gg.sum() / count)
    return noise / expected if expected > 0 else None


def _with_interval(values: Array) -> MetricValue:
    """The first is the value; percentiles of the others where nearly all are defined."""
    value, others = float(values[0]), values[1:]
    known = others[np.isfinite(others)]
    if not np.isfinite(value):
        return MetricValue(value=None)
    if len(known) < 0.95 * len(others):
        return MetricValue(value=value)
    low, high = np.quantile(known, [0.025, 0.975])
    return MetricValue(value=value, low=float(min(low, value)), high=float(max(high, value)))
