"""Sums by token id (count, log_ratio, log_ratio^2), to find ids that carry the mismatch."""

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
# Ids that occur less often are too noisy to report.
FEWEST = 20
# Above this id, sums are by number of the distinct id instead of by id.
DENSE = 1 << 18


class Vocabulary(Struct, frozen=True):
    """Number of tokens, sum of log_ratio and of log_ratio^2, by token id."""

    ids: NDArray[np.int64]  # ascending, [ids]
    sums: Array  # [3, ids]

    @classmethod
    def of(cls, pair: PolicyPair) -> Vocabulary:
        token_id, log_ratio = pair.tokens.token_id, pair.log_ratio
        cells: NDArray[np.integer] = token_id.astype(np.intp)
        ids = np.arange(int(token_id.max(initial=-1)) + 1)
        if len(ids) > DENSE:
            ids, cells = np.unique(token_id.astype(np.int64), return_inverse=True)
        with np.errstate(over="ignore", invalid="ignore"):
            columns = (None, log_ratio, np.square(log_ratio))
            rows = [np.bincount(cells, values, len(ids)) for values in columns]
            sums = np.stack(rows).astype(np.float64, copy=False)
        seen = np.flatnonzero(sums[0])
        return cls(ids[seen], sums[:, seen])

    @classmethod
    def merged(cls, parts: Sequence[Vocabulary]) -> Vocabulary:
        ids, sums = added_by_key([part.ids for part in parts], [part.sums.T for part in parts])
        return cls(ids, np.ascontiguousarray(sums.T))


def worst_ids(vocabulary: Vocabulary) -> list[TokenProfile]:
    """Return the WORST ids by share of sum log_ratio^2, among ids seen at least FEWEST times.

    Their means have no interval, because sums by prompt group and id would not fit into memory.
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
