"""Declared thresholds: wide, round and the same for every table, so that shards add up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

Bounds = dict[str, float]

# Up to so many values three digits tell them apart.
ROUND_UP_TO = 100
FEWEST_PER_SIDE = 8


def per_side(thresholds: int) -> int:
    """Values of each of two bounds, so that their grid has about `thresholds` settings."""
    return max(FEWEST_PER_SIDE, round(float(np.sqrt(thresholds))))


def spread(low: float, high: float, count: int, always: Sequence[float] = ()) -> list[float]:
    """About `count` values from `low` to `high`, evenly in their logs, and those in `always`."""
    digits = 3 if count <= ROUND_UP_TO else 6
    even = np.geomspace(low, high, max(count - len(always), 2))
    return sorted({*(float(f"{value:.{digits}g}") for value in even), *always})


def _ratios(reach: float, count: int, always: Sequence[float]) -> list[float]:
    """Ratios above 1, evenly in the logs of their logs: near 1 a little matters much."""
    digits = 3 if count <= ROUND_UP_TO else 6
    even = np.exp(np.geomspace(0.02, np.log(reach), max(count - len(always), 2)))
    return sorted({*(float(f"{value:.{digits}g}") for value in even), *always})


def uppers(reach: float, always: Sequence[float], count: int) -> list[Bounds]:
    """A grid of one upper bound on a ratio."""
    return [{"upper": value} for value in _ratios(reach, count, always)]


def windows(reach: float, thresholds: int) -> list[Bounds]:
    """A grid of lower and upper bounds on a ratio, 1 / reach to reach."""
    count = per_side(thresholds)
    highs = _ratios(reach, count, (2.0, 5.0))
    digits = 3 if count <= ROUND_UP_TO else 6
    lows = sorted({float(f"{1.0 / value:.{digits}g}") for value in highs})
    return [{"lower": low, "upper": high} for low, high in product(lows, highs)]


def _distances(count: int) -> list[float]:
    return spread(1e-5, 0.1, count, (0.001, 0.01))


def geometric_windows(thresholds: int) -> list[Bounds]:
    """Bounds 1 - a and 1 + b on the geometric ratio."""
    sides = _distances(per_side(thresholds))
    return [
        {"lower": round(1.0 - below, 9), "upper": round(1.0 + above, 9)}
        for below, above in product(sides, sides)
    ]


def geometric_pairs(reach: float, thresholds: int) -> list[Bounds]:
    """Windows 1 - a to 1 + a of the geometric ratio by upper bounds of weights."""
    side = per_side(thresholds)
    return [
        {"rs_lower": round(1.0 - away, 9), "rs_upper": round(1.0 + away, 9), "is_upper": upper}
        for away, upper in product(_distances(side), _ratios(reach, side, (2.0, 5.0)))
    ]


def k3_pairs(reach: float, thresholds: int) -> list[Bounds]:
    """Upper bounds of the mean k3 by upper bounds of weights."""
    side = per_side(thresholds)
    return [
        {"rs_upper": k3, "is_upper": upper}
        for k3, upper in product(
            spread(1e-6, 1.0, side, (0.001, 0.01)), _ratios(reach, side, (2.0, 5.0))
        )
    ]
