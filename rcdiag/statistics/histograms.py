"""Data for figures: histogram counts, and paths of a few sequences.

States of parts add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.statistics.extremes import shown_log_ratios
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import Array, k3
from rcdiag.table.hashing import mixed

# Edges for log_ratio: eight bins per decade of |log_ratio| from 1e-7 (float32 rounding) to 100, for
# either sign, and one bin around 0; the outermost bins include everything beyond.
_DECADES = np.logspace(-7, 2, 9 * 8 + 1)
LOG_RATIO_EDGES = np.concatenate([-_DECADES[::-1], _DECADES])

LOG_PROB_EDGES = np.linspace(-16.0, 0.0, 129)

# Bins of k3, nats: 40 per decade, so that tokens in a bin differ by less than 6%.
BINS_PER_DECADE, SMALLEST_K3, LARGEST_K3 = 40, -16, 6
K3_BINS = (LARGEST_K3 - SMALLEST_K3) * BINS_PER_DECADE

PATHS = 40
POINTS = 80

Path = tuple[int, list[int], list[float]]  # key, number of tokens so far, sum of log_ratio so far


def log_ratio_counts(log_ratio: Array) -> NDArray[np.int64]:
    """Count tokens in the bins of LOG_RATIO_EDGES; NaN is not counted, +-inf are outermost."""
    ordered = np.sort(log_ratio)  # five times as fast as a search for the bin of each token
    below = np.searchsorted(ordered, [*LOG_RATIO_EDGES[1:-1], np.nan])  # NaN is last
    return np.diff(below, prepend=0)


def log_prob_counts(behavior: Array, target: Array) -> NDArray[np.int64]:
    """Count tokens in the cells of LOG_PROB_EDGES x LOG_PROB_EDGES, [behavior, target].

    Values below the edges are in the lowest cells; NaN is not counted.
    """
    cells = len(LOG_PROB_EDGES) - 1
    undefined = np.isnan(behavior) | np.isnan(target)
    if undefined.any():
        behavior, target = behavior[~undefined], target[~undefined]
    low, step = LOG_PROB_EDGES[0], LOG_PROB_EDGES[1] - LOG_PROB_EDGES[0]
    numbers = np.zeros(len(behavior), np.int64)
    for log_probs in (behavior, target):
        places = np.clip(log_probs, low, 0.0)
        places -= low
        places /= step
        numbers *= cells
        numbers += np.minimum(places.astype(np.int64), cells - 1)
    return np.bincount(numbers, minlength=cells * cells).reshape(cells, cells)


class FigureData(Struct, frozen=True):
    """Counts of log-ratios and log-probs, and the paths of a few sequences."""

    log_ratio: NDArray[np.int64]  # counts in the bins of LOG_RATIO_EDGES
    log_probs: NDArray[np.int64]  # counts in the cells of LOG_PROB_EDGES, [behavior, target]
    paths: list[Path]  # those with the smallest keys, ascending

    @classmethod
    def of(cls, pair: PolicyPair) -> FigureData:
        counts = log_prob_counts(pair.values.behavior, pair.values.target)
        return cls(log_ratio_counts(pair.log_ratio), counts, _paths(pair))

    def bounded(self) -> FigureData:
        return FigureData(self.log_ratio, self.log_probs, sorted(self.paths)[:PATHS])

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
            "paths": [
                {"token_counts": tokens, "sums": shown_log_ratios(np.array(sums))}
                for _, tokens, sums in self.paths
            ],
        }


class Lorenz(Struct, frozen=True):
    """Counts of tokens and sums of their k3, in bins of k3; states add up."""

    counts: Array  # [K3_BINS]
    sums: Array  # [K3_BINS] nats

    @classmethod
    def of(cls, pair: PolicyPair) -> Lorenz:
        """Sort some tokens into the bins."""
        with np.errstate(divide="ignore", invalid="ignore"):
            values = k3(pair.values.ratios)
            # A NaN is counted as infinite: either makes all shares unknown.
            values = np.where(np.isnan(values), np.inf, np.maximum(values, 0.0))
            places = (np.log10(values) - SMALLEST_K3) * BINS_PER_DECADE
        numbers = np.clip(places, 0, K3_BINS - 1).astype(np.int64)
        return cls(
            np.bincount(numbers, minlength=K3_BINS).astype(np.float64),
            np.bincount(numbers, values, K3_BINS).astype(np.float64),
        )

    def shares(self, of_tokens: Sequence[float]) -> list[list[float]]:
        """Return pairs of a share of tokens (those with the largest k3) and their share of all k3.

        A share of less than one token is left out. Within a bin, k3 is interpolated linearly. Empty
        if the sum of k3 is 0 or not finite.
        """
        tokens, total = self.counts.sum(), self.sums.sum()
        if not tokens or not np.isfinite(total) or total <= 0.0:
            return []
        held_by = np.concatenate([[0.0], np.cumsum(self.counts[::-1])]) / tokens
        held = np.concatenate([[0.0], np.cumsum(self.sums[::-1])]) / total
        shares = [share for share in of_tokens if share * tokens >= 1.0]
        return [[share, float(np.interp(share, held_by, held))] for share in shares]


def _paths(pair: PolicyPair) -> list[Path]:
    """Choose PATHS sequences by a hash of their row, independently of the order of rows."""
    keys = mixed(pair.tokens.row.astype(np.uint64))
    ends = np.cumsum(pair.lengths)
    paths: list[Path] = []
    for index in np.argsort(keys, kind="stable"):
        if len(paths) == PATHS:
            break
        end, length = int(ends[index]), int(pair.lengths[index])
        tokens = slice(end - length, end)
        behavior, target = (
            pair.tokens.log_probs[policy][tokens] for policy in (pair.behavior, pair.target)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.cumsum(target - behavior)
        if np.isfinite(sums[-1]):
            at = np.linspace(0, length - 1, min(length, POINTS)).round().astype(int)
            paths.append((int(keys[index]), (at + 1).tolist(), sums[at].tolist()))
    return paths
