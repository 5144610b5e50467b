"""Sums over the tokens of some sequences, by sequence and bin of ratio, k2 or k3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.corrections.apply import (
    EstimatorSettings,
    WeightSums,
    log_ratio,
    ratio,
    statistic_of_rows,
)
from rcdiag.corrections.arithmetic import SAFETY_BOUND, Tokens
from rcdiag.corrections.correction import Rejection
from rcdiag.corrections.quantities import LOG_RATIO, RATIO, named, true_ratio
from rcdiag.corrections.sequences import Sequences, rows_of
from rcdiag.corrections.statistics import statistic
from rcdiag.statistics.pair import PolicyPair
from rcdiag.table.trajectories import segment_max
from rcdiag.usecases.sweep.bins import Array, BinWindows, Index, Layout, excess_above, sums_above


class Chunk(Struct):
    """Consecutive sequences of a pair, with a cache of tables of their tokens.

    `corrections.apply` gets the sums over tokens from it, for any number of settings.
    """

    rows: Sequences
    tokens: Tokens
    true: Array  # [tokens] ratios without a clamp
    lowest: Array  # [sequences] smallest log-ratio, ignoring NaN
    advantage: Array  # [sequences] NaN = unknown
    made: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the cached value of a key, made at first use; families share these values."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    @property
    def lengths(self) -> Array:
        """Return the number of tokens of each sequence, [sequences, 1]."""
        return self.rows.lengths[:, None].astype(np.float64)

    @property
    def above_clamp(self) -> NDArray[np.bool_]:
        """Flag sequences with a token ratio or product of ratios above the trainer's clamp."""
        of_tokens = self.rows.min(named("k1")) <= -SAFETY_BOUND
        return of_tokens | (self.rows.sum(LOG_RATIO) >= SAFETY_BOUND)

    def bins(self, layout: Layout) -> Index:
        """Return the bin of every sequence, [sequences]."""
        if layout.windows is None:
            return np.zeros(len(self.rows), np.int64)
        if layout.statistic == "veto":
            values = self.lowest
        elif isinstance(layout.statistic, Rejection):
            values = statistic_of_rows(self.rows, layout.statistic)
        else:
            weighting = layout.settings.weighting
            assert weighting is not None
            values = ratio(self.rows, weighting.level, weighting.over)
        return np.searchsorted(layout.windows.edges, values)

    def kept_tokens(self, settings: EstimatorSettings) -> Array:
        """Count the tokens that rejection of tokens keeps, [sequences, settings]."""
        return self._kept(settings, "count") if settings.rejects_tokens else self.lengths

    def kept_true_ratios(self, settings: EstimatorSettings) -> Array:
        """Sum the true ratios of the tokens that are neither rejected nor weighted with 0."""
        if settings.rejects_tokens:
            return self._kept(settings, "true")
        if settings.discards_tokens:
            windows = BinWindows.between(settings.weight_lower, settings.weight_upper)
            return self._inside("ratio", windows, "true")
        return self.rows.sum(true_ratio)[:, None]

    def truncated_mass(self, settings: EstimatorSettings) -> Array:
        """Sum (true ratio - C)+ at the level of the weights, which are truncated at C."""
        # Tokens are sorted by clamped ratios, whose order is the same below the clamp.
        assert (settings.weight_upper < np.exp(SAFETY_BOUND)).all()
        if settings.weighs_tokens:
            edges, at = np.unique(settings.weight_upper, return_inverse=True)
            over = self._table("ratio", edges, "over")
            return excess_above(self._table("ratio", edges, "count"), over, edges)[:, at]
        true = np.exp(log_ratio(self.rows, "sequence"))[:, None]
        return np.maximum(true - settings.weight_upper, 0.0)

    def weights(self, settings: EstimatorSettings) -> WeightSums:
        """Sum the weights of all tokens, each by its own ratio."""
        assert settings.weighting is not None
        if settings.weighting.outside == "mask":
            return WeightSums(self.rows.sum(RATIO)[:, None], self.rows.squares(RATIO)[:, None])
        if settings.weighting.outside == "zero":
            windows = BinWindows.between(settings.weight_lower, settings.weight_upper)
            return WeightSums(*(self._inside("ratio", windows, of) for of in ("ratio", "squares")))
        # min(ratio, C): the ratios of tokens up to C, and C for each token above it.
        edges, at = np.unique(settings.weight_upper, return_inverse=True)
        windows = BinWindows.between(np.full(len(edges), -np.inf), edges)
        above = sums_above(self._table("ratio", edges, "count"))
        nan = np.where(np.isnan(self.rows.sum(RATIO)), np.nan, 0.0)[:, None]
        sums = self._inside("ratio", windows, "ratio") + edges * above + nan
        squares = self._inside("ratio", windows, "squares") + np.square(edges) * above + nan
        return WeightSums(sums[:, at], squares[:, at])

    def kept_weights(self, settings: EstimatorSettings) -> WeightSums:
        """Sum the ratios of the tokens that rejection of tokens keeps; no family truncates them."""
        assert settings.weighting is not None
        assert settings.weighting.outside == "mask"
        return WeightSums(self._kept(settings, "ratio"), self._kept(settings, "squares"))

    def vetoed(self, settings: EstimatorSettings) -> NDArray[np.bool_]:
        """Flag sequences that have a token below the veto, [sequences, settings]."""
        assert settings.veto is not None
        return self.lowest[:, None] < settings.veto

    def _kept(self, settings: EstimatorSettings, what: str) -> Array:
        """Sum `what` over the tokens that the only rejection of tokens keeps."""
        (rejection,) = settings.rejections
        windows = BinWindows.between(settings.reject_lower[0], settings.reject_upper[0])
        return self._inside(rejection.of_each_token, windows, what)

    def _inside(self, name: str, windows: BinWindows, what: str) -> Array:
        """Sum `what` over the tokens whose statistic is in each window, [sequences, windows]."""
        result: Array = self.once(
            (name, windows.key(), what),
            lambda: windows.inside(self._table(name, windows.edges, what)),
        )
        return result

    def _table(self, name: str, edges: Array, what: str) -> Array:
        """Sum `what` over tokens by sequence and bin of the statistic `name`, [sequences, bins].

        `what` is `count` (1), `ratio` (clamped ratio), `true` (unclamped ratio), `squares` (of the
        clamped ratio) or `over` (true ratio minus the lower edge of the bin).
        """
        rows, bins, mark = len(self.rows), len(edges) + 1, edges.tobytes()
        if what == "true" and self.true is self.tokens.ratio:  # nothing was clamped
            what = "ratio"
        owner: Index = self.once("owner", lambda: np.repeat(np.arange(rows), self.rows.lengths))

        def make() -> Array:
            bin_of = self.once(
                (name, mark), lambda: np.searchsorted(edges, statistic(self.tokens, name))
            )
            values: NDArray[np.floating] | None = None
            if what == "over":
                values = self.true - np.concatenate([[0.0], edges])[bin_of]
            elif what == "squares":
                values = self.once("squares", lambda: np.square(self.tokens.ratio))
            elif what != "count":
                values = self.tokens.ratio if what == "ratio" else self.true
            sums = np.bincount(owner * bins + bin_of, values, rows * bins)
            return sums.reshape(rows, bins).astype(np.float64, copy=False)

        result: Array = self.once((name, mark, what, "table"), make)
        return result


def chunks(pair: PolicyPair, advantage: Array, size: int) -> Iterator[Chunk]:
    """Yield the sequences of a pair in chunks of at most `size`."""
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
