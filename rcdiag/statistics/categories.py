"""Profiles by properties with names but no order: training step, engine, version of the weights.

To add one, add a `Category` to `CATEGORIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.results import Profile
from rcdiag.statistics.binned import BY_SEQUENCE, SUMS, BatchBins, SortedBlock
from rcdiag.statistics.clusters import ClusterSums, cluster_sums
from rcdiag.statistics.merging import merge_by_key
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import profile_of

MOST = 60  # a category with more distinct names gets no profile
OF_UNKNOWN = "unknown"


class Category(Struct, frozen=True):
    """A property by whose values rows or tokens are grouped."""

    title: str
    about: str  # how to read it
    values: Callable[[PolicyPair], Sequence[str] | NDArray[Any] | None]  # [sequences]
    by_token: bool = False  # tokens of one sequence may differ: `values` are [tokens]


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
        by_token=True,
    ),
}


def add_categories(block: PolicyPair, by_bin: SortedBlock) -> None:
    """Add the values of all categories that the table has, by sequence or by run of tokens."""
    starts, _ = by_bin.cuts[BY_SEQUENCE]
    for name, category in CATEGORIES.items():
        values = category.values(block)
        if values is None:
            continue
        column = np.asarray(values)
        if not category.by_token:
            by_bin.runs[name] = BY_SEQUENCE, column
            continue
        begins = np.concatenate([[True], column[1:] != column[:-1]])
        begins[starts] = True
        first = np.flatnonzero(begins)
        sequence = np.searchsorted(starts, first, side="right") - 1
        by_bin.by_run(name, (first, sequence), column[first])


def labels_of(values: NDArray[Any]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of a category's distinct values, and the index of each value's name."""
    names, codes = np.unique(values, return_inverse=True)
    unknown = ("", -1, None)
    return [OF_UNKNOWN if one in unknown else str(one) for one in names.tolist()], codes


class Categories(Struct, frozen=True):
    """Sums by cluster for every name of every category; None if a category has too many names."""

    sums: Mapping[str, Mapping[str, ClusterSums] | None] = field(default_factory=dict)

    @classmethod
    def joined(cls, pair: PolicyPair, bins: BatchBins) -> Categories:
        """Compute the sums of a batch from the runs of its blocks."""
        sums: dict[str, Mapping[str, ClusterSums] | None] = {}
        for name in (name for name in CATEGORIES if name in bins.runs):
            runs, values = bins.of_runs(name)
            labels, codes = labels_of(values)
            if len(labels) > MOST:
                sums[name] = None
                continue
            cluster = pair.tokens.cluster[runs.sequence]
            sums[name] = {
                label: cluster_sums(cluster[codes == number], runs.sums[codes == number])
                for number, label in enumerate(labels)
            }
        return cls(sums)

    @classmethod
    def merged(cls, parts: Sequence[Categories]) -> Categories:
        sums: dict[str, Mapping[str, ClusterSums] | None] = {}
        for name in dict.fromkeys(name for part in parts for name in part.sums):
            known = [of for part in parts if (of := part.sums.get(name, {})) is not None]
            both = merge_by_key(known)
            sums[name] = both if len(known) == len(parts) and len(both) <= MOST else None
        return cls(sums)

    def finished(self) -> dict[str, Profile]:
        """Return the profile of every category with several names."""
        return {
            name: _profile(name, sums)
            for name, sums in self.sums.items()
            if sums is not None and len(sums) > 1
        }


def _profile(name: str, sums: Mapping[str, ClusterSums]) -> Profile:
    """Arrange the sums of all names as bins, and compute the profile."""
    labels = sorted(sums, key=_order)
    wide = []
    for number, label in enumerate(labels):  # each name gets its own columns
        own = sums[label]
        columns = np.zeros((len(own), SUMS, len(labels)))
        columns[:, :, number] = own.sums
        wide.append(replace(own, sums=columns.reshape(len(own), SUMS * len(labels))))
    about = CATEGORIES[name]
    return profile_of(ClusterSums.merged(wide), labels, about.title, "", about.about)


def _order(label: str) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by value, and other names alphabetically after them."""
    try:
        return False, float(label), ""
    except ValueError:
        return True, 0.0, label
