"""Mismatch along an axis: tokens in bins, with counts and cluster-robust intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import MetricValue, Profile, ProfileBin
from rcdiag.segments import segment_sum
from rcdiag.statistics.axes import LABELS, PROFILES, Axis
from rcdiag.statistics.block import Block
from rcdiag.statistics.clusters import ClusterSums, cluster_sums, union
from rcdiag.statistics.intervals import ratio_interval
from rcdiag.statistics.ratios import Array, k3

# Tokens, log_ratio, log_ratio^2 and k3 of each bin.
SUMS = 4


@dataclass
class Profiles:
    """Sums by cluster and bin, along every axis that the table has values for."""

    sums: dict[str, ClusterSums] = field(default_factory=dict)

    @classmethod
    def of(cls, block: Block, names: Sequence[str] = tuple(PROFILES)) -> Profiles:
        log_ratio = block.values.ratios.log_ratio
        with np.errstate(invalid="ignore"):
            weights = (None, log_ratio, np.square(log_ratio), k3(block.values.ratios))
            of_sequences: list[Array | None] = [
                np.asarray(
                    block.lengths if each is None else segment_sum(each, block.lengths), float
                )
                for each in weights
            ]
        cluster, local = np.unique(block.cluster, return_inverse=True)
        local_of_token = np.repeat(local, block.lengths)
        found = {}
        for name in names:
            axis = PROFILES[name]
            values = axis.values(block)
            if values is None:
                continue
            if len(values) == len(local):
                rows = _rows(axis, values, local, len(cluster), of_sequences)
            else:
                rows = _rows(axis, values, local_of_token, len(cluster), weights)
            found[name] = cluster_sums(cluster, rows)
        return cls(found)


def _rows(
    axis: Axis,
    values: NDArray,
    cluster: NDArray[np.int64],
    clusters: int,
    weights: Sequence[Array | None],
) -> Array:
    """[clusters, bins * SUMS]; tokens without a value (NaN) are in no bin."""
    edges = np.log(axis.edges) if axis.logarithmic else np.asarray(axis.edges, dtype=np.float64)
    bins = len(edges) + 1
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(0, bool)
    cells = cluster * bins + np.searchsorted(edges, values, side="right")
    if missing.any():
        cells = cells[~missing]
        weights = [None if each is None else each[~missing] for each in weights]
    sums = [np.bincount(cells, each, clusters * bins).reshape(clusters, bins) for each in weights]
    return np.concatenate(sums, axis=1)


def union_of_profiles(parts: Sequence[Profiles]) -> Profiles:
    """All parts' sums together; an axis that a part lacks has no tokens there."""
    names = [name for name in PROFILES if any(name in part.sums for part in parts)]
    return Profiles(
        {name: union([part.sums[name] for part in parts if name in part.sums]) for name in names}
    )


def finished(profiles: Profiles) -> dict[str, Profile]:
    """Each profile with its filled bins; where all rows have one turn there is nothing to say."""
    found = {name: _profile(name, sums) for name, sums in profiles.sums.items()}
    return {
        name: profile for name, profile in found.items() if name != "turn" or len(profile.bins) > 1
    }


def _profile(name: str, sums: ClusterSums) -> Profile:
    axis = PROFILES[name]
    tokens, log_ratio, squares, k3_sum = np.split(sums.sums, SUMS, axis=1)
    labels = LABELS.get(name) or axis.labels()
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
    return Profile(title=axis.title, unit=axis.unit, about=axis.about, bins=bins)


def _estimates(sums: Array, tokens: Array, floor: float = -np.inf) -> list[MetricValue]:
    """Mean per token of each bin, with its interval."""
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
