"""Random ragged batches of two policies."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Batch = tuple[list[list[float]], list[list[float]]]  # behavior, target log-probs


def log_probs(lowest: float = -12.0) -> SearchStrategy[float]:
    return st.floats(lowest, 0.0, allow_nan=False)


@st.composite
def batches(draw: st.DrawFn, max_log_ratio: float = 12.0) -> Batch:
    """Draw 1 to 6 sequences of 0 to 8 tokens, with at least one token."""
    lengths = draw(st.lists(st.integers(0, 8), min_size=1, max_size=6).filter(any))
    behavior, target = [], []
    for length in lengths:
        row = draw(st.lists(log_probs(), min_size=length, max_size=length))
        shift = st.floats(-max_log_ratio, max_log_ratio, allow_nan=False)
        shifts = draw(st.lists(shift, min_size=length, max_size=length))
        behavior.append(row)
        target.append([min(a + b, 0.0) for a, b in zip(row, shifts, strict=True)])
    return behavior, target


def seeded_batch(seed: int, sequences: int = 20, sd: float = 0.3) -> Batch:
    """Make a larger ragged batch from a seed, with some empty sequences; log-ratio std `sd`."""
    random = np.random.default_rng(seed)
    behavior, target = [], []
    for length in random.integers(0, 30, size=sequences):
        row = -random.exponential(1.0, size=length)
        behavior.append(row.tolist())
        target.append(np.minimum(row + random.normal(0.0, sd, size=length), 0.0).tolist())
    return behavior, target


def shifted(batch: Batch, constant: float) -> Batch:
    """Shift all target log-probs, and so all log-ratios, by a constant."""
    behavior, target = batch
    return behavior, [[value + constant for value in row] for row in target]


def scaled(batch: Batch, factor: float) -> Batch:
    """Multiply all log-ratios by a factor."""
    behavior, target = batch
    return behavior, [
        [a + factor * (b - a) for a, b in zip(*rows, strict=True)]
        for rows in zip(behavior, target, strict=True)
    ]


def log_ratios(batch: Batch) -> np.ndarray:
    """Return the log-ratios of all tokens, flat."""
    behavior, target = batch
    return np.array(
        [b - a for rows in zip(behavior, target, strict=True) for a, b in zip(*rows, strict=True)]
    )
