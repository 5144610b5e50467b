"""Tokens, log_ratio and log_ratio^2 are counted by token id: some ids carry the mismatch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.results import MetricValue, TokenProfile
from rcdiag.statistics.merging import added_by_key
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import Array

WORST = 20
# A rarer token's numbers are noise.
FEWEST = 20
# Sums of more ids are kept for those alone that occur.
DENSE = 1 << 18
# Tokens that are added up at a time, which bounds what it takes besides the sums.
AT_ONCE = 1 << 20


class Vocabulary(Struct, frozen=True):
    """Tokens, log_ratio and log_ratio^2 by token id."""

    ids: NDArray[np.int64]  # ascending, [ids]
    sums: Array  # [3, ids]

    @classmethod
    def of(cls, pair: PolicyPair) -> Vocabulary:
        token_id = pair.tokens.token_id
        ids = _ids_to_keep(token_id)
        numbers = None
        if len(ids) and len(ids) <= ids[-1] < DENSE:  # some are left out
            numbers = np.zeros(int(ids[-1]) + 1, np.int32)
            numbers[ids] = np.arange(len(ids), dtype=np.int32)
        sums = np.zeros((3, len(ids)))
        for first in range(0, len(token_id), AT_ONCE):
            own: NDArray[np.integer] = token_id[first : first + AT_ONCE]
            if numbers is not None:
                own = numbers[own]
            elif len(ids) <= ids[-1]:
                own = np.searchsorted(ids, own)
            log_ratio = pair.log_ratio_at(slice(first, first + len(own)))
            cells = own.astype(np.intp)
            with np.errstate(over="ignore", invalid="ignore"):
                for row, values in zip(sums, (None, log_ratio, np.square(log_ratio)), strict=True):
                    row += np.bincount(cells, values, len(ids))
        return cls(ids, sums)

    @classmethod
    def merged(cls, parts: Sequence[Vocabulary]) -> Vocabulary:
        ids, sums = added_by_key([part.ids for part in parts], [part.sums.T for part in parts])
        return cls(ids, np.ascontiguousarray(sums.T))


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


def worst_ids(vocabulary: Vocabulary) -> list[TokenProfile]:
    """Return the WORST ids by share of sum log_ratio^2, among those seen FEWEST times or more.

    Their means have no interval: sums by prompt group and id would not fit into memory.
    """
    seen, log_ratio, squares = vocabulary.sums
    with np.errstate(over="ignore"):
        total = float(squares.sum())
    if not np.isfinite(total) or total == 0.0:
        return []
    order = np.argsort(-np.where(seen >= FEWEST, squares, -1.0), kind="stable")[:WORST]
    return [
        TokenProfile(
            token_id=int(vocabulary.ids[token]),
            tokens=int(seen[token]),
            log_ratio_mean=MetricValue(value=float(log_ratio[token] / seen[token])),
            log_ratio_rms=float(np.sqrt(squares[token] / seen[token])),
            share_of_squares=float(squares[token]) / total,
            share_of_tokens=float(seen[token] / seen.sum()),
        )
        for token in order[seen[order] >= FEWEST]
    ]
