"""Tokens, log_ratio and log_ratio^2 are counted by token id: some ids carry the mismatch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import MetricValue, TokenProfile
from rcdiag.statistics.intervals import ratio_interval
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import Array

WORST = 20
# A rarer token's numbers are noise.
FEWEST = 20
# Sums of more ids are kept for those alone that occur.
DENSE = 1 << 18
# Intervals come from so many groups of clusters: sums by id and by cluster would not fit.
GROUPS = 16


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens, log_ratio and log_ratio^2 by group of clusters and token id."""

    ids: NDArray[np.int64]  # ascending, [ids]
    sums: Array  # [3, GROUPS, ids]

    @classmethod
    def of(cls, pair: PolicyPair) -> Vocabulary:
        token_id = pair.tokens.token_id
        ids = np.arange(int(token_id.max(initial=-1)) + 1)
        column: NDArray[np.integer] = token_id
        if len(ids) > DENSE:
            ids, column = np.unique(token_id.astype(np.int64), return_inverse=True)
        size = len(ids)
        groups = (pair.tokens.cluster % np.uint64(GROUPS)).astype(np.int64)
        cells = np.repeat(groups * size, pair.lengths) + column
        weights = (None, pair.log_ratio, np.square(pair.log_ratio))
        sums = [np.bincount(cells, values, GROUPS * size) for values in weights]
        return cls(ids, np.stack(sums).astype(np.float64).reshape(3, GROUPS, size))

    def __add__(self, other: Vocabulary) -> Vocabulary:
        wide, narrow = sorted((self, other), key=lambda one: -len(one.ids))
        ids, sums = wide.ids, wide.sums.copy()
        place: slice | NDArray[np.int64] = slice(len(narrow.ids))
        if not np.array_equal(ids[place], narrow.ids):
            ids = np.union1d(ids, narrow.ids)
            place = np.searchsorted(ids, narrow.ids)
            sums = np.zeros((*sums.shape[:2], len(ids)))
            sums[:, :, np.searchsorted(ids, wide.ids)] = wide.sums
        with np.errstate(over="ignore", invalid="ignore"):
            sums[:, :, place] += narrow.sums
        return Vocabulary(ids, sums)


def worst_ids(vocabulary: Vocabulary) -> list[TokenProfile]:
    """Return the WORST ids by share of sum log_ratio^2, among those seen FEWEST times or more."""
    tokens, log_ratio, squares = vocabulary.sums
    by_id = squares.sum(axis=0)
    total = float(by_id.sum())
    if not np.isfinite(total) or total == 0.0:
        return []
    seen = tokens.sum(axis=0)
    order = np.argsort(-np.where(seen >= FEWEST, by_id, -1.0), kind="stable")[:WORST]
    order = order[seen[order] >= FEWEST]
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = ratio_interval(log_ratio[:, order], tokens[:, order])
    return [
        TokenProfile(
            token_id=int(vocabulary.ids[token]),
            tokens=int(seen[token]),
            log_ratio_mean=_value(
                float(log_ratio[:, token].sum() / seen[token]), low[at], high[at]
            ),
            log_ratio_rms=float(np.sqrt(by_id[token] / seen[token])),
            share_of_squares=float(by_id[token]) / total,
            share_of_tokens=float(seen[token] / seen.sum()),
        )
        for at, token in enumerate(order)
    ]


def _value(value: float, low: float, high: float) -> MetricValue:
    if not (np.isfinite(low) and np.isfinite(high)):
        return MetricValue(value=value)
    return MetricValue(value=value, low=float(low), high=float(high))
