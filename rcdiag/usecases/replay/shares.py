"""Who gets the gradient: the coefficients d loss / d current log-prob, added up in many ways."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import Coefficients, Shares
from rcdiag.table.trajectories import segment_sum
from rcdiag.usecases.replay.update_batch import ReplayBatch

Array = NDArray[np.float64]

TOP = 0.01
LISTED = 100
EDGES = np.linspace(-12.0, 2.0, 57)  # of log10 |coefficient|


def coefficient_numbers(coefficients: Array) -> Coefficients:
    """Norm, sum, sum of sizes and count of non-zeros over tokens."""
    sizes = np.abs(coefficients)
    return Coefficients(
        norm=float(np.sqrt(np.square(coefficients).sum())),
        sum=float(coefficients.sum()),
        abs_sum=float(sizes.sum()),
        nonzero=int(np.count_nonzero(coefficients)),
        largest=float(sizes.max(initial=0.0)),
    )


def shares(coefficients: Array, batch: ReplayBatch, uncorrected: Array) -> Shares | None:
    """Shares of the summed sizes; None where all are 0.

    `uncorrected` are the coefficients that the same batch has where every ratio and weight is 1 and
    nothing is rejected.
    """
    sizes = np.abs(coefficients)
    total = float(sizes.sum())
    if not total or not np.isfinite(total):
        return None
    by_row = segment_sum(sizes, batch.lengths) / total
    plain = segment_sum(np.abs(uncorrected), batch.lengths)
    quarter = _quarters(batch.lengths)
    ordered = np.sort(by_row)[::-1]
    logs = np.log10(sizes[sizes > 0])
    counts, _ = np.histogram(np.clip(logs, EDGES[0], EDGES[-1]), EDGES)
    return Shares(
        by_length=np.bincount(quarter, by_row, 4).tolist(),
        tokens_by_length=(np.bincount(quarter, batch.lengths, 4) / batch.num_tokens).tolist(),
        positive_advantage=float(sizes[batch.advantages > 0].sum() / total),
        negative_advantage=float(sizes[batch.advantages < 0].sum() / total),
        top_tokens=_top(sizes / total),
        top_sequences=_top(by_row),
        top_sequences_uncorrected=_top(plain / plain.sum()) if plain.any() else None,
        sequences=ordered[:LISTED].tolist(),
        histogram={"edges": EDGES.tolist(), "counts": counts.astype(float).tolist()},
    )


def _quarters(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 for the shortest quarter of the sequences, 3 for the longest; ties go together."""
    cuts = np.quantile(lengths, [0.25, 0.5, 0.75])
    return np.searchsorted(cuts, lengths, side="left")


def _top(parts: Array) -> float:
    """The share of the largest 1%, of one at least."""
    count = max(round(TOP * len(parts)), 1)
    return float(np.partition(parts, len(parts) - count)[-count:].sum())
