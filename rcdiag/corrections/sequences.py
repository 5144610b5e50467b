"""The frame on which corrections are computed: one row per sequence, with columns on request.

Code that needs a reduction of a token quantity requests it where it uses it: `rows.sum(RATIO)`. The
same code runs on three kinds of rows, which differ in how they answer. `recording_rows` write down
the requests. A pass over the tokens then computes these reductions batch by batch (`rows_of`), and
the merged rows of all batches hold them. Rows whose tokens are all in memory compute a reduction
when it is requested.
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

# `values` returns every token's value, 8 bytes each. `sketch` returns the distribution of all
# values of the batch, for percentiles; with many values it holds counts instead.
Reduction = Literal["sum", "squares", "max", "min", "values", "sketch"]


class Asked(Struct, frozen=True):
    """A requested reduction of a quantity by sequence."""

    quantity: Quantity
    reduction: Reduction
    guard: Guard
    dtype: type[np.floating]  # the arithmetic in which the quantity is computed

    def __str__(self) -> str:
        return f"the {self.reduction} of {self.quantity} in {self.dtype.__name__}"


class Sequences(RowFrame, frozen=True, dict=True):
    """Sequences with at least one unmasked token, and the number of rows without any."""

    lengths: NDArray[np.int64]  # [sequences] unmasked tokens
    cluster: NDArray[np.uint64]  # [sequences] the same for all sequences of one prompt
    reward: Array  # [sequences] NaN = unknown
    columns: Mapping[Asked, Any]  # [sequences] for each reduction; [tokens] for `values`
    empty: int
    dtype: type[np.floating] = np.float64  # the arithmetic of the trainer
    guard: Guard = DEFAULT_GUARD  # the guard under which quantities are computed
    width: int = 0  # tokens of the longest response, including masked tokens
    masked: Sequences | None = None  # the masked tokens; None if no trainer needs them

    def sum(self, of: Quantity | Array) -> Array:
        """Return the sum over the tokens of each sequence, [sequences].

        An array [sequences] stands for the same value at all tokens of a sequence.
        """
        return self._asked(of, "sum") if isinstance(of, Quantity) else of * self.lengths

    def squares(self, of: Quantity | Array) -> Array:
        """Return the sum of squares over the tokens of each sequence, [sequences]."""
        if isinstance(of, Quantity):
            result: Array = self._asked(of, "squares")
            return result
        return np.square(of) * self.lengths

    def max(self, of: Quantity | Array) -> Array:
        """Return the maximum over the tokens of each sequence, [sequences]."""
        return self._asked(of, "max") if isinstance(of, Quantity) else of

    def min(self, of: Quantity | Array) -> Array:
        """Return the minimum over the tokens of each sequence, [sequences]."""
        return self._asked(of, "min") if isinstance(of, Quantity) else of

    def values(self, of: Quantity) -> Array:
        """Return the value of every token, [tokens], which takes 8 bytes per token."""
        result: Array = self._asked(of, "values")
        return result

    def sketch(self, of: Quantity) -> Sketch:
        """Return the distribution of all values, for percentiles."""
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
        """Return the group number of each sequence, from 0, and the size of each group."""
        _, group, sizes = np.unique(self.cluster, return_inverse=True, return_counts=True)
        return group, sizes

    @cached_property
    def logged(self) -> dict[Hashable, Any]:
        """Return a cache of numbers of these rows, keyed by what computed them."""
        return {}

    def under(self, guard: Guard) -> Sequences:
        """Return the rows with quantities computed under another guard."""
        if guard == self.guard:
            return self
        masked = None if self.masked is None else self.masked.under(guard)
        return replace(self, guard=guard, masked=masked)

    def in_float32(self) -> Sequences:
        """Return the rows with quantities computed in float32."""
        return replace(self, dtype=np.float32)

    def of_whole_batch(self) -> Sequences:
        """Return rows for quantities that compare a token with all others of the batch.

        Such a quantity cannot be computed on a part of a batch, so the log-probs of all tokens are
        kept in memory.
        """
        behavior, target = (
            self.values(log_prob(side)).astype(self.dtype, copy=False)
            for side in ("behavior", "target")
        )
        tokens = Tokens(target - behavior, behavior, target, self.lengths)
        return replace(self, columns=_Computed(tokens))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sketches(self) -> dict[Asked, Sketch]:
        """Return the columns that are sketches."""
        return {key: one for key, one in self.columns.items() if isinstance(one, Sketch)}

    def with_sketches(self, sketches: Mapping[Asked, Sketch]) -> Sequences:
        """Return the rows with some sketches replaced."""
        return replace(self, columns=_Reduced({**self.columns, **sketches}))

    def take(self, start: int, stop: int, empty: int) -> Sequences:
        """Return the sequences `start` to `stop` - 1, with `empty` rows without a token.

        Widths remain those of the whole. Sketches that hold counts cannot be split.
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
        """Concatenate the sequences of parts, in order."""
        first = parts[0]
        joined = merge_fields(
            parts, dtype=first.dtype, guard=first.guard, width=max(rows.width for rows in parts)
        )
        return replace(joined, columns=_Reduced(joined.columns))

    @property
    def epsilon(self) -> float:
        """Return what trainers add to counts before dividing; it has no effect in float32."""
        return self.guard.epsilon if self.dtype == np.float64 else 0.0

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())


