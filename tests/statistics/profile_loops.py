"""Reference profiles by plain loops over tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, nan, sqrt

import numpy as np
from scipy.stats import norm, t

from tests.statistics.strategies import seeded_batch

POWERS = [f"{2**n}-{2 ** (n + 1) - 1}" if n else "1" for n in range(17)]
PROBABILITIES = ["< 0.0001", "0.0001-0.001", "0.001-0.01", "0.01-0.1", "0.1-0.5", "0.5-0.9"]
LABELS = {
    "position": ["0", *POWERS, "131072+"],
    "length": ["1-15", *POWERS[4:], "131072+"],
    "behavior_probability": [*PROBABILITIES, "0.9-0.99", ">= 0.99"],
    "entropy": [
        "< 0.01",
        *("0.01-0.05", "0.05-0.1", "0.1-0.25", "0.25-0.5", "0.5-1", "1-2", "2-4"),
        ">= 4",
    ],
    "turn": [*map(str, range(1, 10)), "10+"],
    "reward": ["negative", "zero", "positive"],
}


@dataclass(frozen=True)
class Token:
    """An unmasked token with its value on every axis."""

    cluster: int
    log_ratio: float
    position: int
    length: int
    behavior_probability: float
    target_probability: float
    mean_probability: float
    entropy: float
    turn: int
    reward: float


def columns_of(rows: int, seed: int = 0) -> dict[str, list]:
    random = np.random.default_rng(seed)
    behavior, target = seeded_batch(seed, rows)
    behavior[0] = (-random.exponential(4.0, size=300)).tolist()
    target[0] = [value + 0.1 for value in behavior[0]]
    return {
        "behavior": behavior,
        "target": target,
        "mask": [(random.random(len(row)) < 0.7).astype(int).tolist() for row in behavior],
        "cluster": random.integers(0, 9, rows).tolist(),
        "reward": random.choice([-0.5, 0.0, 2.0, nan], rows).tolist(),
        "entropy": [random.lognormal(-1, 2, size=len(row)).tolist() for row in behavior],
    }


def tokens_of(columns: dict[str, list]) -> Iterator[Token]:
    """Yield tokens one by one, in plain Python."""
    for row, mask in enumerate(columns["mask"]):
        turn = 0
        for position, sampled in enumerate(mask):
            if not sampled:
                continue
            turn += position == 0 or not mask[position - 1]
            behavior, target = (columns[name][row][position] for name in ("behavior", "target"))
            yield Token(
                columns["cluster"][row],
                target - behavior,
                position,
                sum(mask),
                exp(behavior),
                exp(target),
                sqrt(exp(behavior) * exp(target)),
                columns["entropy"][row][position],
                turn,
                columns["reward"][row],
            )


def label(axis: str, value: float) -> str | None:
    """Return the bin of a value, or None."""
    if np.isnan(value):
        return None
    labels = LABELS.get(axis) or LABELS["behavior_probability"]
    if axis == "position":
        return labels[int(value).bit_length()]
    if axis == "length":
        return labels[max(int(value).bit_length() - 4, 0)]
    if axis == "turn":
        return labels[min(int(value), 10) - 1]
    if axis == "reward":
        return labels[(value >= 0) + (value > 0)]
    edges = [float(text.split("-")[0]) for text in labels[1:-1]]
    return labels[bisect_right([*edges, float(labels[-1][3:])], value)]


def interval_of(values: dict[int, list[float]]) -> tuple[float, float] | tuple[None, None]:
    """Return the interval of a mean, from values per cluster."""
    return interval_of_quotient([(sum(own), float(len(own))) for own in values.values()])


def interval_of_quotient(
    clusters: list[tuple[float, float]],
) -> tuple[float, float] | tuple[None, None]:
    """Return the jackknife interval of a quotient of sums over clusters, by definition.

    There is no interval below 1.5 effective clusters by size.
    """
    count = len(clusters)
    if sum(b**2 for _, b in clusters) ** 2 < 1.5 * sum(b**4 for _, b in clusters):
        return None, None
    above, below = (sum(side) for side in zip(*clusters, strict=True))
    value = above / below
    lost = [(count - 1) * (value - (above - a) / (below - b)) for a, b in clusters]
    error = sqrt(sum(one**2 for one in lost) / count / (count - 1))
    share = [b * count / below for _, b in clusters]
    size_free = [one / own for one, own in zip(lost, share, strict=True)]
    inverse = [1 / own for own in share]
    y = [one**2 for one in size_free]
    slope = 0.0
    if np.ptp(share) > 1e-6:
        slope = float(np.polyfit(inverse, y, 1)[0])
    slope = min(max(slope, 0.0), np.mean(y) / np.mean(inverse))
    variances = [np.mean(y) + slope * (one - np.mean(inverse)) for one in inverse]
    shape = np.array([one / sqrt(v) for one, v in zip(size_free, variances, strict=True)])
    added = np.array([own**2 * v for own, v in zip(share, variances, strict=True)])
    freedom = sum(added) ** 2 / sum(added**2)
    (g, flat), (pooled, pooled_flat) = _moments(np.array(lost)), _moments(shape - shape.mean())
    g = (g / sqrt(count) + pooled * sum(added**1.5) / sum(added) ** 1.5) / 2
    flat = (flat / count + pooled_flat / freedom) / 2
    z = norm.ppf(0.975)
    more = g**2 * (z**4 + 2 * z**2 - 3) / 18 - flat * (z**2 - 3) / 12
    reach = t.ppf(0.975, max(freedom - 1.0, 1.0)) + z * more

    def untransformed(y: float) -> float:
        return float(3 / g * (np.cbrt(1 + g * (y - g / 6)) - 1)) if abs(g) > 1e-9 else y

    return value - untransformed(reach) * error, value - untransformed(-reach) * error


def _moments(values: np.ndarray) -> tuple[float, float]:
    """Return the skewness and the excess kurtosis of values about 0."""
    count = len(values)
    second, third, fourth = (np.mean(values**power) for power in (2, 3, 4))
    corrected = sqrt(count * (count - 1)) / max(count - 2, 1)
    return corrected * third / second**1.5, fourth / second**2 - 3
