"""Random batches: holes in the mask, rows without a token, small and huge log-ratios."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.corrections.builders import Padded

# Values at masked positions, which must not affect any result.
GARBAGE = (0.0, -1.0, np.nan, np.inf, -np.inf, -1e30)
# Log-ratios at clamps, overflow and bounds.
FAR = (25.0, -25.0, 20.0, -20.0, 15.0, -21.0, 1000.0, -1000.0, 0.25, -0.75)
MET = (0.0, float(np.log(2.0)), -float(np.log(2.0)))
KINDS = ("near", "wide", "far", "cancelling", "met", "equal")


def _near(size: int, reach: float) -> SearchStrategy[list[float]]:
    """Draw multiples of 2^-20, whose sums are exact in any order."""
    largest = int(reach * 2**20)
    values = st.integers(-largest, largest).map(lambda count: count / 2**20)
    return st.lists(values | st.just(0.0), min_size=size, max_size=size)


@st.composite
def _log_ratios(draw: st.DrawFn, kind: str, rows: int, width: int) -> np.ndarray:
    size = rows * width
    if kind == "equal":
        return np.zeros((rows, width))
    if kind == "met":
        # One token of each row lies exactly on a bound, and no sum can round past it.
        result = np.zeros((rows, width))
        result[:, 0] = draw(st.lists(st.sampled_from(MET), min_size=rows, max_size=rows))
        return result
    if kind == "far":
        values = st.lists(st.sampled_from(FAR), min_size=size, max_size=size)
        return np.array(draw(values)).reshape(rows, width)
    reach = 3.0 if kind == "wide" else 0.3
    result = np.array(draw(_near(size, reach))).reshape(rows, width)
    if kind == "cancelling":
        half = width // 2
        result[:, :half] = draw(st.sampled_from((30.0, 1000.0)))
        result[:, half : 2 * half] += -result[:, :half]
    return result


@st.composite
def _masks(draw: st.DrawFn, rows: int, width: int) -> np.ndarray:
    mask = np.zeros((rows, width), np.bool_)
    for row in range(rows):
        kind = draw(st.sampled_from(("all", "holes", "start", "one", "none")))
        if kind == "holes":
            mask[row] = draw(st.lists(st.booleans(), min_size=width, max_size=width))
        elif kind != "none":
            at = draw(st.integers(1, width))
            mask[row, {"all": slice(None), "start": slice(at), "one": slice(at - 1, at)}[kind]] = 1
    if not mask.any():
        mask[0, 0] = True
    return mask


@st.composite
def batches(
    draw: st.DrawFn, kinds: tuple[str, ...] = KINDS, max_rows: int = 5, max_width: int = 6
) -> Padded:
    """Draw batches of 1 to 5 rows and 1 to 6 positions, with at least one token."""
    rows, width = draw(st.integers(1, max_rows)), draw(st.integers(1, max_width))
    kind = draw(st.sampled_from(kinds))
    ratio, mask = draw(_log_ratios(kind, rows, width)), draw(_masks(rows, width))
    # Log-probs are at most 0; a target of 0 leaves the log-ratios unchanged.
    base = 0.0 if kind == "met" else draw(st.sampled_from((0.0, -0.5, -3.0)))
    old, rollout = base + np.minimum(ratio, 0.0), base - np.maximum(ratio, 0.0)
    if draw(st.booleans()):
        garbage = draw(st.tuples(st.sampled_from(GARBAGE), st.sampled_from(GARBAGE)))
        old, rollout = np.where(mask, old, garbage[0]), np.where(mask, rollout, garbage[1])
    group = np.array(draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)))
    rewards = st.sampled_from((0.0, 1.0, 0.25, np.nan))
    reward = np.array(draw(st.lists(rewards, min_size=rows, max_size=rows)))
    return Padded(old, rollout, mask, group, reward)


def seeded(
    seed: int, rows: int = 16, width: int = 12, sd: float = 0.3, bias: float = 0.0
) -> Padded:
    """Make a larger batch from a seed: Gaussian log-ratios, some rows without a token."""
    random = np.random.default_rng(seed)
    mask = np.arange(width) < random.integers(0, width + 1, size=(rows, 1))
    mask[0] = True
    mask &= (random.random((rows, width)) < 0.9) | (np.arange(width) == 0)
    rollout = -random.exponential(1.0, (rows, width))
    old = rollout + random.normal(bias, sd, (rows, width))
    return Padded(old, rollout, mask, random.integers(0, rows // 3 + 1, rows), random.random(rows))