class _Reduced(dict[Asked, Any]):
    """Columns that a pass over the tokens has computed; the tokens are no longer in memory."""

    def __missing__(self, asked: Asked) -> Any:
        raise NotAsked(asked)


class NotAsked(RcdiagError):
    """A reduction is requested after the pass that was not requested while recording."""

    def __init__(self, asked: Asked, who: str = "a correction") -> None:
        self.asked = asked
        super().__init__(
            f"{who} requests {asked}, which the pass over the tokens did not compute",
            hint="request it before any branch that depends on numbers of the batch: the requests "
            "are recorded by running the same functions once on a batch of made-up numbers",
        )


class _Recording(dict[Asked, Any]):
    """Columns that record each request and return ones."""

    def __missing__(self, asked: Asked) -> Any:
        count = int(_LENGTHS.sum()) if asked.reduction in ("values", "sketch") else len(_LENGTHS)
        ones = np.ones(count)
        self[asked] = Sketch((ones,)) if asked.reduction == "sketch" else ones
        return self[asked]


class _Computed(dict[Asked, Any]):
    """Columns that are computed on request, from tokens in memory."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._reduction = _Reduction(tokens)

    def __missing__(self, asked: Asked) -> Any:
        self[asked] = self._reduction.of(asked)
        return self[asked]


class _Reduction:
    """The tokens of some sequences, and reductions of their quantities by sequence."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._starts = starts_of(tokens.lengths)
        # The last computed quantity; its other reductions are often requested next.
        self._last: tuple[Any, Any] = (None, None)

    def of(self, asked: Asked) -> Any:
        """Compute a reduction by sequence; squares are taken in the arithmetic of the quantity."""
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
    """The reductions that some code requests of the rows of a batch."""

    of_sampled: tuple[Asked, ...] = ()
    of_masked: tuple[Asked, ...] = ()  # over the response tokens that the mask leaves out


_LENGTHS = np.array([2, 3])


def recording_rows(dtype: type[np.floating]) -> Sequences:
    """Return a small batch that records all requests; see `questions`.

    It has two sequences, one row without a token and some masked tokens, so that code which checks
    for any of these still makes its requests.
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
    """Return the requests that recording rows received, grouped by quantity."""

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
    """Return the rows of a pair, plus `empty` rows without a token.

    They hold the reductions that are `asked`; without `asked` they keep the tokens and compute each
    reduction on request.
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
