"""What is added up of the effects of settings: by cluster, by length, by prompt group, over all.

Sums, a least and a most add up by themselves. Whether a prompt group keeps at least two sequences
is known from two bits per group and setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import Effect, Settings, log_ratio
from rcdiag.corrections.arithmetic import SAFETY_BOUND
from rcdiag.corrections.quantities import TrueRatio, Unsafe
from rcdiag.statistics.clusters import summing_matrix
from rcdiag.usecases.sweep.thresholds import Array, Chunk

Bits = NDArray[np.uint8]

# Groups whose bits are spread out at a time.
UNPACKED = 1024

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, slots=True)
class Groups:
    """The prompt groups that keep at least one sequence, and at least two: one bit for either."""

    keys: NDArray[np.uint64]  # [groups] ascending
    one: Bits  # [groups, settings / 8]
    two: Bits  # [groups, settings / 8]

    def __add__(self, other: Groups) -> Groups:
        """Join the groups of both: one sequence kept in either makes two."""
        keys = np.union1d(self.keys, other.keys)
        one = np.zeros((len(keys), self.one.shape[1]), np.uint8)
        two = np.zeros_like(one)
        for part in (self, other):
            at = np.searchsorted(keys, part.keys)
            two[at] |= part.two | (one[at] & part.one)
            one[at] |= part.one
        return Groups(keys, one, two)

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


@dataclass(frozen=True, slots=True)
class Frame:
    """How the sequences of a chunk are added up."""

    by_cluster: csr_array  # [clusters, sequences]
    by_length: csr_array  # [LENGTHS + 1, sequences] of those that occur
    bins: NDArray[np.int64]  # which lengths these are
    signals: dict[str, Array]  # [sequences] rewards, advantages; NaN = unknown
    mass: Array  # [sequences] ratio of the sequence, times exp(-shift)
    true: Array  # [sequences] the same as it is


def frame(chunk: Chunk, cluster: NDArray[np.int64], shift: float) -> Frame:
    """Lay out how sequences are added up: by the number of their cluster, and by length."""
    rows = chunk.rows
    bins, index = np.unique(np.searchsorted(LENGTHS, rows.lengths), return_inverse=True)
    logs = log_ratio(rows, "sequence")
    return Frame(
        summing_matrix(cluster),
        summing_matrix(index),
        bins,
        {"reward": rows.reward, "advantage": chunk.advantage},
        np.exp(logs - shift),
        np.exp(logs),
    )


def count_lengths(lengths: NDArray[np.int64]) -> Array:
    """Count sequences and their tokens by the bins of LENGTHS, [2, LENGTHS + 1]."""
    bins = np.searchsorted(LENGTHS, lengths)
    size = len(LENGTHS) + 1
    return np.stack([np.bincount(bins, None, size), np.bincount(bins, lengths, size)])


def base_sums(chunk: Chunk, parts: Frame) -> Sums:
    """Add up what does not depend on the settings, [clusters]."""
    rows = chunk.rows
    columns = {
        "tokens": rows.lengths.astype(np.float64),
        "sequences": np.ones(len(rows)),
        "true": rows.columns[TrueRatio()].sum,
        "mass": parts.mass,
        "seq_true": parts.true,
        "unsafe": rows.columns[Unsafe()].sum,
        "unsafe_seq": (np.abs(log_ratio(rows, "sequence")) >= SAFETY_BOUND).astype(np.float64),
        "above_clamp": (chunk.above_clamp > 0).astype(np.float64),
        "length_squared": np.square(rows.lengths.astype(np.float64)),
    }
    for name, values in parts.signals.items():
        columns[name] = np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)
        columns[f"{name}_count"] = (~np.isnan(values)).astype(np.float64)
    return {name: parts.by_cluster @ values for name, values in columns.items()}


@dataclass(frozen=True, slots=True)
class FamilySums:
    """What all settings of a family do to some sequences, added up over all of them."""

    totals: Sums  # name -> [settings]
    lengths: Array  # [LENGTHS + 1, settings] kept tokens
    least: Array  # [settings] share of tokens kept, of the sequence where it is least
    most: Array  # [settings] the same of the sequence where it is most

    def __iadd__(self, other: FamilySums) -> FamilySums:
        """Add in place."""
        for name, values in other.totals.items():
            self.totals[name][...] += values
        self.lengths[...] += other.lengths
        np.minimum(self.least, other.least, out=self.least)
        np.maximum(self.most, other.most, out=self.most)
        return self

    def copy(self) -> FamilySums:
        """Copy the sums into memory of their own."""
        totals = {name: values.copy() for name, values in self.totals.items()}
        return FamilySums(totals, self.lengths.copy(), self.least.copy(), self.most.copy())


def family_sums(chunk: Chunk, effect: Effect, settings: Settings, parts: Frame) -> FamilySums:
    """Add up the effect of all settings of a family on a chunk."""
    rows, count = chunk.rows, settings.count
    lengths = rows.lengths[:, None].astype(np.float64)
    weights = effect.loss_weights
    means, share = weights.sum / lengths, effect.kept / lengths
    by_length = np.zeros((len(LENGTHS) + 1, count))
    by_length[parts.bins] = parts.by_length @ _wide(effect.kept, count)
    totals = {
        "squares": weights.squares.sum(axis=0),
        "gap": np.abs(parts.true[:, None] - means).sum(axis=0),
        "over": np.maximum(means - parts.true[:, None], 0.0).sum(axis=0),
        "share": share.sum(axis=0),
        "share_squared": np.square(share).sum(axis=0),
        "share_length": (share * lengths).sum(axis=0),
    }
    if (logged := effect.weights) is not None:  # as trainers log them: before rejection
        totals |= {
            "logged": logged.sum.sum(axis=0),
            "logged_squares": logged.squares.sum(axis=0),
        }
    return FamilySums(
        {name: np.broadcast_to(values, (count,)).copy() for name, values in totals.items()},
        by_length,
        np.broadcast_to(share.min(axis=0), (count,)).copy(),
        np.broadcast_to(share.max(axis=0), (count,)).copy(),
    )


def _wide(values: Array, count: int) -> Array:
    """Give every setting a column of its own."""
    return np.ascontiguousarray(np.broadcast_to(values, (len(values), count)))


def sums_by_cluster(chunk: Chunk, effect: Effect, settings: Settings, parts: Frame) -> Sums:
    """Add up by cluster what intervals need, [clusters, settings]."""
    return {
        name: parts.by_cluster @ _wide(values, settings.count)
        for name, values in _columns(chunk, effect, settings, parts).items()
    }


def _columns(chunk: Chunk, effect: Effect, settings: Settings, parts: Frame) -> Sums:
    """Compute what intervals need, [sequences, settings]."""
    weights = effect.loss_weights.sum
    means = weights / chunk.rows.lengths[:, None].astype(np.float64)
    lives = (effect.kept > 0).astype(np.float64)
    columns = {
        "kept": effect.kept,
        "alive": lives,
        "means": means,
        "squared_means": np.square(means),
    }
    if settings.rejects_tokens:
        # A sequence without a kept token has no kept mass, a NaN ratio or not.
        columns["kept_mass"] = np.where(lives > 0, chunk.kept_true_ratios(settings), 0.0)
    else:
        columns["lost_mass"] = np.where(lives > 0, 0.0, parts.mass[:, None])
    if settings.weighting is not None:
        columns["weights"] = weights
    if (excess := chunk.truncated_mass(settings)) is not None:
        columns["excess"] = excess
    for name, values in parts.signals.items():
        finite = ~np.isnan(values)
        columns[name] = np.where(finite, values, 0.0)[:, None] * lives
        columns[f"{name}_count"] = finite[:, None] * lives
    return columns
