"""Patterns of a faulty column: from a token that differs by row, or at a common position."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.experiments.patterns import _usual, _within_rows

ROWS, LENGTH = 200, 100
POSITION = np.tile(np.arange(LENGTH), ROWS)
ROW = np.repeat(np.arange(ROWS), LENGTH)


def shares(off: np.ndarray) -> tuple[float, float]:
    """Return the shares of rows that differ before, and after, a token of their own."""
    flags = off.ravel()
    usual = _usual(flags, POSITION, np.ones(len(flags), np.bool_))
    ends, begins = _within_rows(flags, ROW, ROWS, usual)
    return float(ends.mean()), float(begins.mean())


def test_rows_that_differ_from_their_own_token_on_are_detected():
    rng = np.random.default_rng(0)
    first = rng.integers(20, 80, (ROWS, 1))
    off = (np.arange(LENGTH) >= first) & (rng.random((ROWS, LENGTH)) < 0.5)
    ends, begins = shares(off)
    assert begins > 0.3  # from here on `context-differs` is named
    assert ends < 0.05
    ends, begins = shares(off[:, ::-1])
    assert ends > 0.3
    assert begins < 0.05


def test_certain_first_tokens_are_not_the_start_of_a_fault():
    """Certain first tokens do not change with other weights."""
    rng = np.random.default_rng(1)
    off = (np.arange(LENGTH) >= 40) & (rng.random((ROWS, LENGTH)) < 0.1)
    ends, begins = shares(off)
    assert begins < 0.15
    assert ends < 0.15
    assert max(shares(rng.random((ROWS, LENGTH)) < 0.06)) < 0.15
