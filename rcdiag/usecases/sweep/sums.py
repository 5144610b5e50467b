"""Sums over the sequences of a table under every setting of a sweep, in bounded memory.

There is one array for each family and quantity, [cluster, bin, column]; the arrays of parts of a
table add up. `estimates` computes each threshold's estimate and interval over clusters from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.apply import apply, log_ratio
from rcdiag.corrections.arithmetic import SAFETY_BOUND
from rcdiag.corrections.quantities import true_ratio, unsafe
from rcdiag.statistics.clusters import Keys
from rcdiag.statistics.extremes import NonFinite
from rcdiag.statistics.merging import merge, merge_by_key, take_in
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.pareto import UpperTail
from rcdiag.statistics.suite import SuiteState
from rcdiag.usecases.sweep.bins import Array, Index, Layout
from rcdiag.usecases.sweep.plan import SweepPlan
from rcdiag.usecases.sweep.sketched_gradients import (
    candidate_gradients,
    recorded_advantage,
)
from rcdiag.usecases.sweep.token_bins import Chunk, chunks

if TYPE_CHECKING:
    from scipy.sparse import csc_array

# Largest array of sequences and settings, in cells (2 MB); two families are computed at a time.
CELLS = 1 << 18
# A sweep holds hundreds of numbers per cluster and setting. In a table with more clusters than this
# several share a row, by their number modulo this. Intervals stay correct, and their width has a
# relative error of sqrt(1 / 512), or 4%.
MAX_CLUSTERS = 256
# Prompt groups whose bits are unpacked at a time.
GROUPS_AT_ONCE = 1024

# Upper ends of the bins of lengths: each length up to 32 has its own, then in steps of 4%.
LENGTHS = np.unique(
    np.concatenate([np.arange(1, 33), np.round(2.0 ** np.arange(5, 20, 0.0625))])
).astype(np.int64)

# Sums have a row for each cluster, except those of these quantities: BY_LENGTH have a row for each
# bin of LENGTHS, and OVER_ALL, which get no interval, have a single row.
BY_LENGTH = ("kept_by_length", "sequences_by_length", "tokens_by_length")
OVER_ALL = ("squares", "over", "gap", "true", "share", "share_squared", "logged", "logged_squares")
# Quantities that depend only on which sequences keep a token.
OF_SEQUENCES = ("alive", "reward", "reward_count", "advantage", "advantage_count")

Quantities = dict[str, Array]  # name -> [sequences, columns], or one column where they agree


class SumRows:
    """Adds values of sequences to the rows of a table of sums."""

    def __init__(self, rows: Index, size: int) -> None:
        self.rows = rows  # [sequences] row to which each sequence is added
        self.size = size  # number of rows of the table

    @cached_property
    def _used(self) -> tuple[Index, csc_array]:
        """Return the rows that occur, and the 0/1 matrix [rows, sequences] that adds to them."""
        from scipy.sparse import csc_array

        used, at = np.unique(self.rows, return_inverse=True)
        ones, starts = np.ones(len(at)), np.arange(len(at) + 1)
        return used, csc_array((ones, at, starts), shape=(len(used), len(at)))

    def add(self, table: Array, values: Array) -> None:
        """Add `values` [sequences, columns or 1] in place to a table with the same columns."""
        sums = table.reshape(self.size, -1)
        if sums.shape[1] == 1:
            np.add.at(sums[:, 0], self.rows, values[:, 0])
        else:
            used, matrix = self._used
            sums[used] += matrix @ values

    def with_bins(self, bin_of: Index, bins: int) -> SumRows:
        """Return the rows of a table that has `bins` rows for each row of this one."""
        return self if bins == 1 else SumRows(self.rows * bins + bin_of, self.size * bins)


class Groups(Struct, frozen=True):
    """Bits for prompt groups that keep at least one, and at least two sequences, by setting."""

    keys: Keys  # [groups] ascending
    one: NDArray[np.uint8]  # [groups, settings / 8]
    two: NDArray[np.uint8]  # [groups, settings / 8]

    @classmethod
    def of(cls, keys: Keys, counts: NDArray[Any]) -> Groups:
        """Make groups from the numbers of kept sequences, [groups, settings]."""
        return cls(keys, np.packbits(counts >= 1, axis=1), np.packbits(counts >= 2, axis=1))

    @classmethod
    def merged(cls, parts: Sequence[Groups]) -> Groups:
        """Merge the groups of parts: a group with one kept sequence in two parts keeps two."""
        keys = np.unique(np.concatenate([part.keys for part in parts]))
        one = np.zeros((len(keys), parts[0].one.shape[1]), np.uint8)
        two = np.zeros_like(one)
        for part in parts:
            at = np.searchsorted(keys, part.keys)
            two[at] |= part.two | (one[at] & part.one)
            one[at] |= part.one
        return cls(keys, one, two)

    def kept(self, settings: int) -> NDArray[np.int64]:
        """Count the groups with at least two kept sequences, [settings]."""
        counts = np.zeros(settings, np.int64)
        for start in range(0, len(self.keys), GROUPS_AT_ONCE):
            part = self.two[start : start + GROUPS_AT_ONCE]
            counts += np.unpackbits(part, axis=1, count=settings).sum(axis=0, dtype=np.int64)
        return counts


class SweepState:
    """The sums of some rows under every setting of a sweep, and their mismatch suite."""

    def __init__(self, plan: SweepPlan) -> None:
        self.plan = plan
        self.suite: SuiteState | None = None  # None where no row has a sampled token
        self.non_finite = NonFinite()
        # (family or candidate, quantity) -> sums [rows, bins, columns]; "": not of a setting.
        self.tables: dict[tuple[str, str], Array] = {}
        self.kept_groups: list[dict[str, Groups]] = []  # family -> groups; to be merged
        # The largest log-ratio of a sequence; "mass" sums ratio * exp(-shift), against overflow.
        self.shift = -np.inf
        self.steps: frozenset[int | None] = frozenset()
        # Candidate -> logs of weight times |advantage| of sequences.
        self.tails: dict[str, UpperTail] = {}

    def take(self, pair: PolicyPair) -> None:
        """Add the next batch."""
        self.non_finite = merge([self.non_finite, NonFinite.of(pair.tokens)])
        if not len(pair.lengths):
            return
        self.suite = merge([self.suite, SuiteState.of(pair)])
        plan, step = self.plan, pair.tokens.step
        corrections = {name: setting.correction for name, setting in plan.candidates.items()}

        with np.errstate(all="ignore"):
            numbers = plan.cluster_numbers(pair.tokens.cluster)
            rows = (numbers % np.uint64(MAX_CLUSTERS)).astype(np.int64)
            gradients = candidate_gradients(pair, corrections, plan.baseline, plan.buckets, rows)
            for (name, quantity), values in gradients.sums.items():
                table = self._table(name, quantity, 1, values.shape[1])
                table[gradients.clusters, 0] += values
            self.tails = merge_by_key([self.tails, gradients.tails])
            self.steps |= frozenset([None] if step is None else np.unique(step).tolist())
            most = max(layout.columns.count for layout in plan.layouts.values())
            start = 0
            for chunk in chunks(pair, recorded_advantage(pair), max(1, CELLS // most)):
                self._add_chunk(chunk, rows[start : start + len(chunk.rows)])
                start += len(chunk.rows)

    def add(self, other: SweepState) -> None:
        """Add the state of the next rows, in place, since a copy is large with many thresholds."""
        with np.errstate(all="ignore"):
            factor = self._raise_shift(other.shift)
            for (family, quantity), sums in other.tables.items():
                own = self._table(family, quantity, *sums.shape[1:])
                own += sums * factor if quantity == "mass" else sums
        if other.kept_groups:
            take_in(self.kept_groups, merge(other.kept_groups))
        self.steps = self.steps | other.steps
        self.suite = merge([self.suite, other.suite])
        self.non_finite = merge([self.non_finite, other.non_finite])
        self.tails = merge_by_key([self.tails, other.tails])

    @property
    def empty(self) -> bool:
        return self.suite is None

    def __getitem__(self, name: tuple[str, str]) -> Array:
        """Return the sums of a family or candidate and a quantity, [rows, bins, columns]."""
        table = self.tables[name]
        return table[self.clusters] if _rows_by(name[1]) == "cluster" else table

    def __contains__(self, name: tuple[str, str]) -> bool:
        return name in self.tables

    @property
    def clusters(self) -> Index:
        """Return the rows of the tables by cluster that have a sequence, [clusters]."""
        return np.flatnonzero(self.tables["", "sequences"][:, 0, 0])

    @property
    def num_clusters(self) -> int:
        return len(self.clusters)

    def base(self, quantity: str) -> Array:
        """Return the sums of a quantity that no setting changes, [rows]."""
        return self["", quantity][:, 0, 0]

    def of_settings(self, family: str, quantity: str, *, outside: bool = False) -> Array:
        """Return the sums under every setting, [rows, settings].

        With `outside` they are over the sequences that a setting does not keep.
        """
        return self.plan.layouts[family].read(quantity, self[family, quantity], outside=outside)

    def groups_with_two(self, family: str) -> NDArray[np.int64]:
        """Count the prompt groups that keep two sequences, [settings]; "" counts all with two."""
        settings = len(self.plan.grids[family]) if family else 1
        if not self.kept_groups:
            return np.zeros(settings, np.int64)
        self.kept_groups = [merge(self.kept_groups)]
        groups = self.kept_groups[0]
        if family in groups:
            return groups[family].kept(settings)
        return np.repeat(groups[""].kept(1), settings)

    def _add_chunk(self, chunk: Chunk, clusters: Index) -> None:
        """Add some sequences of a batch; `clusters` [sequences] are the rows of their clusters."""
        plan = self.plan
        self._raise_shift(float(log_ratio(chunk.rows, "sequence").max()))
        shift = self.shift if np.isfinite(self.shift) else 0.0
        mass = np.exp(log_ratio(chunk.rows, "sequence") - shift)[:, None]
        lengths = np.searchsorted(LENGTHS, chunk.rows.lengths)
        rows = {
            "cluster": SumRows(clusters, MAX_CLUSTERS),
            "length": SumRows(lengths, len(LENGTHS) + 1),
            "all": SumRows(np.zeros_like(clusters), 1),
        }
        signals = {"reward": chunk.rows.reward[:, None]}
        if plan.recorded:
            signals["advantage"] = chunk.advantage[:, None]
        for quantity, values in _base_quantities(chunk, mass, signals).items():
            rows[_rows_by(quantity)].add(self._table("", quantity, 1, 1), values)
        keys, group = np.unique(chunk.rows.cluster, return_inverse=True)
        groups = {"": Groups.of(keys, np.bincount(group)[:, None])}

        for family, layout in plan.layouts.items():
            bin_of = chunk.bins(layout)
            quantities = _quantities(chunk, layout, mass, signals)
            binned = {by: of.with_bins(bin_of, layout.bins) for by, of in rows.items()}
            kept, alive = quantities["kept"], quantities["alive"]
            for quantity, values in quantities.items():
                width = (kept if quantity in OF_SEQUENCES else values).shape[1]
                table = self._table(family, quantity, layout.bins, width)
                binned[_rows_by(quantity)].add(table, values)
            if plan.grouped and layout.rejects:
                counts = np.zeros((len(keys), layout.bins, kept.shape[1]))
                SumRows(group * layout.bins + bin_of, len(keys) * layout.bins).add(counts, alive)
                groups[family] = Groups.of(keys, layout.read("alive", counts))
        if plan.grouped:
            take_in(self.kept_groups, groups)

    def _table(self, family: str, quantity: str, bins: int, columns: int) -> Array:
        """Return the sums of a quantity to add to, zeros at first, [rows, bins, columns]."""
        if (family, quantity) not in self.tables:
            rows = {"cluster": MAX_CLUSTERS, "length": len(LENGTHS) + 1, "all": 1}
            self.tables[family, quantity] = np.zeros((rows[_rows_by(quantity)], bins, columns))
        return self.tables[family, quantity]

    def _raise_shift(self, largest: float) -> float:
        """Raise the shift to `largest` if that is larger, and rescale the sums "mass" to it.

        Returns the factor for sums that were made with `largest` as their shift.
        """
        old, self.shift = self.shift, float(np.maximum(self.shift, largest))
        if not np.isfinite(self.shift):  # NaN and infinity stay
            return 1.0
        if np.isfinite(old) and self.shift > old:
            for (_, quantity), sums in self.tables.items():
                if quantity == "mass":
                    sums *= float(np.exp(old - self.shift))
        return float(np.exp(largest - self.shift))


def _rows_by(quantity: str) -> str:
    """Return what the rows of a quantity's sums are: `cluster`, `length`, or `all` in one row."""
    if quantity in BY_LENGTH:
        return "length"
    return "all" if quantity in OVER_ALL else "cluster"


