"""Settings as windows over bins, whose sums are read from cumulative sums.

Numbers are sorted once into bins between the bounds of all settings. The sum over a window of
bounds is then the sum over consecutive bins, so that a thousand settings cost as much as one sort.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.corrections.apply import EstimatorSettings
from rcdiag.corrections.correction import Rejection

Array = NDArray[np.float64]
Index = NDArray[np.int64]


class BinWindows(Struct, frozen=True):
    """Windows [lower, upper], bounds included, as consecutive bins.

    Bin j holds the values v with edges[j - 1] < v <= edges[j]; the last bin holds values above all
    edges, and NaN, and belongs to no window. `v >= lower` is `v > the float before lower`.
    """

    edges: Array  # ascending
    first: Index  # [windows] first bin of each
    last: Index  # [windows] last bin of each; below `first` if the window is empty

    @classmethod
    def between(cls, lower: Array, upper: Array) -> BinWindows:
        """Make the windows [lower, upper], both [windows]."""
        before = np.nextafter(lower, -np.inf)
        edges = np.unique(np.concatenate([before[lower > -np.inf], upper]))
        first = np.where(lower > -np.inf, np.searchsorted(edges, before) + 1, 0)
        return cls(edges, first, np.searchsorted(edges, upper))

    @property
    def count(self) -> int:
        """Return the number of bins."""
        return len(self.edges) + 1

    def key(self) -> tuple[bytes, bytes, bytes]:
        """Return a hashable key that only equal windows share."""
        return self.edges.tobytes(), self.first.tobytes(), self.last.tobytes()

    def inside(self, binned: Array) -> Array:
        """Sum over the bins of each window, [..., windows]; `binned` is [..., bins].

        Sums start at the lower bound of each window: the difference of two sums from the first bin
        would lose the digits of small ratios next to large ones.
        """
        first, last = self.first, self.last
        if (last == last[0]).all() and (first <= last).all():
            # All windows end at the same bin: one cumulative sum from there serves all of them.
            upward = np.cumsum(binned[..., last[0] :: -1], axis=-1)
            result: Array = np.take(upward, last[0] - first, axis=-1)
            return result
        sums = np.zeros((*binned.shape[:-1], len(first)))
        for start in np.unique(first):
            at = np.flatnonzero((first == start) & (last >= start))
            if len(at):
                upward = np.cumsum(binned[..., start : last[at].max() + 1], axis=-1)
                sums[..., at] = np.take(upward, last[at] - start, axis=-1)
        return sums

    def outside(self, binned: Array) -> Array:
        """Sum over the bins outside each window, [..., windows]; `binned` is [..., bins]."""
        nothing = np.zeros((*binned.shape[:-1], 1))
        below = np.concatenate([nothing, np.cumsum(binned, axis=-1)], axis=-1)
        end = np.maximum(self.last, self.first - 1)  # outside an empty window are all bins
        result: Array = below[..., self.first] + sums_above(binned)[..., end]
        return result


def sums_above(binned: Array) -> Array:
    """Sum over all bins above each edge, [..., edges]; `binned` is [..., edges + 1]."""
    return np.cumsum(binned[..., :0:-1], axis=-1)[..., ::-1]


def excess_above(counts: Array, over: Array, edges: Array) -> Array:
    """Sum (value - edge)+ for each edge, [rows, edges].

    `over` holds sums of (value - edge below it) by bin. X_k = X_{k+1} + over_{k+1} +
    (edge_{k+1} - edge_k) #(above edge_{k+1}) has only positive terms, so no digits are lost.
    """
    steps = over[:, 1:].copy()
    steps[:, :-1] += np.diff(edges) * sums_above(counts)[:, 1:]
    return np.cumsum(steps[:, ::-1], axis=1)[:, ::-1]


# Quantities of weights, which are 0 outside a window although the sequences stay in the loss.
OF_WEIGHTS = ("means", "squared_means", "weights", "squares", "gap", "over", "true", "mass")
# Quantities of weights as trainers log them: before rejection.
LOGGED = ("logged", "logged_squares")


class Layout(Struct, frozen=True):
    """The settings of a family: windows over bins of sequences, times columns.

    A family that keeps or weighs whole sequences by a statistic has sums by bin of that statistic.
    The rest of its settings, such as upper bounds of weights, are the columns of the sums; many
    settings share a column.
    """

    settings: EstimatorSettings
    # The distinct settings without the statistic of sequences.
    columns: EstimatorSettings
    column: Index  # [settings] index in `columns`
    # The statistic of sequences: that of a rejection; "veto", the smallest log-ratio; or "weight",
    # the ratio that becomes the weight. None: there is a single bin.
    statistic: Rejection | str | None = None
    windows: BinWindows | None = None  # the distinct windows
    window: Index | None = None  # [settings] index in `windows`

    @classmethod
    def of(cls, settings: EstimatorSettings) -> Layout:
        """Make the layout of a family's settings."""
        weighting = settings.weighting
        if settings.veto is not None:
            assert not settings.rejections
            assert not settings.veto_on_weights
            bounds = settings.veto, np.full(settings.count, np.inf)
            return cls._by("veto", bounds, settings, replace(settings, veto=None))
        if settings.rejections and not settings.rejects_tokens:
            (rejection,) = settings.rejections
            bounds = settings.reject_lower[0], settings.reject_upper[0]
            none = np.empty((0, settings.count))
            left = replace(settings, rejections=(), reject_lower=none, reject_upper=none)
            return cls._by(rejection, bounds, settings, left)
        if weighting is not None and weighting.outside == "zero" and not weighting.by_token:
            assert not weighting.nan_stays
            assert not weighting.only_outside
            bounds = settings.weight_lower, settings.weight_upper
            left = replace(settings, weighting=replace(weighting, outside="mask"))
            return cls._by("weight", bounds, settings, left)
        return cls(settings, *_different(settings))

    @classmethod
    def _by(
        cls,
        statistic: Rejection | str,
        bounds: tuple[Array, Array],
        settings: EstimatorSettings,
        left: EstimatorSettings,
    ) -> Layout:
        different, window = np.unique(np.stack(bounds), axis=1, return_inverse=True)
        windows = BinWindows.between(different[0], different[1])
        return cls(settings, *_different(left), statistic, windows, window.reshape(-1))

    @property
    def rejects(self) -> bool:
        """Tell whether sequences or tokens outside the bounds leave the loss."""
        return bool(self.settings.rejections) or self.settings.veto is not None

    @property
    def bins(self) -> int:
        """Return the number of bins of sequences."""
        return 1 if self.windows is None else self.windows.count

    def read(self, quantity: str, sums: Array, *, outside: bool = False) -> Array:
        """Return the sums of every setting, [..., settings], from `sums` [..., bins, columns].

        They are over the sequences in the window of each setting, or with `outside` over the
        others; a quantity that windows do not change is summed over all sequences.
        """
        column = self.column if sums.shape[-1] > 1 else np.zeros_like(self.column)
        if self.rejects:
            in_window = quantity not in (*LOGGED, "excess")
        else:
            in_window = quantity in (*OF_WEIGHTS, *LOGGED)
        if self.windows is None or not in_window:
            of_columns = np.zeros_like(sums[..., 0, :]) if outside else sums.sum(axis=-2)
            return np.take(of_columns, column, axis=-1)
        binned = np.moveaxis(sums, -1, -2)
        read = self.windows.outside if outside else self.windows.inside
        return read(binned)[..., column, self.window]


def _different(settings: EstimatorSettings) -> tuple[EstimatorSettings, Index]:
    """Return the distinct settings, which have no veto, and the index of each setting in them."""
    weighting = settings.weighting
    bounds = np.concatenate([settings.reject_lower, settings.reject_upper])
    if weighting is not None and weighting.outside != "mask":
        bounds = np.concatenate([settings.weight_lower[None], settings.weight_upper[None], bounds])
    at, column = np.zeros(1, np.int64), np.zeros(settings.count, np.int64)
    if len(bounds):
        _, at, column = np.unique(bounds, axis=1, return_index=True, return_inverse=True)
    different = replace(
        settings,
        count=len(at),
        weight_lower=settings.weight_lower if weighting is None else settings.weight_lower[at],
        weight_upper=settings.weight_upper if weighting is None else settings.weight_upper[at],
        reject_lower=settings.reject_lower[:, at],
        reject_upper=settings.reject_upper[:, at],
    )
    return different, column.reshape(-1)
