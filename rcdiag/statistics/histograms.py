"""What figures are drawn from: counts in declared bins, and the paths of a few sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.block import Block
from rcdiag.statistics.hashing import mixed
from rcdiag.statistics.ratios import Array

# |log_ratio| from float32 rounding to a ratio of e^100, eight bins a decade, either sign, and one
# bin around 0 between them; the outermost bins take all that lies beyond.
_DECADES = np.logspace(-7, 2, 9 * 8 + 1)
LOG_RATIO_EDGES = np.concatenate([-_DECADES[::-1], _DECADES])

LOG_PROB_EDGES = np.linspace(-16.0, 0.0, 129)

PATHS = 40
POINTS = 80


def log_ratio_counts(log_ratio: Array) -> NDArray[np.int64]:
    """Tokens in each bin of LOG_RATIO_EDGES; NaN is in none, +-inf in the outermost."""
    bins = np.searchsorted(LOG_RATIO_EDGES, log_ratio[~np.isnan(log_ratio)], side="right") - 1
    last = len(LOG_RATIO_EDGES) - 2
    return np.bincount(np.clip(bins, 0, last), minlength=last + 1)


def log_prob_counts(behavior: Array, target: Array) -> NDArray[np.int64]:
    """Tokens in each cell of LOG_PROB_EDGES x LOG_PROB_EDGES, [behavior, target].

    What lies below is in the lowest cells, NaN in none.
    """
    cells = len(LOG_PROB_EDGES) - 1
    known = ~(np.isnan(behavior) | np.isnan(target))
    low, step = LOG_PROB_EDGES[0], LOG_PROB_EDGES[1] - LOG_PROB_EDGES[0]
    rows, columns = (
        ((np.clip(log_probs[known], low, 0.0) - low) / step).astype(np.int64).clip(max=cells - 1)
        for log_probs in (behavior, target)
    )
    return np.bincount(rows * cells + columns, minlength=cells * cells).reshape(cells, cells)


@dataclass
class FigureData:
    """Counts and paths of the tokens seen so far."""

    log_ratio: NDArray[np.int64] | int = 0
    log_probs: NDArray[np.int64] | int = 0
    paths: list[tuple[int, list[int], list[float]]] = field(default_factory=list)

    def add(self, block: Block) -> None:
        self.log_ratio = self.log_ratio + log_ratio_counts(block.values.ratios.log_ratio)
        counts = log_prob_counts(block.values.behavior, block.values.target)
        self.log_probs = self.log_probs + counts
        self._add_paths(block)

    def merge(self, other: FigureData) -> None:
        self.log_ratio = self.log_ratio + other.log_ratio
        self.log_probs = self.log_probs + other.log_probs
        self.paths = sorted([*self.paths, *other.paths])[:PATHS]

    def _add_paths(self, block: Block) -> None:
        """PATHS sequences by a hash of their row: a sample that the order does not change."""
        keys = mixed(block.row.astype(np.uint64))
        for index in np.argsort(keys, kind="stable")[:PATHS]:
            if len(self.paths) == PATHS and keys[index] >= self.paths[-1][0]:
                break
            end = int(block.lengths[: index + 1].sum())
            start = end - int(block.lengths[index])
            path = np.cumsum(block.values.ratios.log_ratio[start:end])
            if np.isfinite(path[-1]):
                at = np.unique(np.linspace(0, len(path) - 1, POINTS).round().astype(int))
                points = [round(float(value), 6) for value in path[at]]
                self.paths.append((int(keys[index]), (at + 1).tolist(), points))
                self.paths = sorted(self.paths)[:PATHS]

    def to_dict(self) -> dict[str, Any]:
        counts = np.asarray(self.log_probs)
        behavior, target = np.nonzero(counts)
        return {
            "log_ratio": {
                "edges": LOG_RATIO_EDGES.tolist(),
                "counts": np.asarray(self.log_ratio).tolist(),
            },
            "log_probs": {
                "edges": LOG_PROB_EDGES.tolist(),
                "cells": np.stack([behavior, target, counts[behavior, target]], axis=1).tolist(),
            },
            "paths": [{"tokens": tokens, "sums": sums} for _, tokens, sums in self.paths],
        }
