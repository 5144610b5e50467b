"""The frame that corrections are computed on: one row per sequence, columns as they are asked for.

Whoever needs a number of the tokens asks for its reduction where it is used, `rows.sum(RATIO)`.
The same code runs three times over three kinds of rows, which differ in where columns come from:
`recording_rows` write down what is asked for; a pass over the tokens reduces that block by block
(`rows_of`), and the merged rows of all blocks hold it; rows whose tokens are all in memory compute
what they are asked for on the spot.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.corrections.arithmetic import DEFAULT_GUARD, Guard, Tokens
from rcdiag.corrections.quantities import Quantity, log_prob
from rcdiag.errors import RcdiagError
from rcdiag.statistics.merging import merge_fields
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.quantiles import Sketch
from rcdiag.table.token_batch import RowFrame
from rcdiag.table.trajectories import starts_of

Array = NDArray[np.float64]

EPSILON = 1e-8

# `values` are those of every token, 8 bytes each; a sketch is all values of the batch, for
# percentiles, and gives way to counts where they are many.
Reduction = Literal["sum", "squares", "max", "min", "values", "sketch"]


class Asked(Struct, frozen=True):
    """A reduction of a quantity by sequence, as it is asked for."""

    quantity: Quantity
    reduction: Reduction
    guard: Guard
    dtype: type[np.floating]  # arithmetic in which the quantity is computed

    def __str__(self) -> str:
        return f"the {self.reduction} of {self.quantity} in {self.dtype.__name__}"


class Sequences(RowFrame, frozen=True, dict=True):
    """Sequences with at least one unmasked token, and the number of those without."""

    lengths: NDArray[np.int64]  # [sequences] unmasked tokens
    cluster: NDArray[np.uint64]  # [sequences] those of one prompt share it
    reward: Array  # [sequences] NaN where it is unknown
    columns: Mapping[Asked, Any]  # [sequences] of each reduction; [tokens] of `values`
    empty: int
    dtype: type[np.floating] = np.float64  # arithmetic of the trainer
    guard: Guard = DEFAULT_GUARD  # under which quantities are asked for
    width: int = 0  # tokens of the longest response, masked ones counted
    masked: Sequences | None = None  # tokens that the mask leaves out; None where no trainer asks

    def sum(self, of: Quantity | Array) -> Array:
        """Return the sum over the tokens of each sequence, [sequences].

        An array has one number for each sequence, which all of its tokens share.
        """
        return self._asked(of, "sum") if isinstance(of, Quantity) else of * self.lengths

    def squares(self, of: Quantity | Array) -> Array:
        """Return the sum of squares over the tokens of each sequence, [sequences]."""
        if isinstance(of, Quantity):
            result: Array = self._asked(of, "squares")
            return result
        return np.square(of) * self.lengths

    def max(self, of: Quantity | Array) -> Array:
        """Return the largest value among the tokens of each sequence, [sequences]."""
        return self._asked(of, "max") if isinstance(of, Quantity) else of

    def min(self, of: Quantity | Array) -> Array:
        """Return the smallest value among the tokens of each sequence, [sequences]."""
        return self._asked(of, "min") if isinstance(of, Quantity) else of

    def values(self, of: Quantity) -> Array:
        """Return the value of every token, [tokens]: 8 bytes for each token of a table."""
        result: Array = self._asked(of, "values")
        return result

    def sketch(self, of: Quantity) -> Sketch:
        """Return all values as one distribution, for percentiles."""
        sketch: Sketch = self._asked(of, "sketch")
        return sketch

    def _asked(self, quantity: Quantity, reduction: Reduction) -> Any:
        return self.columns[Asked(quantity, reduction, self.guard, self.dtype)]

    @property
    def behavior(self) -> Array:
        """Return each sequence's summed log-prob under the behavior policy."""
        return self._log_prob("behavior")

    @property
    def target(self) -> Array:
        """Return each sequence's summed log-prob under the target policy."""
        return self._log_prob("target")

    def _log_prob(self, side: Literal["behavior", "target"]) -> Array:
        summed: Array = self.columns[Asked(log_prob(side), "sum", DEFAULT_GUARD, self.dtype)]
        return summed

    @cached_property
    def groups(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the group of each sequence, counted from 0, and the sequences of each group."""
        _, group, sizes = np.unique(self.cluster, return_inverse=True, return_counts=True)
        return group, sizes

    @cached_property
    def logged(self) -> dict[Hashable, Any]:
        """Return numbers of these rows that were computed before, by what computed them."""
        return {}

    def under(self, guard: Guard) -> Sequences:
        """Return the rows as they are asked under a guard."""
        if guard == self.guard:
            return self
        masked = None if self.masked is None else self.masked.under(guard)
        return replace(self, guard=guard, masked=masked)

    def in_float32(self) -> Sequences:
        """Return the rows as they are asked for what is computed in float32."""
        return replace(self, dtype=np.float32)

    def of_whole_batch(self) -> Sequences:
        """Return rows on which a quantity may compare a token with all others of the batch.

        No part of a batch can give such a quantity, so that the log-probs of every token are kept.
        """
        behavior, target = (
            self.values(log_prob(side)).astype(self.dtype, copy=False)
            for side in ("behavior", "target")
        )
        tokens = Tokens(target - behavior, behavior=behavior, target=target, lengths=self.lengths)
        return replace(self, columns=_Computed(tokens))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sketches(self) -> dict[Asked, Sketch]:
        """Return the columns that are distributions of all values."""
        return {key: one for key, one in self.columns.items() if isinstance(one, Sketch)}

    def with_sketches(self, sketches: Mapping[Asked, Sketch]) -> Sequences:
        """Return the rows with other sketches in place of theirs."""
        return replace(self, columns=_Reduced({**self.columns, **sketches}))

    def take(self, start: int, stop: int, empty: int) -> Sequences:
        """Take the sequences `start` to `stop`, and `empty` rows without a token.

        Widths stay those of the whole. What is kept as counts cannot be taken apart.
        """
        rows = slice(start, stop)
        before = int(self.lengths[:start].sum())
        tokens = slice(before, before + int(self.lengths[rows].sum()))

        def taken(asked: Asked, column: Any) -> Any:
            if asked.reduction == "sketch":
                return Sketch((np.concatenate(column.raw)[tokens],))
            return column[tokens if asked.reduction == "values" else rows]

        return replace(
            self,
            lengths=self.lengths[rows],
            cluster=self.cluster[rows],
            reward=self.reward[rows],
            columns=_Reduced(
                {asked: taken(asked, column) for asked, column in self.columns.items()}
            ),
            empty=empty,
        )

    @classmethod
    def merged(cls, parts: Sequence[Sequences]) -> Sequences:
        """Join the sequences of parts, in order."""
        first = parts[0]
        joined = merge_fields(
            parts, dtype=first.dtype, guard=first.guard, width=max(rows.width for rows in parts)
        )
        return replace(joined, columns=_Reduced(joined.columns))

    @property
    def epsilon(self) -> float:
        """Return what trainers add to counts before they divide; in float32 a count swallows it."""
        return self.guard.epsilon if self.dtype == np.float64 else 0.0

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())


class _Reduced(dict[Asked, Any]):
    """Columns that a pass over the tokens has made; the tokens themselves are gone."""

    def __missing__(self, asked: Asked) -> Any:
        raise NotAsked(asked)


class NotAsked(RcdiagError):
    """Code asks after the pass for what it did not ask for when its questions were recorded."""

    def __init__(self, asked: Asked, who: str = "a correction") -> None:
        self.asked = asked
        super().__init__(
            f"{who} asks for {asked}, which the pass over the tokens did not make",
            hint="ask for it before any branch on numbers of the batch: what a pass makes is found "
            "out by running the same functions once over a batch of made-up numbers",
        )


class _Recording(dict[Asked, Any]):
    """Columns that are written down when they are asked for; all their numbers are 1."""

    def __missing__(self, asked: Asked) -> Any:
        count = int(_LENGTHS.sum()) if asked.reduction in ("values", "sketch") else len(_LENGTHS)
        ones = np.ones(count)
        self[asked] = Sketch((ones,)) if asked.reduction == "sketch" else ones
        return self[asked]


class _Computed(dict[Asked, Any]):
    """Columns that are computed when they are asked for, of tokens in memory."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._reduction = _Reduction(tokens)

    def __missing__(self, asked: Asked) -> Any:
        self[asked] = self._reduction.of(asked)
        return self[asked]


class _Reduction:
    """The tokens of some sequences, which are reduced by sequence."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._starts = starts_of(tokens.lengths)
        # The quantity that was computed last: its other reductions are often asked for next.
        self._last: tuple[Any, Any] = (None, None)

    def of(self, asked: Asked) -> Any:
        """Return a reduction; squares are taken in the arithmetic of the quantity."""
        key = asked.quantity, asked.guard, asked.dtype
        last, values = self._last
        if last != key:
            tokens = self._tokens
            if asked.dtype == np.float32 and tokens.raw_log_ratio.dtype != np.float32:
                tokens = tokens.in_float32
            values = asked.quantity.of(tokens.under(asked.guard))
            self._last = key, values
        if asked.reduction == "squares" and values.dtype != np.bool_:
            values = np.square(values)
        wide = values.astype(np.float64, copy=False)
        if asked.reduction == "values":
            return wide
        if asked.reduction == "sketch":
            return Sketch((wide,))
        if asked.reduction == "max":
            return np.maximum.reduceat(wide, self._starts)
        if asked.reduction == "min":
            return np.minimum.reduceat(wide, self._starts)
        return np.add.reduceat(wide, self._starts)


class Questions(Struct, frozen=True):
    """What some code asks of the rows of a batch."""

    of_sampled: tuple[Asked, ...] = ()
    of_masked: tuple[Asked, ...] = ()  # tokens of responses that the mask leaves out


_LENGTHS = np.array([2, 3])


def recording_rows(dtype: type[np.floating]) -> Sequences:
    """Return a small batch that writes down what it is asked for; see `questions`.

    It has two sequences, one row without a token and some masked tokens, so that code which looks
    at how many there are goes on to ask.
    """

    def batch(empty: int, masked: Sequences | None) -> Sequences:
        return Sequences(
            lengths=_LENGTHS,
            cluster=np.array([0, 0], np.uint64),
            reward=np.ones(len(_LENGTHS)),
            columns=_Recording(),
            empty=empty,
            dtype=dtype,
            width=4,
            masked=masked,
        )

    return batch(1, batch(0, None))


def questions(recording: Sequences) -> Questions:
    """Return what recording rows were asked for, reductions of one quantity beside each other."""

    def ordered(columns: Mapping[Asked, Any]) -> tuple[Asked, ...]:
        first: dict[Any, int] = {}
        for one in columns:
            first.setdefault((one.quantity, one.guard, one.dtype), len(first))
        return tuple(sorted(columns, key=lambda one: first[one.quantity, one.guard, one.dtype]))

    masked = () if recording.masked is None else ordered(recording.masked.columns)
    return Questions(ordered(recording.columns), masked)


def rows_of(
    pair: PolicyPair,
    asked: Questions | None = None,
    empty: int = 0,
    *,
    dtype: type[np.floating] = np.float64,
) -> Sequences:
    """Return the rows of a pair, `empty` of which have no token.

    They hold what is `asked`, or else compute what they are asked for and hold the tokens for that.
    """
    tokens, batch = Tokens.of(pair, dtype), pair.tokens
    columns: Mapping[Asked, Any] = _Computed(tokens)
    if asked is not None:
        with np.errstate(all="ignore"):
            reduction = _Reduction(tokens)
            columns = _Reduced({one: reduction.of(one) for one in asked.of_sampled})
    masked = None
    if batch.masked is not None and len(batch.masked.lengths):
        of_masked = PolicyPair(batch.masked, pair.behavior, pair.target)
        rest = None if asked is None else Questions(asked.of_masked)
        masked = rows_of(of_masked, rest, dtype=dtype)
    return Sequences(
        lengths=pair.lengths,
        cluster=batch.cluster,
        reward=batch.rewards.astype(np.float64, copy=False),
        columns=columns,
        empty=empty,
        dtype=dtype,
        width=batch.width,
        masked=masked,
    )
