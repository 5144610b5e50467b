"""Totals over sequences: once as they are, or many times with clusters drawn anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.statistics.table import Array, SequenceTable

REPLICATES = 1000
# Draws of so many clusters and replicates are in memory at once.
DRAWS_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the sequences of a table, each [replicates]; the table itself is one replicate."""

    sequences: Array
    tokens: Array
    sums: Mapping[str, Array]  # of token values and of sequence values
    log_sums: Mapping[str, Array]  # log of sums of exponentials
    maxima: Mapping[str, Array]  # empty for replicates: a maximum has no bootstrap interval

    def per_token(self, name: str) -> Array:
        return self.sums[name] / self.tokens

    def per_sequence(self, name: str) -> Array:
        return self.sums[name] / self.sequences


def sequence_sums(table: SequenceTable) -> dict[str, Array]:
    """Quantities of whole sequences that are averaged over sequences, each [sequences]."""
    n, sums = table.lengths, table.sums
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            "behavior_ppl": np.exp(-sums["behavior"] / n),
            "target_ppl": np.exp(-sums["target"] / n),
            "ppl_ratio": np.exp(-sums["log_ratio"] / n),
            "seq_ratio_squared_excess": np.expm1(2.0 * sums["log_ratio"]),
        }


def sequence_logs(table: SequenceTable) -> dict[str, Array]:
    """Logs of ratios of whole sequences (the product of their token ratios), each [sequences]."""
    log_ratio = table.sums["log_ratio"]
    return {"seq_ratio": log_ratio, "seq_ratio_squared": 2.0 * log_ratio}


@dataclass(frozen=True, slots=True)
class _Addends:
    """Rows that are added up: sequences, or clusters of sequences."""

    counts: Array  # [rows] sequences
    tokens: Array  # [rows]
    sums: dict[str, Array]  # name -> [rows]
    scaled: dict[str, Array]  # name -> [rows], exp(log - shift)
    shifts: dict[str, float]


def _addends(table: SequenceTable) -> _Addends:
    logs = {**table.logs, **sequence_logs(table)}
    shifts = {name: _shift(values) for name, values in logs.items()}
    with np.errstate(over="ignore"):
        scaled = {name: np.exp(values - shifts[name]) for name, values in logs.items()}
    sums = {**table.sums, **sequence_sums(table)}
    return _Addends(np.ones(len(table)), table.lengths.astype(float), sums, scaled, shifts)


def _shift(logs: Array) -> float:
    largest = float(np.max(logs))
    return largest if np.isfinite(largest) else 0.0


def _by_cluster(rows: _Addends, cluster: NDArray[np.uint64]) -> _Addends:
    _, index = np.unique(cluster, return_inverse=True)

    def add(values: Array) -> Array:
        return np.bincount(index, weights=values).astype(np.float64, copy=False)

    return _Addends(
        add(rows.counts),
        add(rows.tokens),
        {name: add(values) for name, values in rows.sums.items()},
        {name: add(values) for name, values in rows.scaled.items()},
        rows.shifts,
    )


def _total(rows: _Addends, add: Callable[[Array], Array]) -> Totals:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return Totals(
            sequences=add(rows.counts),
            tokens=add(rows.tokens),
            sums={name: add(values) for name, values in rows.sums.items()},
            log_sums={
                name: rows.shifts[name] + np.log(add(values))
                for name, values in rows.scaled.items()
            },
            maxima={},
        )


def totals(table: SequenceTable) -> Totals:
    """Totals of the table itself: one replicate, with the maxima."""
    found = _total(_addends(table), lambda values: np.array([values.sum()]))
    maxima = {name: np.array([values.max()]) for name, values in table.maxima.items()}
    return Totals(found.sequences, found.tokens, found.sums, found.log_sums, maxima)


def resampled(table: SequenceTable, seed: int, replicates: int = REPLICATES) -> list[Totals]:
    """Totals of `replicates` tables made by drawing whole clusters with replacement, in slices.

    Tokens of a sequence and sequences of a prompt depend on each other, so the prompt group is
    what is drawn (cluster bootstrap; Davison & Hinkley 1997, 3.8). Fewer than two clusters tell
    nothing about the spread between them: no slices.
    """
    rows = _by_cluster(_addends(table), table.cluster)
    clusters = len(rows.counts)
    if clusters < 2:
        return []
    generator = np.random.default_rng(seed)
    size = max(DRAWS_AT_ONCE // clusters, 1)
    slices = []
    for start in range(0, replicates, size):
        drawn = np.stack([_draw(generator, clusters) for _ in range(min(size, replicates - start))])
        slices.append(_total(rows, drawn.astype(float).__matmul__))
    return slices


def _draw(generator: np.random.Generator, clusters: int) -> NDArray[np.int64]:
    """How often each cluster comes when as many as there are are drawn with replacement."""
    return np.bincount(generator.integers(clusters, size=clusters), minlength=clusters)
