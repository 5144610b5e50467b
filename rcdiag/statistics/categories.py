"""Profiles by what has names and no order: the training step, the engine, the weights' version.

To add one: a function in `CATEGORIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from rcdiag.results import Profile
from rcdiag.statistics.clusters import ClusterSums, cluster_sums
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import SUMS, profile_of, token_weights
from rcdiag.statistics.ratios import Array

MOST = 60  # names of a category; one with more has no profile
OF_UNKNOWN = "unknown"

Codes = tuple[list[str], NDArray[np.integer]]  # names, and the number of each sequence's or token's


@dataclass(frozen=True, slots=True)
class Category:
    """What rows or tokens are told apart by."""

    title: str
    about: str  # how to read it
    values: Callable[[PolicyPair], Sequence[str] | NDArray | None]  # [sequences] or [tokens]


CATEGORIES: dict[str, Category] = {
    "step": Category(
        "training step",
        "A step far above the others is where something changed; growth over the steps is drift.",
        lambda pair: pair.tokens.step,
    ),
    "engine": Category(
        "engine that sampled",
        "All replicas run the same weights: one that stands apart missed a sync or runs another "
        "build.",
        lambda pair: pair.tokens.engine,
    ),
    "policy_version": Category(
        "version of the weights that sampled",
        "Older weights are farther from the trainer's: growth with age is staleness.",
        lambda pair: pair.tokens.version,
    ),
}


def labels_by_sequence(pair: PolicyPair) -> dict[str, Codes]:
    """Return the categories of a batch: their names, and the number of each row's or token's."""
    codes_by_name: dict[str, Codes] = {}
    for name, category in CATEGORIES.items():
        values = category.values(pair)
        if values is None:
            continue
        names, codes = np.unique(np.asarray(values), return_inverse=True)
        codes_by_name[name] = [_label(one) for one in names.tolist()], codes
    return codes_by_name


def _label(value: object) -> str:
    return OF_UNKNOWN if value in ("", -1, None) else str(value)


@dataclass(frozen=True, slots=True)
class Categories:
    """Sums by cluster for every name of every category; None for one with too many names."""

    sums: Mapping[str, Mapping[str, ClusterSums] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, pair: PolicyPair) -> Categories:
        """Make the sums of one batch."""
        by_token: list[Array] = []
        sums: dict[str, Mapping[str, ClusterSums] | None] = {}
        for name, (labels, codes) in labels_by_sequence(pair).items():
            if len(labels) > MOST:
                sums[name] = None
                continue
            by_token = by_token or token_weights(pair)
            codes = np.repeat(codes, pair.lengths) if len(codes) == len(pair.lengths) else codes
            keys, local = np.unique(pair.tokens.cluster, return_inverse=True)
            cells = np.repeat(local, pair.lengths) * len(labels) + codes
            columns = [
                np.bincount(cells, weights, len(keys) * len(labels)).reshape(len(keys), -1)
                for weights in (None, *by_token)
            ]
            rows = np.stack(columns, axis=2)  # [clusters, labels, SUMS]
            sums[name] = {
                label: cluster_sums(keys[some], rows[some, number])
                for number, label in enumerate(labels)
                if (some := rows[:, number, 0] > 0).any()
            }
        return cls(sums)

    def __add__(self, other: Categories) -> Categories:
        names = dict.fromkeys([*self.sums, *other.sums])
        return Categories(
            {name: _joined(self.sums.get(name, {}), other.sums.get(name, {})) for name in names}
        )

    def finished(self) -> dict[str, Profile]:
        """Return the profile of every category with several names."""
        return {
            name: _profile(name, sums)
            for name, sums in self.sums.items()
            if sums is not None and len(sums) > 1
        }


def _joined(
    one: Mapping[str, ClusterSums] | None, other: Mapping[str, ClusterSums] | None
) -> Mapping[str, ClusterSums] | None:
    if one is None or other is None:
        return None
    common = {label: one[label] + other[label] for label in one if label in other}
    both: dict[str, ClusterSums] = {**one, **other, **common}
    return both if len(both) <= MOST else None


def _profile(name: str, sums: Mapping[str, ClusterSums]) -> Profile:
    """Set the sums of all names beside each other, and read the profile off them."""
    labels = sorted(sums, key=_order)
    wide = [_widened(sums[label], number, len(labels)) for number, label in enumerate(labels)]
    about = CATEGORIES[name]
    return profile_of(reduce(ClusterSums.__add__, wide), labels, about.title, "", about.about)


def _widened(sums: ClusterSums, number: int, names: int) -> ClusterSums:
    """Put the sums of one name into the columns of all names, [clusters, SUMS x names]."""
    wide = np.zeros((len(sums), SUMS, names))
    wide[:, :, number] = sums.sums
    return replace(sums, sums=wide.reshape(len(sums), SUMS * names))


def _order(label: str) -> tuple[bool, float, str]:
    """Order numbers by size, and names by their letters behind them."""
    try:
        return False, float(label), ""
    except ValueError:
        return True, 0.0, label
