"""A pass keeps a few numbers per sequence and quantity. Shards add up by joining."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.corrections.arithmetic import Tokens
from rcdiag.corrections.guard import UNSAID, Guard
from rcdiag.corrections.quantities import (
    EveryLogProb,
    Guarded,
    InFloat32,
    Quantity,
)
from rcdiag.corrections.reduced import (
    Column,
    PackedReductions,
    Reduced,
    joined_reductions,
    taken,
)
from rcdiag.lazy import lazy
from rcdiag.statistics.packed import FEWEST_TO_COMPARE, joined_columns, packed_where_many
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.quantiles import Sketch, joined_sketches
from rcdiag.table.segments import starts_of

EPSILON = 1e-8


class Rows(Struct, frozen=True, dict=True):
    """Sequences with at least one unmasked token, and the number of those without."""

    sequences: int
    # lengths, cluster, reward, and summed log-probs: behavior and target; float64 [sequences].
    own: Mapping[str, NDArray[np.float64]]
    columns: Mapping[Quantity, Reduced]
    empty: int
    ratios: Sketch | None = None  # of tokens, clamped; where percentiles are logged
    dtype: type[np.floating] = np.float64  # arithmetic of the trainer
    guard: Guard = UNSAID  # of the columns
    width: int = 0  # tokens of the longest response, masked ones counted
    prompt_width: int = 0  # tokens of the longest prompt; 0 where no trainer asks for it
    masked: Rows | None = None  # tokens that the mask leaves out; None where no trainer asks

    @lazy
    def lengths(self) -> NDArray[np.int64]:
        """Return the unmasked tokens of each sequence."""
        return self.own["lengths"].astype(np.int64)

    @property
    def cluster(self) -> NDArray[np.uint64]:
        """Return the cluster of each sequence; those of one prompt share it."""
        return self.own["cluster"].view(np.uint64)

    @property
    def reward(self) -> NDArray[np.float64]:
        """Return the reward of each sequence; NaN where it is unknown."""
        return self.own["reward"]

    @property
    def behavior(self) -> NDArray[np.float64]:
        """Return each sequence's summed log-prob under the behavior policy."""
        return self.own["behavior"]

    @property
    def target(self) -> NDArray[np.float64]:
        """Return each sequence's summed log-prob under the target policy."""
        return self.own["target"]

    @lazy
    def groups(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the group of each sequence, counted from 0, and the sequences of each group."""
        _, group, sizes = np.unique(self.cluster, return_inverse=True, return_counts=True)
        return group, sizes

    @lazy
    def logged(self) -> dict[Hashable, Any]:
        """Return numbers of these rows that were computed before, by what computed them."""
        return {}

    def under(self, guard: Guard) -> Rows:
        """Return the rows with the columns that were made under a guard."""
        if guard == self.guard:
            return self
        columns = {
            quantity.quantity: column
            for quantity, column in self.columns.items()
            if isinstance(quantity, Guarded) and quantity.guard == guard
        }
        masked = None if self.masked is None else self.masked.under(guard)
        return replace(self, columns=columns, guard=guard, masked=masked)

    def reduced_again(self, quantities: Sequence[Quantity]) -> Rows:
        """Return the rows with quantities of the whole batch, which no part of it can give."""
        behavior, target = (
            self.columns[EveryLogProb(side)].values.astype(self.dtype, copy=False)
            for side in ("behavior", "target")
        )
        tokens = Tokens(target - behavior, behavior=behavior, target=target, lengths=self.lengths)
        starts = starts_of(self.lengths)
        columns = {
            quantity: Column.of_tokens(quantity.of(tokens), starts, quantity.keeps)
            for quantity in quantities
        }
        return replace(self, columns=columns)

    def in_float32(self) -> Rows:
        """Return the rows with the columns that were computed in float32."""
        columns = {
            quantity.quantity: column
            for quantity, column in self.columns.items()
            if isinstance(quantity, InFloat32)
        }
        return replace(self, columns=columns, dtype=np.float32)

    def packed(self) -> Rows:
        """Return the rows with columns in few bytes, for a pass; few rows are left as they are."""
        masked = None if self.masked is None else self.masked.packed()
        columns = self.columns
        if len(self) >= FEWEST_TO_COMPARE and not isinstance(columns, PackedReductions):
            columns = PackedReductions.of(columns, len(self))
        own = packed_where_many(self.own, len(self))
        return replace(self, own=own, columns=columns, masked=masked)

    def __len__(self) -> int:
        return self.sequences

    def take(self, start: int, stop: int, empty: int) -> Rows:
        """Take the sequences `start` to `stop` and so many rows without a token.

        Widths stay those of the whole. Ratios that are kept as counts cannot be taken apart, and
        are left out.
        """
        rows = slice(start, stop)
        before = int(self.lengths[:start].sum())
        tokens = slice(before, before + int(self.lengths[rows].sum()))
        ratios = None
        if self.ratios is not None and self.ratios.raw is not None:
            ratios = Sketch((np.concatenate(self.ratios.raw)[tokens],))
        return replace(
            self,
            sequences=len(self.lengths[rows]),
            own={name: column[rows] for name, column in self.own.items()},
            columns={name: taken(column, rows, tokens) for name, column in self.columns.items()},
            empty=empty,
            ratios=ratios,
        )

    def __add__(self, other: Rows) -> Rows:
        """Join the sequences of both shards, in order."""
        return joined_rows([self, other])

    @property
    def epsilon(self) -> float:
        """Return what trainers add to counts before they divide; in float32 a count swallows it."""
        return self.guard.epsilon if self.dtype == np.float64 else 0.0

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())


def joined_rows(shards: Sequence[Rows]) -> Rows:
    """Join the sequences of shards, in order."""
    if len(shards) == 1:
        return shards[0]

    first = shards[0]
    sketches = [rows.ratios for rows in shards if rows.ratios is not None]
    masked = [rows.masked for rows in shards if rows.masked is not None]
    return Rows(
        sum(map(len, shards)),
        joined_columns([(rows.own, len(rows)) for rows in shards]),
        _joined_reductions(shards),
        sum(rows.empty for rows in shards),
        joined_sketches(sketches) if len(sketches) == len(shards) else None,
        first.dtype,
        first.guard,
        max(rows.width for rows in shards),
        max(rows.prompt_width for rows in shards),
        joined_rows(masked) if masked else None,
    )


def _joined_reductions(shards: Sequence[Rows]) -> Mapping[Quantity, Reduced]:
    """Join the columns of shards; they are packed where those of one shard are."""
    columns = [rows.columns for rows in shards]
    if not any(isinstance(one, PackedReductions) for one in columns):
        return {name: joined_reductions([one[name] for one in columns]) for name in columns[0]}
    packed = (
        one if isinstance(one, PackedReductions) else PackedReductions.of(one, len(rows))
        for one, rows in zip(columns, shards, strict=True)
    )
    return reduce(add, packed)


def rows_of(
    pair: PolicyPair,
    quantities: Sequence[Quantity],
    empty: int = 0,
    *,
    keep_ratios: bool = False,
    dtype: type[np.floating] = np.float64,
) -> Rows:
    """Reduce the tokens of a pair; `empty` of its sequences have none."""
    with np.errstate(all="ignore"):
        tokens = Tokens.of(pair, dtype)
        starts = starts_of(pair.lengths)
        columns = {
            quantity: Column.of_tokens(quantity.of(tokens), starts, quantity.keeps)
            for quantity in quantities
        }
        own = {
            "lengths": pair.lengths.astype(np.float64),
            "behavior": np.add.reduceat(tokens.behavior.astype(np.float64, copy=False), starts),
            "target": np.add.reduceat(tokens.target.astype(np.float64, copy=False), starts),
            "cluster": pair.tokens.cluster.view(np.float64),
            "reward": pair.tokens.rewards.astype(np.float64, copy=False),
        }
        return Rows(
            len(pair.lengths),
            own,
            columns,
            empty,
            Sketch((tokens.ratio.astype(np.float64, copy=False),)) if keep_ratios else None,
            dtype,
            width=pair.tokens.width,
            prompt_width=pair.tokens.prompt_width,
            masked=_masked_rows(pair, quantities, dtype),
        )


def _masked_rows(
    pair: PolicyPair, quantities: Sequence[Quantity], dtype: type[np.floating]
) -> Rows | None:
    """Reduce the tokens that the mask leaves out, where they were read."""
    masked = pair.tokens.masked
    if masked is None or not len(masked.lengths):
        return None
    return rows_of(PolicyPair(masked, pair.behavior, pair.target), quantities, 0, dtype=dtype)
