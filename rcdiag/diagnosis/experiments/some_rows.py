"""Rows that alone are off, as a sample of their own."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.experiments.fit import fit_residual
from rcdiag.diagnosis.experiments.patterns import rows_off
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side

FEWEST, MOST = 6, 0.8  # rows that are off, and the share that they are at most


def apart(sample: RescoredSample, side: Side) -> RescoredSample | None:
    """Return the sample of the rows that are off; None if the model does not explain the others."""
    off = rows_off(sample, side)
    if not FEWEST <= off.sum() <= MOST * len(off):
        return None
    at = side.known_at
    others = at[~np.isin(sample.owner[at], sample.rows[off])]
    residual = fit_residual(
        side.recorded[others],
        side.expected[others],
        side.sensitivity[others],
        side.resolution[others],
    )
    return of_rows(sample, off) if len(others) and residual.within(sample.noise) else None


def of_rows(sample: RescoredSample, chosen: np.ndarray) -> RescoredSample:
    """Return the sample restricted to some rows, by flag, [rows]."""
    rows = sample.rows[chosen]
    inside = np.isin(sample.owner, rows)
    chosen_contexts = inside[sample.distribution_at]
    return replace(
        sample,
        rows=rows,
        usable=sample.usable & inside,
        distribution_at=sample.distribution_at[chosen_contexts],
        distribution=sample.distribution.take(chosen_contexts),
    )
