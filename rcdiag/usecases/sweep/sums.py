"""What is added up of the effects of settings: by cluster, by length, by prompt group, over all.

Sums, a least and a most add up by themselves. Whether a prompt group keeps at least two sequences
is known from two bits per group and setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.corrections.apply import Effect, apply, log_ratio
from rcdiag.corrections.arithmetic import SAFETY_BOUND
from rcdiag.corrections.quantities import true_ratio, unsafe
from rcdiag.usecases.sweep.by_cluster import Array, Index, Places, SumsByCluster
from rcdiag.usecases.sweep.layout import UNKNOWN, Layout, SequenceBins
from rcdiag.usecases.sweep.thresholds import Chunk

Bits = NDArray[np.uint8]

# Groups whose bits are spread out at a time.
UNPACKED = 1024


class Groups(Struct, frozen=True):
    """The prompt groups that keep at least one sequence, and at least two: one bit for either."""

    keys: NDArray[np.uint64]  # [groups] ascending
    one: Bits  # [groups, settings / 8]
    two: Bits  # [groups, settings / 8]

    @classmethod
    def merged(cls, parts: Sequence[Groups]) -> Groups:
        """Join the groups of parts: one sequence kept in each of two makes two."""
        keys = reduce(np.union1d, [part.keys for part in parts])
        one = np.zeros((len(keys), parts[0].one.shape[1]), np.uint8)
        two = np.zeros_like(one)
        for part in parts:
            at = np.searchsorted(keys, part.keys)
            two[at] |= part.two | (one[at] & part.one)
            one[at] |= part.one
        return cls(keys, one, two)

    def kept(self, settings: int) -> NDArray[np.int64]:
        """Count the groups with two kept sequences, [settings]."""
        counts = np.zeros(settings, np.int64)
        for start in range(0, len(self.keys), UNPACKED):
            part = self.two[start : start + UNPACKED]
            counts += np.unpackbits(part, axis=1, count=settings).sum(axis=0, dtype=np.int64)
        return counts


def groups_of(keys: NDArray[np.uint64], counts: NDArray) -> Groups:
    """Make groups from numbers of kept sequences, [groups, settings]."""
    return Groups(keys, np.packbits(counts >= 1, axis=1), np.packbits(counts >= 2, axis=1))


# Lengths up to these are counted together: each by itself at first, then in steps of 4%.
LENGTHS = np.unique(
    np.concatenate([np.arange(1, 33), np.round(2.0 ** np.arange(5, 20, 0.0625))])
).astype(np.int64)

Sums = dict[str, Array]


class Frame(Struct, frozen=True):
    """How the sequences of a chunk are added up."""

    cluster: Places  # the row of their cluster
    length: Places  # the bin of their length
    group: Places  # the number of their prompt group in the chunk
    group_keys: NDArray[np.uint64]  # [groups]
    signals: dict[str, Array]  # [sequences] rewards, advantages; NaN = unknown
    mass: Array  # [sequences] ratio of the sequence, times exp(-shift)
    true: Array  # [sequences] the same as it is


def frame(chunk: Chunk, clusters: Places, shift: float, *, recorded: bool) -> Frame:
    """Lay out how sequences are added up; `recorded` tells whether they may have an advantage."""
    rows = chunk.rows
    logs = log_ratio(rows, "sequence")
    keys, group = np.unique(rows.cluster, return_inverse=True)
    signals = {"reward": rows.reward}
    if recorded:
        signals["advantage"] = chunk.advantage
    return Frame(
        clusters,
        Places(np.searchsorted(LENGTHS, rows.lengths), len(LENGTHS) + 1),
        Places(group, len(keys)),
        keys,
        signals,
        np.exp(logs - shift),
        np.exp(logs),
    )


def count_lengths(lengths: NDArray[np.int64]) -> Array:
    """Count sequences and their tokens by the bins of LENGTHS, [2, LENGTHS + 1]."""
    bins = np.searchsorted(LENGTHS, lengths)
    size = len(LENGTHS) + 1
    return np.stack([np.bincount(bins, None, size), np.bincount(bins, lengths, size)])


def base_sums(chunk: Chunk, parts: Frame) -> Sums:
    """Return what does not depend on the settings, [sequences]."""
    rows = chunk.rows
    columns = {
        "tokens": rows.lengths.astype(np.float64),
        "sequences": np.ones(len(rows)),
        "true": rows.sum(true_ratio),
        "mass": parts.mass,
        "seq_true": parts.true,
        "unsafe": rows.sum(unsafe),
        "unsafe_seq": (np.abs(log_ratio(rows, "sequence")) >= SAFETY_BOUND).astype(np.float64),
        "above_clamp": (chunk.above_clamp > 0).astype(np.float64),
        "length_squared": np.square(rows.lengths.astype(np.float64)),
    }
    for name, values in parts.signals.items():
        columns[name] = np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)
        columns[f"{name}_count"] = (~np.isnan(values)).astype(np.float64)
    return columns


class FamilySums(Struct):
    """What the settings of a family do to some sequences, added up over all of them.

    Sums are by bin and column of the family's layout.
    """

    counts: type[np.number] = np.float64  # in which kept tokens are counted
    totals: Sums = field(default_factory=dict)  # name -> [bins, columns]
    lengths: Array | None = None  # [LENGTHS + 1, bins, columns] kept tokens
    # Share of tokens kept of the sequence where it is least and most, of what the layout leaves of
    # the settings, [columns]; 1 where no token is rejected by itself.
    least: Array = field(default_factory=lambda: np.ones(1))
    most: Array = field(default_factory=lambda: np.zeros(1))

    def add(self, other: FamilySums) -> None:
        """Add in place."""
        for name, values in other.totals.items():
            self.total(name, values.shape)[...] += values
        if other.lengths is not None:
            self.of_lengths(other.lengths.shape[1:])[...] += other.lengths
        self.extremes(other.least, other.most)

    def total(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return the sums of a quantity [bins, columns] to be added to."""
        if name not in self.totals:
            self.totals[name] = np.zeros(shape)
        return self.totals[name]

    def of_lengths(self, shape: tuple[int, ...]) -> Array:
        """Return the kept tokens by length, bin and column to be added to."""
        if self.lengths is None:
            self.lengths = np.zeros((len(LENGTHS) + 1, *shape), self.counts)
        return self.lengths

    def extremes(self, least: Array, most: Array) -> None:
        """Take in the least and the most of further sequences."""
        self.least = np.minimum(self.least, least)
        self.most = np.maximum(self.most, most)


