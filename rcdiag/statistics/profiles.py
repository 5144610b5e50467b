"""Profiles show the mismatch of tokens in bins along an axis, with cluster-robust intervals.

To add a profile: one entry in `PROFILES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import MetricValue, Profile, ProfileBin
from rcdiag.statistics.clusters import ClusterSums, cluster_sums
from rcdiag.statistics.intervals import ratio_interval
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import Array, k3
from rcdiag.table.segments import segment_sum

PROBABILITIES = (1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99)
ENTROPIES = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
POSITIONS = tuple(2**power for power in range(18))
TURNS = tuple(range(2, 11))


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis along which tokens are sorted into bins."""

    title: str
    unit: str
    edges: tuple[float, ...]  # bins are [edge, next edge), and what lies below and above
    # [tokens], or [sequences] where all tokens of a sequence share it; None where there is none
    values: Callable[[PolicyPair], NDArray | None]
    about: str  # how to read it
    needs: str = ""  # the column without which there is no such profile
    logarithmic: bool = False  # values are logs of what the edges say
    whole_from: int | None = None  # values are whole numbers, of which this is the least

    def labels(self) -> list[str]:
        """Return the label of every bin, len(edges) + 1."""
        if self.whole_from is None:
            inner = [f"{a:g}-{b:g}" for a, b in pairwise(self.edges)]
            return [f"< {self.edges[0]:g}", *inner, f">= {self.edges[-1]:g}"]
        starts = [self.whole_from, *map(int, self.edges)]
        inner = [f"{a}" if a == b - 1 else f"{a}-{b - 1}" for a, b in pairwise(starts)]
        return [*inner, f"{starts[-1]}+"]

    def bins(self, values: NDArray) -> NDArray[np.int64]:
        """Return the bin of each value, in the shape of `values`; -1 where it is NaN."""
        edges = np.log(self.edges) if self.logarithmic else np.asarray(self.edges, np.float64)
        numbers = np.searchsorted(edges, values, side="right")
        return np.where(np.isnan(values), -1, numbers) if values.dtype.kind == "f" else numbers


def _mean_log_prob(pair: PolicyPair) -> Array:
    return 0.5 * (pair.values.behavior + pair.values.target)


def _turn(pair: PolicyPair) -> NDArray:
    return np.ones(len(pair.lengths), np.int64) if pair.tokens.turn is None else pair.tokens.turn


def _reward_sign(pair: PolicyPair) -> Array | None:
    return None if pair.tokens.reward is None else np.sign(pair.tokens.reward)


def _entropy(pair: PolicyPair) -> Array | None:
    """Return the entropy of the policy that is listed last, which trains, where it has any."""
    return list(pair.tokens.entropy.values())[-1] if pair.tokens.entropy else None


PROFILES: dict[str, Axis] = {
    "position": Axis(
        "position in the response",
        "tokens before",
        POSITIONS,
        lambda pair: pair.tokens.position,
        "Growth with the position points at attention, position encoding or cache; noise is flat.",
        whole_from=0,
    ),
    "length": Axis(
        "sampled tokens of the sequence",
        "tokens",
        tuple(2**power for power in range(4, 18)),
        lambda pair: pair.lengths,
        "Longer sequences collect more log-ratio; per token it should not depend on the length.",
        whole_from=1,
    ),
    "behavior_probability": Axis(
        "probability under the behavior policy",
        "",
        PROBABILITIES,
        lambda pair: pair.values.behavior,
        "Rounding shows at low probabilities. A bin of low behavior probabilities holds more than "
        "its share of tokens that this policy underrates, which lifts the mean log-ratio there.",
        logarithmic=True,
    ),
    "target_probability": Axis(
        "probability under the target policy",
        "",
        PROBABILITIES,
        lambda pair: pair.values.target,
        "A bin of low target probabilities holds more than its share of tokens that the target "
        "underrates, which lowers the mean log-ratio there.",
        logarithmic=True,
    ),
    "mean_probability": Axis(
        "geometric mean of both probabilities",
        "",
        PROBABILITIES,
        _mean_log_prob,
        "Symmetric in both policies, so free of the selection that a bin by one policy's "
        "probability makes: believe this one.",
        logarithmic=True,
    ),
    "entropy": Axis(
        "entropy of the next-token distribution",
        "nats",
        ENTROPIES,
        _entropy,
        "Where the model hesitates numerical noise shows, where it is sure it does not.",
        needs="a `{policy}_entropy` column",
    ),
    "turn": Axis(
        "turn",
        "",
        TURNS,
        _turn,
        "Turns after a tool's answer see text that the policy did not write.",
        whole_from=1,
    ),
    "reward": Axis(
        "sign of the reward",
        "",
        (0.0, 1.0),
        _reward_sign,
        "A difference between signs biases the gradient even where the mean mismatch is small.",
        needs="a `reward` column",
    ),
}
LABELS = {"reward": ["negative", "zero", "positive"]}