def _base_quantities(chunk: Chunk, mass: Array, signals: Mapping[str, Array]) -> Quantities:
    """Return the quantities that do not depend on settings, [sequences, 1]."""
    rows, lengths = chunk.rows, chunk.lengths
    logs = log_ratio(rows, "sequence")[:, None]
    one = np.ones_like(lengths)
    quantities = {
        "tokens": lengths,
        "sequences": one,
        "length_squared": np.square(lengths),
        "tokens_by_length": lengths,
        "sequences_by_length": one,
        "true_ratios": rows.sum(true_ratio)[:, None],
        "mass": mass,
        "seq_true": np.exp(logs),
        "unsafe": rows.sum(unsafe)[:, None],
        "unsafe_seq": (np.abs(logs) >= SAFETY_BOUND) * one,
        "above_clamp": (chunk.above_clamp > 0)[:, None] * one,
    }
    for name, values in signals.items():
        known = ~np.isnan(values)
        quantities |= {name: np.where(known, values, 0.0), f"{name}_count": known * one}
    return quantities


def _quantities(
    chunk: Chunk, layout: Layout, mass: Array, signals: Mapping[str, Array]
) -> Quantities:
    """Return each sequence's quantities under the settings of a family's layout."""
    settings, effect = layout.columns, apply(chunk, layout.columns)
    by_token, weighting = settings.rejects_tokens, settings.weighting
    kept, weights = effect.kept, effect.loss_weights
    lives = kept > 0
    if lives.all():
        lives = lives[:, :1]
    alive = lives.astype(np.float64)
    true = np.exp(log_ratio(chunk.rows, "sequence"))[:, None]
    share = kept / chunk.lengths
    means = alive  # mean weight of a sequence's tokens, 0 for rejected ones
    if weighting is not None:
        means = weights.sum / chunk.lengths
    elif by_token:
        means = share
    quantities = {
        "kept": kept,
        "kept_by_length": kept,
        "alive": alive,
        "means": means,
        "squared_means": np.square(means),
        "over": np.maximum(means - true, 0.0),
    }
    if weighting is not None:
        quantities |= {"weights": weights.sum, "squares": weights.squares}
        if weighting.level == "sequence":
            quantities |= {"gap": np.abs(true - means), "true": true}
    if by_token:
        quantities |= {"share": share, "share_squared": np.square(share)}
    if settings.discards_tokens:
        # A sequence without a kept token has no kept mass, even if a ratio is NaN.
        quantities["kept_mass"] = np.where(lives, chunk.kept_true_ratios(settings), 0.0)
    else:
        quantities["mass"] = mass
    if settings.truncates:
        quantities["excess"] = chunk.truncated_mass(settings)
    if (logged := effect.weights) is not None:  # as trainers log them: before rejection
        quantities |= {"logged": logged.sum, "logged_squares": logged.squares}
    for name, values in signals.items():
        known = lives & ~np.isnan(values)
        quantities[name] = np.where(known, values, 0.0)
        quantities[f"{name}_count"] = known.astype(np.float64)
    return quantities
