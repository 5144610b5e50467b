"""A small stand-in for each sequence's policy gradient, without a model.

The gradient of log p(token) with respect to the logits has 1 - p at the sampled token. Summed over
a sequence by token id with signs into DIMENSIONS buckets (CountSketch: inner products stay what
they are in expectation), that is a vector whose inner products follow those of the gradients of
the output bias. Sources: reference/theory.md 2.7 and 4.3, L-proxy; Charikar et al. 2002.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.quantities import SAFETY_BOUND
from rcdiag.segments import segment_sum

Array = NDArray[np.float64]

DIMENSIONS = 64
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: Fibonacci hashing


def buckets(token_id: NDArray[np.int32]) -> tuple[NDArray[np.int64], Array]:
    """Bucket and sign of each token id."""
    mixed = (token_id.astype(np.uint64) + np.uint64(1)) * _MIX
    mixed = (mixed ^ (mixed >> np.uint64(32))) * _MIX
    bucket = (mixed >> np.uint64(58)).astype(np.int64)
    sign = 1.0 - 2.0 * ((mixed >> np.uint64(40)) & np.uint64(1)).astype(np.float64)
    return bucket, sign


def sketches(cells: NDArray[np.int64], values: Array, rows: int) -> Array:
    """Sums of `values` [tokens] by sequence and bucket, [sequences, DIMENSIONS].

    `cells` are sequence * DIMENSIONS + bucket.
    """
    sums = np.bincount(cells, values, rows * DIMENSIONS).astype(np.float64, copy=False)
    return sums.reshape(rows, DIMENSIONS)


def reference_ratio(log_ratio: Array, lengths: NDArray[np.int64]) -> Array:
    """Ratio of whole sequences, the untruncated importance weight, its log within +-20 nats."""
    return np.exp(np.clip(segment_sum(log_ratio, lengths), -SAFETY_BOUND, SAFETY_BOUND))
