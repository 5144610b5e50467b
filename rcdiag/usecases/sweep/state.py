"""The state of a sweep: sums of all families and candidates, which is bounded in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import Effect, Settings, apply, log_ratio
from rcdiag.corrections.correction import Correction
from rcdiag.statistics.clusters import ClusterSums, Grouping, grouping
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.pareto import UpperTail
from rcdiag.statistics.suite import SuiteState
from rcdiag.usecases.sweep.gradients import Baseline, candidate_gradients, recorded_advantage
from rcdiag.usecases.sweep.sums import (
    FamilySums,
    Groups,
    base_sums,
    count_lengths,
    family_sums,
    frame,
    groups_of,
    sums_by_cluster,
)
from rcdiag.usecases.sweep.thresholds import Array, Chunk, chunks

# Arrays of sequences and settings have so many cells at most, 4 MB.
CELLS = 1 << 19
# Above so many, clusters are folded: a sweep holds hundreds of numbers per cluster and setting.
# Intervals stay right, and their width is known to sqrt(1 / 512), or 4%.
MAX_CLUSTERS = 256

Name = tuple[str, str]  # family or candidate ("" for what no setting changes), and the quantity


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep tries, declared before the pass so that the states of all batches add up."""

    corrections: Mapping[str, Sequence[Correction]]  # family or candidate -> its settings
    candidates: tuple[str, ...] = ()  # those that are judged by their gradients
    grouped: bool = False  # whether rows have a prompt group
    recorded: bool = False  # whether rows have an advantage
    baseline: Baseline | None = None  # stands in for advantages that are not recorded

    @cached_property
    def settings(self) -> dict[str, Settings]:
        """The settings of every family and candidate as arrays of bounds."""
        return {name: Settings.of(grid) for name, grid in self.corrections.items()}

    @property
    def without_signal(self) -> bool:
        """Whether the table has neither advantages nor rewards."""
        return not self.recorded and (self.baseline is None or np.isnan(self.baseline.overall))

    @property
    def width(self) -> int:
        """Settings in all, and one that keeps everything."""
        return 1 + sum(settings.count for settings in self.settings.values())


