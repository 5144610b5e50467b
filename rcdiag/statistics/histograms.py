"""Figures are drawn from these data: counts in declared bins, and paths of a few sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import Array
from rcdiag.table.hashing import mixed

# |log_ratio| from float32 rounding to a ratio of e^100, eight bins a decade, either sign, and one
# bin around 0 between them; the outermost bins take all that lies beyond.
_DECADES = np.logspace(-7, 2, 9 * 8 + 1)
LOG_RATIO_EDGES = np.concatenate([-_DECADES[::-1], _DECADES])

LOG_PROB_EDGES = np.linspace(-16.0, 0.0, 129)

PATHS = 40
POINTS = 80

Path = tuple[int, list[int], list[float]]  # key, tokens so far, cumulative log_ratio there


def log_ratio_counts(log_ratio: Array) -> NDArray[np.int64]:
    """Count tokens in each bin of LOG_RATIO_EDGES; NaN is in none, +-inf in the outermost."""
    bins = np.searchsorted(LOG_RATIO_EDGES, log_ratio[~np.isnan(log_ratio)], side="right") - 1
    last = len(LOG_RATIO_EDGES) - 2
    return np.bincount(np.clip(bins, 0, last), minlength=last + 1)


def log_prob_counts(behavior: Array, target: Array) -> NDArray[np.int64]:
    """Count tokens in each cell of LOG_PROB_EDGES x LOG_PROB_EDGES, [behavior, target].

    What lies below is in the lowest cells, NaN in none.
    """
    cells = len(LOG_PROB_EDGES) - 1
    defined = ~(np.isnan(behavior) | np.isnan(target))
    low, step = LOG_PROB_EDGES[0], LOG_PROB_EDGES[1] - LOG_PROB_EDGES[0]
    rows, columns = (
        ((np.clip(log_probs[defined], low, 0.0) - low) / step).astype(np.int64).clip(max=cells - 1)
        for log_probs in (behavior, target)
    )
    return np.bincount(rows * cells + columns, minlength=cells * cells).reshape(cells, cells)


@dataclass(frozen=True, slots=True)
class FigureData:
    """Counts of log-ratios and log-probs, and the paths of a few sequences."""

    log_ratio: NDArray[np.int64]  # tokens in the bins of LOG_RATIO_EDGES
    log_probs: NDArray[np.int64]  # tokens in the cells of LOG_PROB_EDGES, [behavior, target]
    paths: tuple[Path, ...]  # by key, the least first

    @classmethod
    def of(cls, pair: PolicyPair) -> FigureData:
        counts = log_prob_counts(pair.values.behavior, pair.values.target)
        return cls(log_ratio_counts(pair.log_ratio), counts, _paths(pair))

    def __add__(self, other: FigureData) -> FigureData:
        return FigureData(
            self.log_ratio + other.log_ratio,
            self.log_probs + other.log_probs,
            tuple(sorted([*self.paths, *other.paths])[:PATHS]),
        )

    def to_dict(self) -> dict[str, Any]:
        counts = self.log_probs
        behavior, target = np.nonzero(counts)
        return {
            "log_ratio_histogram": {
                "edges": LOG_RATIO_EDGES.tolist(),
                "counts": self.log_ratio.tolist(),
            },
            "log_probs": {
                "edges": LOG_PROB_EDGES.tolist(),
                "cells": np.stack([behavior, target, counts[behavior, target]], axis=1).tolist(),
            },
            "paths": [{"token_counts": tokens, "sums": sums} for _, tokens, sums in self.paths],
        }


def _paths(pair: PolicyPair) -> tuple[Path, ...]:
    """Choose PATHS sequences by a hash of their row, so that the order of rows changes nothing."""
    keys = mixed(pair.tokens.row.astype(np.uint64))
    ends = np.cumsum(pair.lengths)
    paths: list[Path] = []
    for index in np.argsort(keys, kind="stable"):
        if len(paths) == PATHS:
            break
        end, length = int(ends[index]), int(pair.lengths[index])
        sums = np.cumsum(pair.log_ratio[end - length : end])
        if np.isfinite(sums[-1]):
            at = np.unique(np.linspace(0, length - 1, POINTS).round().astype(int))
            points = [round(float(value), 6) for value in sums[at]]
            paths.append((int(keys[index]), (at + 1).tolist(), points))
    return tuple(paths)
