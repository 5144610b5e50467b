"""All families and candidates over a table: one pass, bounded, and shards add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import log_ratio
from rcdiag.corrections.correction import Correction
from rcdiag.statistics.block import Block
from rcdiag.statistics.suite import SuiteState, bound_memory, union_of_states
from rcdiag.usecases.sweep.effects import Effect, Settings, effect
from rcdiag.usecases.sweep.gradients import Baseline, Gradients, recorded_advantage
from rcdiag.usecases.sweep.keyed import Array, Keyed
from rcdiag.usecases.sweep.sums import (
    LENGTHS,
    FamilySums,
    Groups,
    base_sums,
    count_lengths,
    family_sums,
    frame,
    groups_of,
    union_of_groups,
)
from rcdiag.usecases.sweep.thresholds import Chunk, chunks

# Arrays of sequences and settings have so many cells at most, 4 MB.
CELLS = 1 << 19
WAITING = 32


@dataclass
class SweepState:
    """What the rows seen so far leave behind."""

    plans: Mapping[str, Sequence[Correction]]  # family or candidate -> its settings
    candidates: tuple[str, ...] = ()  # which of them are judged by their gradients
    grouped: bool = False  # whether rows have a prompt group
    baseline: Baseline | None = None
    keyed: Keyed = field(default_factory=Keyed)
    sums: dict[str, FamilySums] = field(default_factory=dict)  # all but the clusters
    groups: list[Groups] = field(default_factory=list)
    shift: float = -np.inf  # largest log-ratio of a sequence; their ratios are held times exp(-it)
    steps: set[int | None] = field(default_factory=set)
    suites: list[SuiteState] = field(default_factory=list)
    gradients: Gradients = field(default_factory=Gradients)
    # Sequences and tokens by length, [2, LENGTHS + 1].
    lengths: Array = field(default_factory=lambda: np.zeros((2, len(LENGTHS) + 1)))

    def __post_init__(self) -> None:
        self.settings = {name: Settings.of(each) for name, each in self.plans.items()}

    @property
    def width(self) -> int:
        """Settings in all, and one that keeps everything."""
        return 1 + sum(each.count for each in self.settings.values())

    def add(self, block: Block) -> None:
        """Take in the sequences of a block."""
        if not len(block.lengths):
            return
        self.steps |= {None} if block.step is None else set(np.unique(block.step).tolist())
        self.suites.append(SuiteState.of(block))
        self.lengths += count_lengths(block.lengths)
        self._bound()
        most = max((each.count for each in self.settings.values()), default=1)
        with np.errstate(all="ignore"):
            for chunk in chunks(block, recorded_advantage(block), max(1, CELLS // most)):
                self._add_chunk(chunk)
            plans = {name: self.plans[name][0] for name in self.candidates}
            self.gradients.add(block, plans, self.baseline, self.keyed)

    def _bound(self) -> None:
        if len(self.suites) >= WAITING:
            self.suites[:] = [union_of_states(self.suites)]
        if len(self.groups) >= WAITING:
            self.groups[:] = [union_of_groups(self.groups)]
        bound_memory(self.suites)

    def _add_chunk(self, chunk: Chunk) -> None:
        keys, index = self.keyed.place(chunk.rows.cluster)
        self._raise_shift(float(log_ratio(chunk.rows, "sequence").max()))
        parts = frame(chunk, index, self.shift if np.isfinite(self.shift) else 0.0)
        for name, rows in base_sums(chunk, parts).items():
            self.keyed.add(keys, ("", name), rows)
        counts = [np.ones((len(chunk.rows), 1), np.bool_)]
        for family, settings in self.settings.items():
            found = effect(chunk, settings)
            self._add_family(family, keys, family_sums(chunk, found, settings, parts))
            if self.grouped:
                counts.append(_alive(found, settings))
        if self.grouped:
            self.groups.append(_groups(chunk, np.concatenate(counts, axis=1)))

    def _add_family(self, family: str, keys: Any, found: FamilySums) -> None:
        for name, rows in found.clusters.items():
            self.keyed.add(keys, (family, name), rows)
        found.clusters = {}
        if family in self.sums:
            _add_sums(self.sums[family], found)
        else:
            self.sums[family] = found

    def _raise_shift(self, largest: float) -> None:
        """Hold the ratios of sequences relative to a new largest; NaN and infinity stay."""
        old, self.shift = self.shift, float(np.maximum(self.shift, largest))
        if np.isfinite(old) and np.isfinite(self.shift) and self.shift > old:
            for name in ("mass", "lost_mass"):
                self.keyed.scale(name, float(np.exp(old - self.shift)))

    def merge(self, other: SweepState) -> None:
        """Take in what a pass over other rows of the same table left; `other` is used up."""
        top = float(np.maximum(self.shift, other.shift))
        self._raise_shift(top)
        other._raise_shift(top)
        self.keyed.merge(other.keyed)
        for family, found in other.sums.items():
            self._add_family(family, other.keyed.keys, found)
        self.groups += other.groups
        self.steps |= other.steps
        self.lengths += other.lengths
        self.suites += other.suites
        self._bound()
        self.gradients.merge(other.gradients)

    def cluster(self, family: str, name: str) -> Array:
        """Sums by cluster: [clusters, settings], of base sums (family "") [clusters]."""
        return self.keyed.arrays[(family, name)]

    def has(self, family: str, name: str) -> bool:
        return (family, name) in self.keyed.arrays


def _alive(found: Effect, settings: Settings) -> NDArray[np.bool_]:
    lives = found.kept > 0
    return np.broadcast_to(lives, (len(lives), settings.count))


def _groups(chunk: Chunk, lives: NDArray[np.bool_]) -> Groups:
    keys, index = np.unique(chunk.rows.cluster, return_inverse=True)
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(keys)))
    return groups_of(keys, np.add.reduceat(lives[order], starts, axis=0, dtype=np.int32))


def _add_sums(into: FamilySums, found: FamilySums) -> None:
    for name, values in found.totals.items():
        into.totals[name] += values
    into.lengths += found.lengths
    into.least = np.minimum(into.least, found.least)
    into.most = np.maximum(into.most, found.most)
