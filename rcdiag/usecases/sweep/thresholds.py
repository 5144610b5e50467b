"""Tokens of some sequences by bin between thresholds: what every setting's sums are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from threading import Lock
from typing import Any, Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.corrections.apply import Settings, WeightSums, log_ratio, token_bounds
from rcdiag.corrections.arithmetic import SAFETY_BOUND, Tokens
from rcdiag.corrections.quantities import LOG_RATIO, RATIO, named, true_ratio
from rcdiag.corrections.sequences import Rows, rows_of
from rcdiag.corrections.statistics import statistic
from rcdiag.statistics.pair import PolicyPair
from rcdiag.table.segments import segment_max
from rcdiag.usecases.sweep.edges import Edges

Array = NDArray[np.float64]
Index = NDArray[np.int64]


class Window(Struct, frozen=True, eq=False):
    """Settings [lower, upper], bounds included, as runs of bins.

    Bin j holds values v with edges[j - 1] < v <= edges[j]; what is above all edges, and NaN, is
    in the last bin, which no setting reaches. `v >= lower` is `v > the float before lower`.
    """

    edges: Array  # ascending
    first: Index  # [settings] first bin of each
    last: Index  # [settings] last bin of each; before the first where nothing fits
    key: bytes  # the same for the same settings alone

    @classmethod
    def of(cls, lower: Array, upper: Array) -> Window:
        return _window(lower.tobytes(), upper.tobytes())

    @property
    def count(self) -> int:
        """Return the number of bins."""
        return len(self.edges) + 1

    def bins(self, values: NDArray[np.floating]) -> Index:
        """Return the bin of each value."""
        return np.searchsorted(self.edges, values)


@lru_cache(maxsize=256)  # the same settings are asked for at every chunk
def _window(lower_bounds: bytes, upper_bounds: bytes) -> Window:
    lower, upper = np.frombuffer(lower_bounds), np.frombuffer(upper_bounds)
    before = np.nextafter(lower, -np.inf)
    edges = np.unique(np.concatenate([before[lower > -np.inf], upper]))
    first = np.where(lower > -np.inf, np.searchsorted(edges, before) + 1, 0)
    last = np.searchsorted(edges, upper)
    return Window(edges, first, last, edges.tobytes() + first.tobytes() + last.tobytes())


@lru_cache(maxsize=64)
def _table_of_edges(edges: bytes) -> Edges | None:
    return Edges.of(np.frombuffer(edges))


def table(cells: Index, rows: int, columns: int, values: NDArray[np.floating] | None) -> Array:
    """Sums of `values` [tokens] (or counts) by sequence and bin, [rows, columns].

    `cells` [tokens] are sequence * columns + bin.
    """
    sums = np.bincount(cells, values, rows * columns)
    return sums.reshape(rows, columns).astype(np.float64, copy=False)


class Runs(Protocol):
    """Settings as runs of bins."""

    @property
    def first(self) -> Index: ...

    @property
    def last(self) -> Index: ...


def inside(binned: Array, runs: Runs) -> Array:
    """Sums over the bins of each setting, [rows, settings]; `binned` is [rows, bins].

    Added up from each lower bound on: a difference of two sums from the start would lose the
    digits of small ratios beside large ones.
    """
    firsts, lasts = runs.first, runs.last
    if not firsts.any() and np.array_equal(lasts, np.arange(len(lasts))):  # each up to the next
        return np.cumsum(binned[:, : len(lasts)], axis=1)
    sums = np.zeros((len(binned), len(firsts)))
    for first in np.unique(firsts):
        settings = np.flatnonzero((firsts == first) & (lasts >= first))
        if len(settings):
            last = lasts[settings]
            upward = np.cumsum(binned[:, first : last.max() + 1], axis=1)
            one, end = int(settings[0]), int(settings[-1]) + 1
            at: Index | slice = slice(one, end) if end - one == len(settings) else settings
            sums[:, at] = np.take(upward, last - first, axis=1)
    return sums


def above(binned: Array) -> Array:
    """Sums over all bins above each edge, [rows, edges]."""
    return np.cumsum(binned[:, :0:-1], axis=1)[:, ::-1]


def excess_above(counts: Array, over: Array, edges: Array) -> Array:
    """Sum of (value - edge)+ for each edge, [rows, edges].

    `over` holds sums of value - the edge below, by bin. X_k = X_{k+1} + over_{k+1} +
    (edge_{k+1} - edge_k) #(above edge_{k+1}): all terms are positive, so no digits are lost.
    """
    steps = over[:, 1:].copy()
    steps[:, :-1] += np.diff(edges) * above(counts)[:, 1:]
    return np.cumsum(steps[:, ::-1], axis=1)[:, ::-1]


class Chunk(Struct):
    """Consecutive sequences of a pair."""

    rows: Rows
    tokens: Tokens
    true: Array  # [tokens] ratios without a clamp
    lowest: Array  # [sequences] smallest log-ratio, NaN aside
    advantage: Array  # [sequences] NaN = unknown
    made: dict[Any, Any] = field(default_factory=dict)  # tables made so far
    locks: dict[Any, Lock] = field(default_factory=dict)  # one for each of them

    @property
    def above_clamp(self) -> NDArray[np.bool_]:
        """Sequences with a token, or a product of ratios, above the trainer's clamp."""
        of_tokens = self.rows.min(named("k1")) <= -SAFETY_BOUND
        return of_tokens | (self.rows.sum(LOG_RATIO) >= SAFETY_BOUND)

    @property
    def owner(self) -> NDArray[np.int64]:
        """Sequence of each token."""
        lengths = self.rows.lengths
        return self.once("owner", lambda: np.repeat(np.arange(len(lengths)), lengths))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what is made under a key, and make it the first time, in one thread alone."""
        with self.locks.setdefault(key, Lock()):
            if key not in self.made:
                self.made[key] = make()
            return self.made[key]

    def _table(self, name: str, edges: Array, what: str) -> Array:
        """Counts or sums of a token quantity by sequence and bin of the statistic `name`."""
        mark, columns = edges.tobytes(), len(edges) + 1

        def cells() -> Index:
            values, by_bits = statistic(self.tokens, name), _table_of_edges(mark)
            found = np.searchsorted(edges, values) if by_bits is None else by_bits.bins(values)
            found += self.owner * columns
            return found

        def make() -> Array:
            at = self.once((name, mark), cells)
            return table(at, len(self.rows), columns, self._values(what, edges, at))

        return self.once((name, mark, self._same(what)), make)

    def _same(self, what: str) -> str:
        """Return the name of a quantity: no clamp changes a ratio where all are within it."""
        return "ratio" if what == "true" and self.true is self.tokens.ratio else what

    def _values(self, what: str, edges: Array, cells: Index) -> NDArray[np.floating] | None:
        """Give what is added up of each token; None to count."""
        if what == "over":
            below = np.concatenate([[0.0], edges])
            return self.true - np.take(below, cells - self.owner * len(below))
        values: dict[str, NDArray[np.floating]] = {
            "ratio": self.tokens.ratio,
            "squares": self.squares,
            "true": self.true,
        }
        return None if what == "count" else values[what]

    @property
    def squares(self) -> Array:
        """Squared ratios of the tokens."""
        return self.once("squares", lambda: np.square(self.tokens.ratio))

    def inside(self, name: str, window: Window, what: str) -> Array:
        """Sums over the tokens whose statistic is inside, [sequences, settings]."""
        return self.once(
            (name, window.key, self._same(what), "inside"),
            lambda: inside(self._table(name, window.edges, what), window),
        )

    def counts(self, edges: Array) -> Array:
        """Tokens by sequence and bin of their ratio."""
        return self._table("ratio", edges, "count")

    def excess(self, edges: Array) -> Array:
        """Sum of (true ratio - edge)+ over tokens, [sequences, edges]."""
        over = self._table("ratio", edges, "over")
        return self.once(
            (edges.tobytes(), "excess"), lambda: excess_above(self.counts(edges), over, edges)
        )

    def kept_tokens(self, settings: Settings) -> Array:
        """Tokens that rejection by token keeps, [sequences, settings]."""
        if not settings.rejects_tokens:
            return self.rows.lengths[:, None].astype(np.float64)
        return self.inside(*_token_window(settings), "count")

    def kept_true_ratios(self, settings: Settings) -> Array:
        """Sum of the true ratios of the tokens that rejection by token keeps."""
        if not settings.rejects_tokens:
            return self.rows.sum(true_ratio)[:, None]
        return self.inside(*_token_window(settings), "true")

    def truncated_mass(self, settings: Settings) -> Array | None:
        """(true ratio - C)+ at the level of the weights; None where nothing is truncated."""
        if not settings.truncates:
            return None
        # True ratios are sorted by clamped ones: the same up to the clamp.
        assert (settings.weight_upper < np.exp(SAFETY_BOUND)).all()
        if settings.weighs_tokens:
            edges, index = np.unique(settings.weight_upper, return_inverse=True)
            return _taken(self.excess(edges), index)
        true = np.exp(log_ratio(self.rows, "sequence"))[:, None]
        return np.maximum(true - settings.weight_upper, 0.0)

    def weights(self, settings: Settings) -> WeightSums:
        """Weights of all tokens by their own ratio, summed by sequence."""
        assert settings.weighting is not None
        if settings.truncates:
            return self._truncated(settings.weight_upper)
        if settings.weighting.outside == "mask":
            return WeightSums(self.rows.sum(RATIO)[:, None], self.rows.squares(RATIO)[:, None])
        assert settings.weighting.outside == "zero"
        window = Window.of(settings.weight_lower, settings.weight_upper)
        return self._inside("ratio", window)

    def kept_weights(self, settings: Settings) -> WeightSums:
        """Ratios of the tokens that rejection by token keeps; no family truncates them too."""
        assert settings.weighting is not None
        assert settings.weighting.outside == "mask"
        return self._inside(*_token_window(settings))

    def vetoed(self, settings: Settings) -> NDArray[np.bool_]:
        """Sequences with a token below the veto, [sequences, settings]."""
        assert settings.veto is not None
        return self.lowest[:, None] < settings.veto

    def _inside(self, name: str, window: Window) -> WeightSums:
        return WeightSums(self.inside(name, window, "ratio"), self.inside(name, window, "squares"))

    def _truncated(self, bounds: Array) -> WeightSums:
        """Sum of min(ratio, C), and of its square: tokens up to C, and C for each above."""
        edges, index = np.unique(bounds, return_inverse=True)
        window = Window.of(np.full(len(edges), -np.inf), edges)
        counts = above(self.counts(edges))
        nan = np.where(np.isnan(self.rows.sum(RATIO)), np.nan, 0.0)[:, None]
        below = self._inside("ratio", window)
        sums = below.sum + edges * counts + nan
        squares = below.squares + np.square(edges) * counts + nan
        return WeightSums(_taken(sums, index), _taken(squares, index))


def _taken(sums: Array, index: Index) -> Array:
    """Return the columns of sums [rows, columns]; the sums themselves where these are all."""
    if np.array_equal(index, np.arange(sums.shape[1])):
        return sums
    return np.take(sums, index, axis=1)


def _token_window(settings: Settings) -> tuple[str, Window]:
    """The statistic and the bounds of the one rejection by token."""
    (rejection,) = settings.rejections
    window = Window.of(settings.reject_lower[0], settings.reject_upper[0])
    return token_bounds(rejection)[0], window


def chunks(pair: PolicyPair, advantage: Array, size: int) -> Iterator[Chunk]:
    """A pair in parts of at most `size` sequences."""
    for start in range(0, len(pair.lengths), size):
        of_part = np.zeros(len(pair.lengths), np.bool_)
        of_part[start : start + size] = True
        part = pair.take(of_part)
        ratios = part.log_ratio
        tokens = Tokens(ratios)
        yield Chunk(
            rows_of(part),
            tokens,
            true_ratio.of(tokens).astype(np.float64, copy=False),
            -segment_max(np.where(np.isnan(ratios), -np.inf, -ratios), part.lengths),
            advantage[of_part],
        )
