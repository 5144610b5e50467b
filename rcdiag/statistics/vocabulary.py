"""Which token ids carry the mismatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rcdiag.results import MetricValue, TokenProfile
from rcdiag.statistics.block import Block
from rcdiag.statistics.intervals import ratio_interval
from rcdiag.statistics.ratios import Array

WORST = 20
# A rarer token's numbers are noise.
FEWEST = 20
# Intervals come from so many groups of clusters: sums by id and by cluster would not fit.
GROUPS = 16


@dataclass
class Vocabulary:
    """Tokens, log_ratio and log_ratio^2 by group of clusters and token id."""

    sums: Array = field(default_factory=lambda: np.zeros((3, GROUPS, 0)))

    def add(self, block: Block) -> None:
        if not len(block.token_id):
            return
        size = max(int(block.token_id.max()) + 1, self.sums.shape[2])
        if size > self.sums.shape[2]:
            # In steps, so that a vocabulary met id by id is not copied each time.
            size = max(size, 1 << (size - 1).bit_length())
            self.sums = np.pad(self.sums, ((0, 0), (0, 0), (0, size - self.sums.shape[2])))
        size = self.sums.shape[2]
        groups = (block.cluster % np.uint64(GROUPS)).astype(np.int64)
        cells = np.repeat(groups * size, block.lengths) + block.token_id
        log_ratio = block.values.ratios.log_ratio
        for index, weights in enumerate((None, log_ratio, np.square(log_ratio))):
            sums = np.bincount(cells, weights, GROUPS * size)
            self.sums[index] += sums.reshape(GROUPS, size)


def union_of_vocabularies(parts: Sequence[Vocabulary]) -> Vocabulary:
    """All parts' sums together."""
    size = max(part.sums.shape[2] for part in parts)
    padded = [np.pad(p.sums, ((0, 0), (0, 0), (0, size - p.sums.shape[2]))) for p in parts]
    return Vocabulary(np.sum(padded, axis=0))


def worst_ids(vocabulary: Vocabulary) -> list[TokenProfile]:
    """The WORST ids by their share of sum log_ratio^2, among those seen FEWEST times or more."""
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
            token_id=int(token),
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
