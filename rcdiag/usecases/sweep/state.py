"""The state of a sweep: sums of all families and candidates, which is bounded in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct, field

from rcdiag.corrections.apply import Settings, log_ratio
from rcdiag.corrections.correction import Correction
from rcdiag.statistics.clusters import Keys
from rcdiag.statistics.merging import merge, merge_by_key, take_in
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.pareto import UpperTail
from rcdiag.statistics.suite import SuiteState
from rcdiag.usecases.sweep.by_cluster import Array, Index, Places, SumsByCluster
from rcdiag.usecases.sweep.layout import Layout
from rcdiag.usecases.sweep.sketched_gradients import (
    Baseline,
    Buckets,
    candidate_gradients,
    recorded_advantage,
)
from rcdiag.usecases.sweep.sums import (
    LENGTHS,
    FamilyEffect,
    FamilySums,
    Groups,
    base_sums,
    count_lengths,
    frame,
    groups_of,
)
from rcdiag.usecases.sweep.thresholds import Chunk, chunks

# Arrays of sequences and settings have so many cells at most, 2 MB; two families are at work.
CELLS = 1 << 18
# Above so many, clusters are folded: a sweep holds hundreds of numbers per cluster and setting.
# Intervals stay right, and their width is known to sqrt(1 / 512), or 4%.
MAX_CLUSTERS = 256


class SweepPlan(Struct, frozen=True, dict=True):
    """What a sweep tries, declared before the pass so that the states of all batches add up."""

    corrections: Mapping[str, Sequence[Correction]]  # family or candidate -> its settings
    candidates: tuple[str, ...] = ()  # those that are judged by their gradients
    # Candidate -> the family that has it among its settings, and the number of the setting there;
    # a candidate that no family has is added up by itself.
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    grouped: bool = False  # whether rows have a prompt group
    recorded: bool = False  # whether rows have an advantage
    baseline: Baseline | None = None  # stands in for advantages that are not recorded
    tokens: int | None = None  # of the table at most; None where that is not known
    buckets: Buckets = field(default_factory=lambda: Buckets(np.empty(0, np.int32)))

    # Hashes of all prompt groups, ascending, and the number of each; None: hashes are numbers.
    groups: tuple[Keys, Keys] | None = None

    def numbers(self, clusters: Keys) -> Keys:
        """Return the number of the prompt group of each sequence.

        More groups than MAX_CLUSTERS share rows by their numbers, which do not hang on names.
        """
        if self.groups is None:
            return clusters
        hashes, numbers = self.groups
        return numbers[np.searchsorted(hashes, clusters)]

    @property
    def counts(self) -> type[np.number]:
        """Numbers that hold every count of the table's tokens exactly, in four bytes if they do."""
        few = self.tokens is not None and self.tokens <= np.iinfo(np.uint32).max
        return np.uint32 if few else np.float64

    @cached_property
    def settings(self) -> dict[str, Settings]:
        """The settings of every family and candidate as arrays of bounds."""
        return {name: Settings.of(grid) for name, grid in self.corrections.items()}

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """The settings of every family and candidate as they are read off sums."""
        added = {
            name: Layout.of(settings)
            for name, settings in self.settings.items()
            if name not in self.places
        }
        return {name: self._layout(name, added) for name in self.settings}

    def _layout(self, name: str, added: Mapping[str, Layout]) -> Layout:
        if name not in self.places:
            return added[name]
        family, number = self.places[name]
        return added[family].only(number)

    @cached_property
    def added_up(self) -> tuple[str, ...]:
        """Families and candidates that have sums of their own."""
        return tuple(name for name in self.settings if name not in self.places)

    def of_sums(self, name: str) -> str:
        """Return whose sums a family or candidate is read off."""
        return self.places[name][0] if name in self.places else name

    @property
    def without_signal(self) -> bool:
        """Whether the table has neither advantages nor rewards."""
        return not self.recorded and (self.baseline is None or np.isnan(self.baseline.overall))

    @cached_property
    def rejections(self) -> dict[str, slice]:
        """Where the settings of a family stand among all that keep other sequences or tokens.

        Families that reject alike stand at the same place; the first place keeps everything.
        """
        places: dict[tuple[object, ...], slice] = {}
        of_family, end = {}, 1
        for name in self.added_up:
            settings = self.settings[name]
            if not settings.rejections and settings.veto is None:
                of_family[name] = slice(0, 1)
                continue
            bounds = (settings.reject_lower, settings.reject_upper, settings.veto)
            statistics = tuple(rejection.statistic for rejection in settings.rejections)
            key = (statistics, *(None if each is None else each.tobytes() for each in bounds))
            if key not in places:
                places[key] = slice(end, end + settings.count)
                end += settings.count
            of_family[name] = places[key]
        for name, (family, number) in self.places.items():
            place = of_family[family]
            first = place.start + number if place.start else 0
            of_family[name] = slice(first, first + 1)
        return of_family

    @property
    def width(self) -> int:
        """Settings that keep other sequences or tokens, and one that keeps everything."""
        return max((place.stop for place in self.rejections.values()), default=1)


