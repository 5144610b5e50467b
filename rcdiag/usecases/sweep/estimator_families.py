"""Families of estimators, and the settings of each that a sweep tries.

The grids are wide, round and the same for every table, so that the states of two tables add up. To
add a family: one entry in FAMILIES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.corrections.correction import Correction, Level, Rejection, Weighting
from rcdiag.corrections.describe import describe
from rcdiag.entry import Entry

Bounds = dict[str, float]

# Up to this many values of a grid are rounded to three digits.
ROUND_UP_TO = 100
FEWEST_PER_SIDE = 8


def per_side(thresholds: int) -> int:
    """Return the number of values of each of two bounds, for a grid of about `thresholds`."""
    return max(FEWEST_PER_SIDE, round(float(np.sqrt(thresholds))))


def spread(low: float, high: float, count: int, always: Sequence[float] = ()) -> list[float]:
    """Return about `count` log-spaced values from `low` to `high`, and those in `always`."""
    digits = 3 if count <= ROUND_UP_TO else 6
    even = np.geomspace(low, high, max(count - len(always), 2))
    return sorted({*(float(f"{value:.{digits}g}") for value in even), *always})


def _ratios(reach: float, count: int, always: Sequence[float]) -> list[float]:
    """Return ratios above 1 whose logs are log-spaced, since small differences near 1 matter."""
    digits = 3 if count <= ROUND_UP_TO else 6
    even = np.exp(np.geomspace(0.02, np.log(reach), max(count - len(always), 2)))
    return sorted({*(float(f"{value:.{digits}g}") for value in even), *always})


def uppers(reach: float, always: Sequence[float], count: int) -> list[Bounds]:
    """Return a grid of one upper bound on a ratio."""
    return [{"upper": value} for value in _ratios(reach, count, always)]


def windows(reach: float, thresholds: int) -> list[Bounds]:
    """Return a grid of lower and upper bounds on a ratio, from 1 / reach to reach."""
    count = per_side(thresholds)
    highs = _ratios(reach, count, (2.0, 5.0))
    digits = 3 if count <= ROUND_UP_TO else 6
    lows = sorted({float(f"{1.0 / value:.{digits}g}") for value in highs})
    return [{"lower": low, "upper": high} for low, high in product(lows, highs)]


def _distances(count: int) -> list[float]:
    return spread(1e-5, 0.1, count, (0.001, 0.01))


def geometric_windows(thresholds: int) -> list[Bounds]:
    """Return a grid of bounds 1 - a and 1 + b on the geometric ratio."""
    sides = _distances(per_side(thresholds))
    return [
        {"lower": round(1.0 - below, 9), "upper": round(1.0 + above, 9)}
        for below, above in product(sides, sides)
    ]


def geometric_pairs(reach: float, thresholds: int) -> list[Bounds]:
    """Return a grid of windows 1 - a to 1 + a on the geometric ratio, times bounds of weights."""
    side = per_side(thresholds)
    return [
        {"rs_lower": round(1.0 - away, 9), "rs_upper": round(1.0 + away, 9), "is_upper": upper}
        for away, upper in product(_distances(side), _ratios(reach, side, (2.0, 5.0)))
    ]


def k3_pairs(reach: float, thresholds: int) -> list[Bounds]:
    """Return a grid of upper bounds of the mean k3, times upper bounds of weights."""
    side = per_side(thresholds)
    return [
        {"rs_upper": k3, "is_upper": upper}
        for k3, upper in product(
            spread(1e-6, 1.0, side, (0.001, 0.01)), _ratios(reach, side, (2.0, 5.0))
        )
    ]


TOKEN_REACH, SEQUENCE_REACH = 100.0, 1000.0


class EstimatorFamily(Struct, frozen=True):
    """A kind of estimator; its settings differ only in their bounds."""

    title: str
    about: str
    level: Level  # level of the ratios that are bounded; of rejection, if there are weights too
    axis: str  # the bound that rows are ordered by
    grid: Callable[[int], list[Bounds]]  # number of settings -> about that many settings
    correction: Callable[[Bounds], Correction]
    also_called: Mapping[str, str] = field(default_factory=dict)  # name in a document -> which

    @property
    def middle(self) -> Bounds:
        """Return bounds from the middle of the grid, for an example."""
        tried = settings(self, 20)
        return tried[len(tried) // 2]

    def entry(self) -> Entry:
        """Return what the estimator does, what its bounds apply to, and an example setting."""
        bounds, units = self.middle, "bounds as ratios"
        correction = self.correction(bounds)
        if any(one.statistic.endswith(("_k2", "_k3")) for one in correction.rejections):
            alone = correction.weighting is None
            units = "bounds in nats" if alone else "rs_upper in nats, is_upper a ratio"
        return Entry(
            what=f"{self.title}: {self.about} Bounds hold by {self.level}; rows are ordered by "
            f"{self.axis}.",
            direction="ratio = target / behavior probability",
            units=units,
            example=f"{bounds_text(bounds)}: {describe(correction)}",
            see=("bounds", self.level, "weight_distance", "efficiency"),
            also_called=self.also_called,
        )


def bounds_text(bounds: Bounds) -> str:
    """Write bounds as text: `lower 0.5, upper 2`."""
    return ", ".join(f"{name} {value:.9g}" for name, value in bounds.items()) or "no bounds"


def _truncated(level: Level, bounds: Bounds) -> Correction:
    return Correction(Weighting(level, bounds["upper"]))


def _zeroed(level: Level, bounds: Bounds) -> Correction:
    return Correction(Weighting(level, bounds["upper"], bounds["lower"], "zero"))


def _masked(level: Level, bounds: Bounds) -> Correction:
    """Return MIS: the ratio as weight inside the bounds, rejection outside."""
    upper, lower = bounds["upper"], bounds["lower"]
    return Correction(Weighting(level, upper, lower, "mask"), (Rejection(level, upper, lower),))


def _rejected(statistic: str, bounds: Bounds) -> Correction:
    return Correction(rejections=(Rejection(statistic, bounds["upper"], bounds.get("lower")),))


def _pair(statistic: str, level: Level, bounds: Bounds) -> Correction:
    rejection = Rejection(statistic, bounds["rs_upper"], bounds.get("rs_lower"))
    return Correction(Weighting(level, bounds["is_upper"]), (rejection,))


def _k_family(statistic: str, low: float, high: float, what: str) -> EstimatorFamily:
    return EstimatorFamily(
        f"rejection by {statistic}",
        f"Keeps {what}; what is kept has weight 1.",
        "token" if statistic.startswith("token") else "sequence",
        "upper",
        lambda count: [{"upper": value} for value in spread(low, high, count, (0.01,))],
        partial(_rejected, statistic),
    )


_VERL = "verl, docs/algo/rollout_corr_math.md"
_K2, _K3 = "log_ratio^2 / 2", "ratio - 1 - log_ratio"

FAMILIES: dict[str, EstimatorFamily] = {
    "token_tis": EstimatorFamily(
        "token TIS",
        "Weight min(ratio, upper) for each token.",
        "token",
        "upper",
        partial(uppers, TOKEN_REACH, (1.0, 2.0, 5.0, 10.0)),
        partial(_truncated, "token"),
    ),
    "seq_tis": EstimatorFamily(
        "sequence TIS",
        "Weight min(product of ratios, upper) for all tokens of a sequence.",
        "sequence",
        "upper",
        partial(uppers, SEQUENCE_REACH, (1.0, 2.0, 5.0, 10.0)),
        partial(_truncated, "sequence"),
    ),
    "token_icepop": EstimatorFamily(
        "token IcePop",
        "The ratio as weight within [lower, upper], 0 outside; the loss mask stays.",
        "token",
        "upper",
        partial(windows, TOKEN_REACH),
        partial(_zeroed, "token"),
    ),
    "seq_icepop": EstimatorFamily(
        "sequence IcePop",
        "The product of ratios as weight within [lower, upper], 0 outside; the loss mask stays.",
        "sequence",
        "upper",
        partial(windows, SEQUENCE_REACH),
        partial(_zeroed, "sequence"),
    ),
    "token_mis": EstimatorFamily(
        "token MIS",
        "The ratio as weight within [lower, upper]; tokens outside leave the loss mask.",
        "token",
        "upper",
        partial(windows, TOKEN_REACH),
        partial(_masked, "token"),
    ),
    "seq_mis": EstimatorFamily(
        "sequence MIS",
        "The product of ratios as weight within [lower, upper]; sequences outside are rejected.",
        "sequence",
        "upper",
        partial(windows, SEQUENCE_REACH),
        partial(_masked, "sequence"),
    ),
    "token_rs": EstimatorFamily(
        "rejection of tokens by ratio",
        "Tokens with a ratio outside [lower, upper] leave the loss mask; the others weigh 1.",
        "token",
        "upper",
        partial(windows, TOKEN_REACH),
        partial(_rejected, "token"),
    ),
    "seq_rs": EstimatorFamily(
        "rejection of sequences by ratio",
        "Sequences with a product of ratios outside [lower, upper] go; the others weigh 1.",
        "sequence",
        "upper",
        partial(windows, SEQUENCE_REACH),
        partial(_rejected, "sequence"),
    ),
    "geo_rs": EstimatorFamily(
        "rejection by geometric ratio",
        "Sequences with a geometric mean of ratios outside [lower, upper] go; the others weigh 1.",
        "geometric",
        "upper",
        geometric_windows,
        partial(_rejected, "geometric"),
        also_called={"K1-RS": _VERL},
    ),
    "token_k2": _k_family("token_k2", 1e-5, 20.0, f"tokens with {_K2} up to a bound"),
    "token_k3": _k_family("token_k3", 1e-5, 100.0, f"tokens with {_K3} up to a bound"),
    "seq_sum_k2": _k_family("seq_sum_k2", 1e-4, 100.0, f"sequences by the sum of {_K2}"),
    "seq_sum_k3": _k_family("seq_sum_k3", 1e-4, 100.0, f"sequences by the sum of {_K3}"),
    "seq_mean_k2": _k_family("seq_mean_k2", 1e-6, 1.0, f"sequences by the mean of {_K2}"),
    "seq_mean_k3": replace(
        _k_family("seq_mean_k3", 1e-6, 1.0, f"sequences by the mean of {_K3}"),
        also_called={"K3-RS": _VERL},
    ),
    "seq_max_k2": _k_family("seq_max_k2", 1e-5, 20.0, f"sequences by the largest {_K2}"),
    "seq_max_k3": _k_family("seq_max_k3", 1e-5, 100.0, f"sequences by the largest {_K3}"),
    "veto": EstimatorFamily(
        "veto",
        "Rejects sequences with a token whose ratio is below the bound; the others weigh 1.",
        "sequence",
        "lower",
        lambda count: [{"lower": value} for value in spread(1e-8, 0.9, count, (1e-4, 0.5))],
        lambda bounds: Correction(veto=bounds["lower"]),
    ),
    "geo_rs_token_tis": EstimatorFamily(
        "geometric rejection and token TIS",
        "Rejects sequences by the geometric ratio; tokens of the others weigh min(ratio, upper).",
        "geometric",
        "rs_upper",
        partial(geometric_pairs, TOKEN_REACH),
        partial(_pair, "geometric", "token"),
        also_called={"K1-RS-Token-TIS": _VERL},
    ),
    "geo_rs_seq_tis": EstimatorFamily(
        "geometric rejection and sequence TIS",
        "Rejects sequences by the geometric ratio; the others weigh min(product of ratios, upper).",
        "geometric",
        "rs_upper",
        partial(geometric_pairs, SEQUENCE_REACH),
        partial(_pair, "geometric", "sequence"),
    ),
    "k3_rs_token_tis": EstimatorFamily(
        "rejection by mean k3 and token TIS",
        "Rejects sequences by their mean k3; tokens of the others weigh min(ratio, upper).",
        "sequence",
        "rs_upper",
        partial(k3_pairs, TOKEN_REACH),
        partial(_pair, "seq_mean_k3", "token"),
    ),
    "k3_rs_seq_tis": EstimatorFamily(
        "rejection by mean k3 and sequence TIS",
        "Rejects sequences by their mean k3; the others weigh min(product of ratios, upper).",
        "sequence",
        "rs_upper",
        partial(k3_pairs, SEQUENCE_REACH),
        partial(_pair, "seq_mean_k3", "sequence"),
    ),
}


def settings(family: EstimatorFamily, thresholds: int, own: Sequence[Bounds] = ()) -> list[Bounds]:
    """Return the settings of a family and the user's own ones, in the order of its axis."""
    grid = family.grid(thresholds)
    grid += [bounds for bounds in own if bounds not in grid]
    return sorted(grid, key=lambda bounds: (bounds[family.axis], *bounds.values()))