@dataclass
class SweepState:
    """The state of some rows under every setting of a sweep."""

    plan: SweepPlan
    clusters: dict[Name, ClusterSums]
    families: dict[str, FamilySums]
    groups: Groups | None  # None where rows have no prompt group
    shift: float  # largest log-ratio of a sequence; sums of their ratios are held times exp(-it)
    steps: frozenset[int | None]
    suite: SuiteState
    tails: dict[str, UpperTail]  # candidate -> logs of weight times |advantage| of sequences
    lengths: Array  # sequences and tokens by length, [2, LENGTHS + 1]

    @classmethod
    def of(cls, pair: PolicyPair, plan: SweepPlan) -> SweepState:
        """The state of one batch, which is not empty."""
        lengths = np.zeros_like(count_lengths(pair.lengths))
        suite = SuiteState.of(pair)
        state = cls(plan, {}, {}, None, -np.inf, frozenset(), suite, {}, lengths)
        state._add_pair(pair)
        return state

    def take(self, pair: PolicyPair) -> None:
        """Take in the next batch, which is not empty, without a state of its own."""
        self.suite = self.suite + SuiteState.of(pair)
        self._add_pair(pair)

    def _add_pair(self, pair: PolicyPair) -> None:
        """Take in all of a batch but its suite."""
        plan, step = self.plan, pair.tokens.step
        with np.errstate(all="ignore"):
            gradients = candidate_gradients(
                pair,
                {name: plan.corrections[name][0] for name in plan.candidates},
                plan.baseline,
                self._grouping(pair.tokens.cluster),
            )
            for name, sums in gradients.clusters.items():
                self._add_sums(name, sums)
            self._add_tails(gradients.tails)
            self.steps |= frozenset([None] if step is None else np.unique(step).tolist())
            self.lengths = self.lengths + count_lengths(pair.lengths)
            most = max((settings.count for settings in plan.settings.values()), default=1)
            for chunk in chunks(pair, recorded_advantage(pair), max(1, CELLS // most)):
                self._add_chunk(chunk)

    def __add__(self, other: SweepState) -> SweepState:
        both = SweepState(
            self.plan,
            {name: sums.copy() for name, sums in self.clusters.items()},
            {name: sums.copy() for name, sums in self.families.items()},
            self.groups,
            self.shift,
            self.steps,
            self.suite,
            self.tails,
            self.lengths,
        )
        both += other
        return both

    def __iadd__(self, other: SweepState) -> SweepState:
        """Take in the state of the next rows; thresholds are many, so no sum is copied."""
        with np.errstate(all="ignore"):
            factor = self._raise_shift(other.shift)
            for name, sums in other.clusters.items():
                self._add_sums(name, sums.scaled(factor) if name[1] in SHIFTED else sums)
            for family, of_family in other.families.items():
                self._add_family(family, of_family)
        self.groups = _added(self.groups, other.groups)
        self.steps = self.steps | other.steps
        self.suite = self.suite + other.suite
        self._add_tails(other.tails)
        self.lengths = self.lengths + other.lengths
        return self

    def _add_tails(self, tails: Mapping[str, UpperTail]) -> None:
        self.tails = {
            name: tail + tails[name] if name in tails and name in self.tails else tail
            for name, tail in ({**tails} | self.tails).items()
        }

    def _add_chunk(self, chunk: Chunk) -> None:
        """Take in some sequences of a batch."""
        by_cluster = self._grouping(chunk.rows.cluster)
        self._raise_shift(float(log_ratio(chunk.rows, "sequence").max()))
        parts = frame(chunk, by_cluster.index, self.shift if np.isfinite(self.shift) else 0.0)
        for name, sums in base_sums(chunk, parts).items():
            self._add_sums(("", name), by_cluster.of_clusters(sums))
        counts = [np.ones((len(chunk.rows), 1), np.bool_)]
        for family, settings in self.plan.settings.items():
            effect = apply(chunk, settings)
            self._add_family(family, family_sums(chunk, effect, settings, parts))
            for name, sums in sums_by_cluster(chunk, effect, settings, parts).items():
                self._add_sums((family, name), by_cluster.of_clusters(sums))
            if self.plan.grouped:
                counts.append(_alive(effect, settings))
        if self.plan.grouped:
            self.groups = _added(self.groups, _groups(chunk, np.concatenate(counts, axis=1)))

    def _grouping(self, clusters: NDArray[np.uint64]) -> Grouping:
        """Group some sequences by cluster, folded where the sums so far are: these add at once."""
        so_far = self.clusters.get(("", "sequences"))
        if so_far is None or not so_far.folded:
            return grouping(clusters, MAX_CLUSTERS)
        keys, index = np.unique(clusters % np.uint64(MAX_CLUSTERS), return_inverse=True)
        return Grouping(keys, index, MAX_CLUSTERS, folded=True)

    def _add_sums(self, name: Name, sums: ClusterSums) -> None:
        if name in self.clusters:
            self.clusters[name] += sums
        else:
            self.clusters[name] = sums

    def _add_family(self, family: str, sums: FamilySums) -> None:
        if family in self.families:
            self.families[family] += sums
        else:
            self.families[family] = sums

    def _raise_shift(self, largest: float) -> float:
        """Hold ratios relative to a new largest; the factor for sums that are held by `largest`."""
        old, self.shift = self.shift, float(np.maximum(self.shift, largest))
        if not np.isfinite(self.shift):  # NaN and infinity stay
            return 1.0
        if np.isfinite(old) and self.shift > old:
            for name in self.clusters:
                if name[1] in SHIFTED:
                    self.clusters[name] = self.clusters[name].scaled(np.exp(old - self.shift))
        return float(np.exp(largest - self.shift))

    @property
    def num_clusters(self) -> int:
        return len(self.clusters["", "sequences"])

    def cluster(self, family: str, name: str) -> Array:
        """Sums by cluster: [clusters, settings], of what no setting changes [clusters]."""
        return self.clusters[family, name].sums

    def has(self, family: str, name: str) -> bool:
        return (family, name) in self.clusters


# Sums of ratios of whole sequences, which are held times exp(-shift).
SHIFTED = ("mass", "lost_mass")


def _added(one: Groups | None, other: Groups | None) -> Groups | None:
    return other if one is None else one if other is None else one + other


def _alive(effect: Effect, settings: Settings) -> NDArray[np.bool_]:
    lives = effect.kept > 0
    return np.broadcast_to(lives, (len(lives), settings.count))


def _groups(chunk: Chunk, lives: NDArray[np.bool_]) -> Groups:
    keys, index = np.unique(chunk.rows.cluster, return_inverse=True)
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(keys)))
    return groups_of(keys, np.add.reduceat(lives[order], starts, axis=0, dtype=np.int32))
