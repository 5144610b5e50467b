"""Flat token values are reduced to their sequences; an empty one gives the neutral value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _reduce(
    ufunc: Callable[..., NDArray[Any]],
    values: NDArray[Any],
    lengths: NDArray[np.int64],
    empty: float,
) -> NDArray[Any]:
    # `reduceat` misreads empty segments, so they are left out and filled in afterwards.
    filled = lengths > 0
    out = np.full(len(lengths), empty, dtype=values.dtype)
    starts = (np.cumsum(lengths) - lengths)[filled]
    if len(starts):
        with np.errstate(over="ignore", invalid="ignore"):  # out of range is inf, as for ratios
            out[filled] = ufunc(values, starts)
    return out


def segment_sum(values: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the sum of `values` [tokens] over each sequence; 0 where it has no token."""
    return _reduce(np.add.reduceat, values, lengths, 0)


def segment_max(values: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the largest of `values` [tokens] in each sequence; -inf where it has no token."""
    return _reduce(np.maximum.reduceat, values, lengths, -np.inf)


def starts_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each sequence's first token among all tokens, [sequences]."""
    return np.cumsum(lengths) - lengths
