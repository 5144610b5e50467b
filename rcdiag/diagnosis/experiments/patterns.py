"""Which rows of a column deviate from the model, and where.

A token is off if |recorded - expected| is more than an engine's noise explains; a row is off if
more than a few of its tokens are.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Counts, Flags, z_of_sums
from rcdiag.diagnosis.experiments.fit import fit_residual
from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTester
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side
from rcdiag.diagnosis.experiments.thresholds import LARGEST_DIFFERENCE, OUTLYING
from rcdiag.diagnosis.thresholds import FEW, FEWEST_OF_PATTERN, FEWEST_ROWS, MOST, ROUNDING


def rows_off(sample: RescoredSample, side: Side) -> Flags:
    """Flag the rows of a sample in which more than a few tokens are off, [rows]."""
    row = np.searchsorted(sample.rows, sample.owner[side.known_at])
    count = len(sample.rows)
    off = np.bincount(row, _off(sample, side, side.known_at), minlength=count)
    flags: Flags = off > FEW * np.maximum(np.bincount(row, minlength=count), 1)
    return flags


def z_by_rows(values: Array, owner: Counts) -> float:
    """Return the z score of the mean of clipped values [tokens] against 0, rows as clusters."""
    _, row = np.unique(owner, return_inverse=True)
    return z_of_sums(np.bincount(row, np.clip(values, -LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)))


def recorded_excess(tester: HypothesisTester) -> float:
    """Return the z score of mean(recorded - expected): above 0 the recorded distribution sampled,
    below 0 the model's.
    """
    return z_by_rows(tester.side.residual.values, tester.sample.owner[tester.side.known_at])


def _off(sample: RescoredSample, side: Side, at: Counts) -> Flags:
    """Flag tokens that are off by more than an engine's noise explains, [at]."""
    width = OUTLYING * sample.noise * side.sensitivity[at] + side.resolution[at]
    flags: Flags = np.abs(side.recorded[at] - side.expected[at]) > width + ROUNDING
    return flags


def retokenised(tester: HypothesisTester) -> float | None:
    """Return the share of rows that are off only from where their text encodes to other tokens.

    None without a tokenizer, or where too few rows are off or encode to other tokens.
    """
    if tester.encode is None or tester.decode is None:
        return None
    sample, side = tester.sample, tester.side
    agree, rows = 0, 0
    for row in sample.rows:
        tokens = sample.tokens_of([int(row)])
        ids = sample.response(int(row))
        off = side.known[tokens] & _off(sample, side, tokens)
        began = int(np.argmax(off)) if off.any() else None
        differs = _differs(tester, ids, sample.case.mask[sample.place[tokens]])
        if differs is None and began is None:
            continue
        rows += 1
        if differs is not None and (began is None or began >= differs - 1):
            agree += 1
    return agree / rows if rows >= FEWEST_OF_PATTERN else None


def _differs(tester: HypothesisTester, ids: NDArray[np.int32], mask: Flags) -> int | None:
    """Return the index of the first token that differs when a response's text is encoded again."""
    assert tester.encode is not None
    assert tester.decode is not None
    best: int | None = None
    runs = np.split(ids, np.flatnonzero(np.diff(mask)) + 1)
    whole = tester.encode(tester.decode(ids.tolist()))
    stripped = [
        token for run in runs for token in tester.encode(tester.decode(run.tolist()).strip())
    ]
    for made in (whole, stripped):
        size = min(len(made), len(ids))
        other = np.flatnonzero(np.asarray(made[:size]) != ids[:size])
        place = int(other[0]) if len(other) else (size if len(made) != len(ids) else None)
        if place is not None and (best is None or place < best):
            best = place
    return best


def only_rows_off(sample: RescoredSample, side: Side) -> RescoredSample | None:
    """Return the sample of the rows that are off; None if the model does not explain the others."""
    off = rows_off(sample, side)
    if not FEWEST_ROWS <= off.sum() <= MOST * len(off):
        return None
    at = side.known_at
    others = at[~np.isin(sample.owner[at], sample.rows[off])]
    residual = fit_residual(
        side.recorded[others],
        side.expected[others],
        side.sensitivity[others],
        side.resolution[others],
    )
    if not len(others) or not residual.within(sample.noise):
        return None
    inside = np.isin(sample.owner, sample.rows[off])
    chosen_contexts = inside[sample.distribution_at]
    return replace(
        sample,
        rows=sample.rows[off],
        usable=sample.usable & inside,
        distribution_at=sample.distribution_at[chosen_contexts],
        distribution=sample.distribution.take(chosen_contexts),
    )
