"""Tokens, log_ratio and log_ratio^2 are counted by token id: some ids carry the mismatch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rcdiag.frozen import dataclass
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
# Tokens that are added up at a time, which bounds what it takes besides the sums.
AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens, log_ratio and log_ratio^2 by group of clusters and token id."""

    ids: NDArray[np.int64]  # ascending, [ids]
    sums: list[Array]  # of tokens, log_ratio and log_ratio^2, each [GROUPS, ids]

    @classmethod
    def of(cls, pair: PolicyPair) -> Vocabulary:
        token_id = pair.tokens.token_id
        ids = _ids_to_keep(token_id)
        numbers = None
        if len(ids) and len(ids) <= ids[-1] < DENSE:  # some are left out
            numbers = np.zeros(int(ids[-1]) + 1, np.int32)
            numbers[ids] = np.arange(len(ids), dtype=np.int32)
        sums = [np.zeros((GROUPS, len(ids))) for _ in range(3)]
        group = np.repeat((pair.tokens.cluster % np.uint64(GROUPS)).astype(np.uint8), pair.lengths)
        for first in range(0, len(token_id), AT_ONCE):
            here = slice(first, first + AT_ONCE)
            own: NDArray[np.integer] = token_id[here]
            if numbers is not None:
                own = numbers[own]
            elif len(ids) <= ids[-1]:
                own = np.searchsorted(ids, own)
            _add_up(sums, group[here], own, pair, first)
        return cls(ids, sums)

    def __add__(self, other: Vocabulary) -> Vocabulary:
        both = Vocabulary(self.ids, [sums.copy() for sums in self.sums])
        both += other
        return both

    def __iadd__(self, other: Vocabulary) -> Vocabulary:
        """Add in place; the other one stays as it is, and this one is not to be read any more."""
        ids, count = self.ids, len(other.ids)
        if np.array_equal(ids[:count], other.ids):
            for own, more in zip(self.sums, other.sums, strict=True):
                _add_at(slice(count), own, more)
            return self
        if len(every := np.union1d(ids, other.ids)) > len(ids):
            places = np.searchsorted(every, ids)
            for number, sums in enumerate(self.sums):  # not all three at once
                self.sums[number] = np.zeros((GROUPS, len(every)))
                _add_at(places, self.sums[number], sums)
            ids = every
        places = np.searchsorted(ids, other.ids)
        for own, more in zip(self.sums, other.sums, strict=True):
            _add_at(places, own, more)
        return Vocabulary(ids, self.sums)


def _add_at(places: slice | NDArray[np.int64], sums: Array, more: Array) -> None:
    """Add [GROUPS, places] in place to the sums [GROUPS, ids] of ids at some places."""
    with np.errstate(over="ignore", invalid="ignore"):
        for own, row in zip(sums, more, strict=True):
            own[places] += row


def _ids_to_keep(token_id: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the ids for which sums are kept, ascending.

    That is all from 0 where most of them occur, else those alone that do: half a million tokens of
    a language have a fifth of a large vocabulary.
    """
    size = int(token_id.max(initial=-1)) + 1
    if size > DENSE:
        return np.unique(token_id.astype(np.int64))
    seen = np.zeros(size, np.bool_)
    seen[token_id] = True
    ids = np.flatnonzero(seen)
    return np.arange(size) if 2 * len(ids) > size else ids


def _add_up(
    sums: list[Array],
    group: NDArray[np.uint8],
    own: NDArray[np.integer],
    pair: PolicyPair,
    first: int,
) -> None:
    """Add tokens to the sums, each [GROUPS, ids], by their group and the place of their id.

    `group` and `own` are [tokens], from token `first` of the pair on. Those of one group are added
    up together: their sums stay in the processor's cache, for which those of all are too large.
    """
    ids, order = sums[0].shape[1], np.argsort(group, kind="stable")
    own, log_ratio = own.take(order), pair.log_ratio_at(slice(first, first + len(own))).take(order)
    edges = np.cumsum(np.bincount(group, minlength=GROUPS)).tolist()
    for number, (start, end) in enumerate(pairwise([0, *edges])):
        if start == end:
            continue
        cells, values = own[start:end].astype(np.intp), log_ratio[start:end]
        with np.errstate(over="ignore", invalid="ignore"):
            sums[0][number] += np.bincount(cells, minlength=ids)
            sums[1][number] += np.bincount(cells, values, ids)
            sums[2][number] += np.bincount(cells, np.square(values), ids)


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