class SweepState:
    """The state of some rows under every setting of a sweep."""

    def __init__(self, plan: SweepPlan, suite: SuiteState) -> None:
        self.plan = plan
        self.suite = suite
        self.clusters = SumsByCluster(MAX_CLUSTERS, counts=plan.counts)
        self.families = {name: FamilySums(plan.counts) for name in plan.added_up}
        self.kept_groups: list[Groups] = []  # to be merged; none without prompt groups
        # The largest log-ratio of a sequence; sums of their ratios are held times exp(-it).
        self.shift = -np.inf
        self.steps: frozenset[int | None] = frozenset()
        # Candidate -> logs of weight times |advantage| of sequences.
        self.tails: dict[str, UpperTail] = {}
        self.lengths = np.zeros((2, len(LENGTHS) + 1))  # sequences and tokens by length

    @classmethod
    def of(cls, pair: PolicyPair, plan: SweepPlan) -> SweepState:
        """The state of one batch, which is not empty."""
        state = cls(plan, SuiteState.of(pair))
        state._add_pair(pair)
        return state

    def take(self, pair: PolicyPair) -> None:
        """Take in the next batch, which is not empty, without a state of its own."""
        self._add_pair(pair)
        self.suite = merge([self.suite, SuiteState.of(pair)])

    def _add_pair(self, pair: PolicyPair) -> None:
        """Take in all of a batch but its suite."""
        plan, step = self.plan, pair.tokens.step
        with np.errstate(all="ignore"):
            rows = self.clusters.rows(plan.numbers(pair.tokens.cluster))
            corrections = {name: plan.corrections[name][0] for name in plan.candidates}
            ends = np.cumsum([len(block.lengths) for block in pair.blocks])
            for block, of_block in zip(pair.blocks, np.split(rows, ends[:-1]), strict=True):
                gradients = candidate_gradients(
                    block, corrections, plan.baseline, plan.buckets, of_block
                )
                for name, values in gradients.sums.items():
                    self.clusters.table(name, values.shape[1:])[gradients.clusters] += values
                self._add_tails(gradients.tails)
            self.steps |= frozenset([None] if step is None else np.unique(step).tolist())
            self.lengths = self.lengths + count_lengths(pair.lengths)
            most = max((layout.left.count for layout in plan.layouts.values()), default=1)
            start = 0
            for chunk in chunks(pair, recorded_advantage(pair), max(1, CELLS // most)):
                self._add_chunk(chunk, rows[start : start + len(chunk.rows)])
                start += len(chunk.rows)

    def add(self, other: SweepState) -> None:
        """Take in the state of the next rows; thresholds are many, so no sum is copied."""
        with np.errstate(all="ignore"):
            factor = self._raise_shift(other.shift)
            shifted = other.clusters
            if factor != 1.0:
                shifted = shifted.copy()
                shifted.scale(SHIFTED, factor)
            self.clusters.add(shifted)
            for family, of_family in other.families.items():
                self.families[family].add(of_family)
        if (groups := other.groups) is not None:
            take_in(self.kept_groups, groups)
        self.steps = self.steps | other.steps
        self.suite = merge([self.suite, other.suite])
        self._add_tails(other.tails)
        self.lengths = self.lengths + other.lengths

    def _add_tails(self, tails: Mapping[str, UpperTail]) -> None:
        self.tails = merge_by_key([self.tails, tails])

    def _add_chunk(self, chunk: Chunk, rows: Index) -> None:
        """Take in some sequences of a batch; `rows` [sequences] are those of their clusters."""
        plan = self.plan
        self._raise_shift(float(log_ratio(chunk.rows, "sequence").max()))
        shift = self.shift if np.isfinite(self.shift) else 0.0
        places = Places(rows, self.clusters.most)
        parts = frame(chunk, places, shift, recorded=plan.recorded)
        for quantity, values in base_sums(chunk, parts).items():
            places.add(self.clusters.table(("", quantity), (1,)), values[:, None])
        groups = parts.group
        counts = np.zeros((groups.size, plan.width)) if plan.grouped else None
        if counts is not None:
            counts[:, 0] = np.bincount(groups.rows, minlength=groups.size)
        # Families that reject alike are counted once, by the first of them.
        counting = {plan.rejections[family].start: family for family in reversed(plan.added_up)}

        for family in plan.added_up:
            effect = FamilyEffect.of(family, plan.layouts[family], chunk, parts)
            effect.add(self.clusters, self.families[family])
            place = plan.rejections[family]
            if counts is not None and place.start and counting[place.start] == family:
                counts[:, place] = effect.group_counts()
            effect.forget()
        if counts is not None:
            take_in(self.kept_groups, groups_of(parts.group_keys, counts))

    def _raise_shift(self, largest: float) -> float:
        """Hold ratios relative to a new largest; the factor for sums that are held by `largest`."""
        old, self.shift = self.shift, float(np.maximum(self.shift, largest))
        if not np.isfinite(self.shift):  # NaN and infinity stay
            return 1.0
        if np.isfinite(old) and self.shift > old:
            self.clusters.scale(SHIFTED, float(np.exp(old - self.shift)))
        return float(np.exp(largest - self.shift))

    @property
    def groups(self) -> Groups | None:
        """The prompt groups that keep sequences; None where rows have no prompt group."""
        return merge(self.kept_groups) if self.kept_groups else None

    @property
    def num_clusters(self) -> int:
        return len(self.clusters)

    def cluster(self, family: str, name: str) -> Array:
        """Sums by cluster: [clusters, settings], of what no setting changes [clusters]."""
        if (family, name) in self.clusters and family in self.plan.places:  # its gradients
            return self.clusters[family, name]
        of = self.plan.of_sums(family)
        sums = self.clusters[of, name if self.has(of, name) else PLAIN.get(name, name)]
        if family in self.plan.layouts and sums.ndim == 3:
            return self.plan.layouts[family].read(name, sums)
        return sums[:, 0] if family == "" else sums

    def rejected(self, family: str, name: str) -> Array:
        """Sums over the sequences that settings do not keep, [clusters, settings]."""
        sums = self.clusters[self.plan.of_sums(family), name]
        return self.plan.layouts[family].read(name, sums, rejected=True)

    def has(self, family: str, name: str) -> bool:
        """Tell whether there are sums of a quantity."""
        return (self.plan.of_sums(family), name) in self.clusters


# Where whole sequences weigh 1 or nothing, their mean weight says whether they are kept.
PLAIN = {"means": "alive", "squared_means": "alive"}
# Sums of ratios of whole sequences, which are held times exp(-shift).
SHIFTED = ("mass",)
