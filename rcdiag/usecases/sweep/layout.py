"""How the settings of a family are read off sums that are much fewer than the settings.

A setting keeps the sequences whose statistic is inside its bounds. Sums are kept by bin of that
statistic, and a setting's own sum is that over its bins. What is left of the settings then, such as
upper bounds of weights, makes the columns of the sums, each of which many settings share.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.apply import Settings, ratio, statistic_of_rows
from rcdiag.corrections.correction import Rejection, Weighting
from rcdiag.usecases.sweep.by_cluster import Array, Index
from rcdiag.usecases.sweep.thresholds import Chunk, Window, inside

# Sums over the kept sequences, and over those that have a weight in the loss.
OF_KEPT = ("kept", "alive", "kept_mass", "mass", "reward", "advantage")
OF_WEIGHED = ("means", "squared_means", "weights", "squares", "gap", "over", "true")
LOGGED = ("logged", "logged_squares")
# Behind the name of a reward or advantage: sequences for which it is not known. These sums are made
# where there are such sequences, which many tables do not have.
UNKNOWN = "_unknown"


class Nested(Struct, frozen=True):
    """Windows [lower, upper], bounds included, each of which lies inside the next one.

    Bin j holds what the window j has and the one before it has not; the last bin, which no window
    reaches, what is in none of them, and NaN.
    """

    lower: Array  # [windows] descending
    upper: Array  # [windows] ascending

    @property
    def count(self) -> int:
        """Return the number of bins."""
        return len(self.lower) + 1

    @property
    def first(self) -> Index:
        """Return the first bin of each window."""
        return np.zeros(len(self.lower), np.int64)

    @property
    def last(self) -> Index:
        """Return the last bin of each window."""
        return np.arange(len(self.lower))

    def bins(self, values: Array) -> Index:
        """Return the bin of each value."""
        return np.maximum(
            np.searchsorted(self.upper, values), np.searchsorted(-self.lower, -values)
        )


class SequenceBins(Struct, frozen=True):
    """Bins of sequences by a statistic of theirs, and the windows of the settings over it."""

    of: Rejection | Weighting | None  # what has the statistic; None: the smallest log-ratio
    windows: Window | Nested  # [windows], different ones
    window: Index  # [settings] the window of each

    @classmethod
    def between(cls, of: Rejection | Weighting | None, lower: Array, upper: Array) -> SequenceBins:
        """Lay out the windows [lower, upper] of all settings."""
        bounds, window = np.unique(np.stack([-lower, upper]), axis=1, return_inverse=True)
        low, high = -bounds[0], bounds[1]  # descending lower bounds
        nested = bool((high[1:] >= high[:-1]).all())
        windows = Nested(low, high) if nested else Window.of(low, high)
        return cls(of, windows, window.reshape(-1))

    def bins(self, chunk: Chunk) -> Index:
        """Return the bin of every sequence of a chunk."""
        return self.windows.bins(self._statistic(chunk))

    def only(self, setting: int) -> SequenceBins:
        """Return the same bins, with the window of one setting alone."""
        runs, at = self.windows, self.window[[setting]]
        # The windows of some settings alone: edges that bins are made by are not asked for again.
        window = Window(np.empty(0), runs.first[at], runs.last[at], b"")
        return SequenceBins(self.of, window, np.zeros(1, np.int64))

    def _statistic(self, chunk: Chunk) -> Array:
        if self.of is None:
            return chunk.lowest
        if isinstance(self.of, Weighting):
            return ratio(chunk.rows, self.of.level, self.of.over)
        return statistic_of_rows(chunk.rows, self.of)


def outside(binned: Array, windows: Window | Nested) -> Array:
    """Return sums over the bins outside each window, [rows, windows]; `binned` is [rows, bins]."""
    nothing = np.zeros((len(binned), 1))
    below = np.concatenate([nothing, np.cumsum(binned, axis=1)], axis=1)
    above = np.concatenate([nothing, np.cumsum(binned[:, ::-1], axis=1)], axis=1)[:, ::-1]
    return below[:, windows.first] + above[:, np.maximum(windows.last + 1, windows.first)]


class Layout(Struct, frozen=True):
    """The settings of a family as windows over bins of sequences, and what is left of them."""

    settings: Settings
    left: Settings  # different ones, which reject no sequence by a statistic of its own
    column: Index  # [settings] which of those that are left each is
    kept: SequenceBins | None  # None: all settings keep all sequences
    zeroed: SequenceBins | None  # the loss mask stays, but weights outside are 0

    @classmethod
    def of(cls, settings: Settings) -> Layout:
        """Lay out the settings of a family."""
        kept = zeroed = None
        left = settings
        if settings.veto is not None:
            assert not settings.rejections
            assert not settings.veto_on_weights
            kept = SequenceBins.between(
                None, settings.veto, np.full(settings.count, np.inf, np.float64)
            )
            left = replace(left, veto=None)
        elif settings.rejections and not settings.rejects_tokens:
            (rejection,) = settings.rejections
            kept = SequenceBins.between(
                rejection, settings.reject_lower[0], settings.reject_upper[0]
            )
            nothing = np.empty((0, settings.count))
            left = replace(left, rejections=(), reject_lower=nothing, reject_upper=nothing)
        weighting = settings.weighting
        if weighting is not None and weighting.outside == "zero" and not weighting.by_token:
            assert kept is None
            assert not weighting.nan_stays
            assert not weighting.only_outside
            zeroed = SequenceBins.between(weighting, settings.weight_lower, settings.weight_upper)
            left = replace(left, weighting=replace(weighting, outside="mask"))
        return cls(settings, *_different(left), kept, zeroed)

    def only(self, setting: int) -> Layout:
        """Return the layout of one setting, which is read off the sums of all."""
        return replace(
            self,
            column=self.column[[setting]],
            kept=self.kept and self.kept.only(setting),
            zeroed=self.zeroed and self.zeroed.only(setting),
        )

    @property
    def weighed(self) -> SequenceBins | None:
        """Return the bins of the sequences that have a weight in the loss."""
        return self.kept or self.zeroed

    def bins_of(self, quantity: str) -> SequenceBins | None:
        """Return the bins by which a quantity is kept; None where all sequences are together."""
        if quantity in LOGGED:
            return self.zeroed
        if quantity in OF_WEIGHED:
            return self.weighed
        return self.kept if quantity.removesuffix(UNKNOWN) in OF_KEPT else None

    def read(self, quantity: str, sums: Array, *, rejected: bool = False) -> Array:
        """Return the sums of every setting, [..., settings], from `sums` [..., bins, columns].

        With `rejected` they are over the sequences that a setting does not keep.
        """
        by_bin = self.bins_of(quantity)
        columns = sums.shape[-1]
        column = self.column if columns > 1 else np.zeros_like(self.column)
        if by_bin is None:
            if rejected:
                return np.zeros((*sums.shape[:-2], len(column)))
            return np.take(sums[..., 0, :], column, axis=-1)
        binned = np.moveaxis(sums, -1, -2)
        added = outside if rejected else inside
        of_windows = added(binned.reshape(-1, binned.shape[-1]), by_bin.windows)
        return of_windows.reshape(*binned.shape[:-1], -1)[..., column, by_bin.window]


def _different(settings: Settings) -> tuple[Settings, Index]:
    """Return the settings without those that are the same, and which of these each one is."""
    bounds = np.concatenate([settings.reject_lower, settings.reject_upper])
    weighs = settings.weighting is not None and settings.weighting.outside != "mask"
    if weighs:
        bounds = np.concatenate([settings.weight_lower[None], settings.weight_upper[None], bounds])
    if not len(bounds):
        return _some(settings, np.zeros(1, np.int64)), np.zeros(settings.count, np.int64)
    _, at, column = np.unique(bounds, axis=1, return_index=True, return_inverse=True)
    return _some(settings, at), column.reshape(-1)


def _some(settings: Settings, at: Index) -> Settings:
    """Return some of the settings, which have no veto."""
    weighs = settings.weighting is not None
    return replace(
        settings,
        count=len(at),
        weight_lower=settings.weight_lower[at] if weighs else settings.weight_lower,
        weight_upper=settings.weight_upper[at] if weighs else settings.weight_upper,
        reject_lower=settings.reject_lower[:, at],
        reject_upper=settings.reject_upper[:, at],
    )