# Tokens, log_ratio, log_ratio^2 and k3 of each bin.
SUMS = 4


@dataclass(frozen=True, slots=True)
class Profiles:
    """Sums by cluster and bin, along every axis that the table has values for."""

    sums: dict[str, ClusterSums] = field(default_factory=dict)

    @classmethod
    def of(cls, pair: PolicyPair, names: Sequence[str] = tuple(PROFILES)) -> Profiles:
        weights = (None, *token_weights(pair))
        with np.errstate(invalid="ignore"):
            of_sequences: list[Array | None] = [
                np.asarray(
                    pair.lengths if values is None else segment_sum(values, pair.lengths), float
                )
                for values in weights
            ]
        cluster, local = np.unique(pair.tokens.cluster, return_inverse=True)
        local_of_token = np.repeat(local, pair.lengths)
        sums = {}
        for name in names:
            axis = PROFILES[name]
            values = axis.values(pair)
            if values is None:
                continue
            if len(values) == len(local):
                rows = _rows(axis, values, local, len(cluster), of_sequences)
            else:
                rows = _rows(axis, values, local_of_token, len(cluster), weights)
            sums[name] = cluster_sums(cluster, rows)
        return cls(sums)

    def __add__(self, other: Profiles) -> Profiles:
        """Return the sums of both; an axis that one lacks has no tokens there."""
        one, two = self.sums, other.sums
        return Profiles(
            {
                name: one[name] + two[name] if name in one and name in two else (one | two)[name]
                for name in PROFILES
                if name in one or name in two
            }
        )


def token_weights(pair: PolicyPair) -> list[Array]:
    """Return what a profile sums over the tokens of a bin, beside their number; each [tokens]."""
    with np.errstate(invalid="ignore"):
        return [pair.log_ratio, np.square(pair.log_ratio), k3(pair.values.ratios)]


def _rows(
    axis: Axis,
    values: NDArray,
    cluster: NDArray[np.int64],
    clusters: int,
    weights: Sequence[Array | None],
) -> Array:
    """Return sums by cluster and bin, [clusters, bins * SUMS]; no value means no bin."""
    edges = np.log(axis.edges) if axis.logarithmic else np.asarray(axis.edges, dtype=np.float64)
    bins = len(edges) + 1
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(0, bool)
    cells = cluster * bins + np.searchsorted(edges, values, side="right")
    if missing.any():
        cells = cells[~missing]
        weights = [None if values is None else values[~missing] for values in weights]
    sums = [np.bincount(cells, values, clusters * bins) for values in weights]
    sums = [column.reshape(clusters, bins) for column in sums]
    return np.concatenate(sums, axis=1)


def finished(profiles: Profiles) -> dict[str, Profile]:
    """Return every profile with its filled bins; that of turns only where a row has several."""
    made = {name: _profile(name, sums) for name, sums in profiles.sums.items()}
    return {
        name: profile for name, profile in made.items() if name != "turn" or len(profile.bins) > 1
    }


def _profile(name: str, sums: ClusterSums) -> Profile:
    axis = PROFILES[name]
    labels = LABELS.get(name) or axis.labels()
    return profile_of(sums, labels, axis.title, axis.unit, axis.about)


def profile_of(
    sums: ClusterSums, labels: Sequence[str], title: str, unit: str, about: str
) -> Profile:
    """Read a profile off sums by cluster and bin, [clusters, SUMS * bins]; empty bins are none."""
    tokens, log_ratio, squares, k3_sum = np.split(sums.sums, SUMS, axis=1)
    mean = _estimates(log_ratio, tokens)
    square = _estimates(squares, tokens, floor=0.0)
    kl = _estimates(k3_sum, tokens, floor=0.0)
    all_squares = float(squares.sum())
    bins = [
        ProfileBin(
            label=labels[index],
            tokens=int(count),
            log_ratio_mean=mean[index],
            log_ratio_rms=_root(square[index]),
            k3_kl=kl[index],
            share_of_squares=float(squares[:, index].sum()) / all_squares if all_squares else 0.0,
        )
        for index, count in enumerate(tokens.sum(axis=0))
        if count
    ]
    return Profile(title=title, unit=unit, about=about, bins=bins)


def _estimates(sums: Array, tokens: Array, floor: float = -np.inf) -> list[MetricValue]:
    """Return the mean per token of each bin, with its interval."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = sums.sum(axis=0) / tokens.sum(axis=0)
        low, high = ratio_interval(sums, tokens)
    return [
        MetricValue(value=float(v), low=max(float(a), floor), high=float(b))
        if np.isfinite(a) and np.isfinite(b)
        else MetricValue(value=float(v))
        for v, a, b in zip(value, low, high, strict=True)
    ]


def _root(square: MetricValue) -> MetricValue:
    def root(value: float | None) -> float | None:
        return None if value is None else float(np.sqrt(value))

    return MetricValue(value=root(square.value), low=root(square.low), high=root(square.high))
