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
from rcdiag.statistics.binned import SUMS, BinnedTokens, BinNumbers
from rcdiag.statistics.clusters import ClusterSums
from rcdiag.statistics.merging import merge_by_key
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import profile_of

MOST = 60  # a category with more distinct names gets no profile
OF_UNKNOWN = "unknown"


class Category(Struct, frozen=True):
    """A property by whose values rows or tokens are grouped."""

    title: str
    about: str  # how to read it
    values: Callable[[PolicyPair], NDArray[Any] | None]  # [sequences], or [tokens] if they differ


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


class NamedBins(Struct, frozen=True):
    """The names of a category in a batch, and the numbers of these names as bins."""

    labels: list[str]
    bins: BinNumbers


def categories_of(pair: PolicyPair) -> dict[str, NamedBins | None]:
    """Sort a batch by the names of every category that it has; None if there are too many names."""
    named: dict[str, NamedBins | None] = {}
    for name, category in CATEGORIES.items():
        values = category.values(pair)
        if values is None:
            continue
        # Few names need a look-up: those of neighbours are mostly equal.
        first = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
        names, codes = np.unique(values[first], return_inverse=True)
        labels = [OF_UNKNOWN if one in ("", -1) else str(one) for one in names.tolist()]
        numbers = np.repeat(codes, np.diff(first, append=len(values)))
        few = len(labels) <= MOST
        named[name] = NamedBins(labels, BinNumbers(numbers, len(labels))) if few else None
    return named


class Categories(Struct, frozen=True):
    """Sums by cluster for every name of every category; None if a category has too many names."""

    sums: Mapping[str, Mapping[str, ClusterSums] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, named: Mapping[str, NamedBins | None], bins: BinnedTokens) -> Categories:
        """Take the sums of a batch from its bins; of each name only clusters that have it."""
        sums: dict[str, Mapping[str, ClusterSums] | None] = {}
        for name, one in named.items():
            sums[name] = None
            if one is not None:
                cells = bins.cells[name].swapaxes(0, 1)  # [names, clusters, SUMS]
                own = zip(one.labels, map(bins.clusters.of_filled, cells), strict=True)
                sums[name] = dict(own)
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
        columns = np.zeros((len(own), len(SUMS), len(labels)))
        columns[:, :, number] = own.sums
        wide.append(replace(own, sums=columns.reshape(len(own), len(SUMS) * len(labels))))
    about = CATEGORIES[name]
    return profile_of(ClusterSums.merged(wide), labels, about.title, "", about.about)


def _order(label: str) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by value, and other names alphabetically after them."""
    try:
        return False, float(label), ""
    except ValueError:
        return True, 0.0, label