class FamilyEffect(Struct, frozen=True):
    """What the settings of a family do to the sequences of a chunk."""

    family: str
    layout: Layout
    chunk: Chunk
    parts: Frame
    effect: Effect  # of what the layout leaves of the settings

    @classmethod
    def of(cls, family: str, layout: Layout, chunk: Chunk, parts: Frame) -> FamilyEffect:
        """Apply the settings of a family to a chunk."""
        return cls(family, layout, chunk, parts, apply(chunk, layout.left))

    def add(self, clusters: SumsByCluster, sums: FamilySums) -> None:
        """Add the effect to the sums by cluster, and to those of the family."""
        columns, totals = self._columns()
        kept, of_lives = self.effect.kept, self._of_lives
        weighed, unbinned = self.layout.weighed, self.parts.cluster
        binned = _within(unbinned, self._bins(weighed), weighed)
        for name, values in columns.items():
            bins = self.layout.bins_of(name)
            width = kept.shape[1] if name in of_lives else values.shape[1]
            table = clusters.table((self.family, name), _shape(bins, width))
            (unbinned if bins is None else binned).add(_flat(table), values)
        in_bins = None
        if weighed is not None:
            in_bins = Places(self._bins(weighed), weighed.windows.count)
        for name, values in totals.items():
            bins = self.layout.bins_of(name)
            total = sums.total(name, _shape(bins, values.shape[1]))
            if bins is None or in_bins is None:
                total[0] += values.sum(axis=0)
            else:
                in_bins.add(total, values)
        bins = self.layout.kept
        table = sums.of_lengths(_shape(bins, kept.shape[1]))
        _within(self.parts.length, self._bins(bins), bins).add(_flat(table), kept)
        if self.layout.left.rejects_tokens:
            share = self._share
            sums.extremes(share.min(axis=0), share.max(axis=0))
        else:
            sums.extremes(np.ones(1), np.ones(1))

    def forget(self) -> None:
        """Free what no other family reads of the chunk."""
        for name in ("bins", "lives", "share"):
            self.chunk.made.pop((self.family, name), None)

    def group_counts(self) -> Array:
        """Count the sequences that every setting keeps of the prompt groups, [groups, settings]."""
        bins, group = self.layout.kept, self.parts.group
        counts = np.zeros((group.size, *_shape(bins, self.effect.kept.shape[1])))
        _within(group, self._bins(bins), bins).add(_flat(counts), self._lives.astype(np.float64))
        return self.layout.read("alive", counts)

    @property
    def _lives(self) -> NDArray[np.bool_]:
        """Which sequences keep a token: [sequences, columns]; one column where all of them do."""

        def lives() -> NDArray[np.bool_]:
            every = self.effect.kept > 0
            return every[:, :1] if every.all() else every

        return self.chunk.once((self.family, "lives"), lives)

    @property
    def _share(self) -> Array:
        """Share of its tokens that every sequence keeps, [sequences, columns]."""
        return self.chunk.once((self.family, "share"), lambda: self.effect.kept / self._lengths)

    @property
    def _of_lives(self) -> set[str]:
        """Quantities that depend on which sequences keep a token, and on nothing else."""
        return {"alive", *self.parts.signals, *(f"{name}{UNKNOWN}" for name in self.parts.signals)}

    @property
    def _lengths(self) -> Array:
        return self.chunk.rows.lengths[:, None].astype(np.float64)

    def _bins(self, bins: SequenceBins | None) -> Index:
        """Return the bin of every sequence."""
        if bins is None:
            return np.zeros(len(self.chunk.rows), np.int64)
        return self.chunk.once((self.family, "bins"), lambda: bins.bins(self.chunk))

    def _columns(self) -> tuple[Sums, Sums]:
        """Return what intervals need by cluster, and what is needed over all sequences alone.

        Both are [sequences, columns], or one column where the settings agree.
        """
        left, parts, chunk = self.layout.left, self.parts, self.chunk
        lives = self._lives
        alive = lives.astype(np.float64)
        columns, totals = {"kept": self.effect.kept, "alive": alive}, {}
        means = alive
        if left.rejects_tokens or left.weighting is not None:  # else weights are 1
            weights = self.effect.loss_weights
            means = self._share if left.weighting is None else weights.sum / self._lengths
            columns |= {"means": means, "squared_means": np.square(means)}
            if left.weighting is not None:
                columns["weights"] = weights.sum
                totals["squares"] = weights.squares
        totals["over"] = np.maximum(means - parts.true[:, None], 0.0)
        if left.rejects_tokens:
            # A sequence without a kept token has no kept mass, a NaN ratio or not.
            mass = chunk.kept_true_ratios(left)
            columns["kept_mass"] = mass if lives.all() else np.where(lives, mass, 0.0)
            squares = columns["squared_means"] if left.weighting is None else self._share**2
            totals |= {"share": self._share, "share_squared": squares}
        else:
            columns["mass"] = parts.mass[:, None]
        if (excess := chunk.truncated_mass(left)) is not None:
            columns["excess"] = excess
        if left.weighting is not None and left.weighting.level == "sequence":
            totals["gap"] = np.abs(parts.true[:, None] - means)
            totals["true"] = parts.true[:, None]
        if (logged := self.effect.weights) is not None:  # as trainers log them: before rejection
            totals |= {"logged": logged.sum, "logged_squares": logged.squares}
        for name, values in parts.signals.items():
            finite = ~np.isnan(values)
            columns[name] = np.where(lives & finite[:, None], values[:, None], 0.0)
            if not finite.all():
                columns[f"{name}{UNKNOWN}"] = np.where(finite[:, None], 0.0, alive)
        return columns, totals


def _shape(bins: SequenceBins | None, columns: int) -> tuple[int, int]:
    """Return the bins and columns of sums."""
    return (1 if bins is None else bins.windows.count), columns


def _flat(sums: Array) -> Array:
    """Return the rows and bins of sums as rows, [rows * bins, columns]."""
    return sums.reshape(-1, sums.shape[-1])


def _within(places: Places, bin_of: Index, bins: SequenceBins | None) -> Places:
    """Return the places of sequences among rows and bins."""
    if bins is None:
        return places
    count = bins.windows.count
    return Places(places.rows * count + bin_of, places.size * count)
