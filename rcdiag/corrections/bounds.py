"""Where a correction begins to act, as log-ratios: what figures mark.

When two corrections do the same: their bounds as log-ratios, however they are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rcdiag.corrections.correction import Correction, Level, Rejection, Weighting
from rcdiag.corrections.quantities import SAFETY_BOUND
from rcdiag.errors import RcdiagError

_LEVELS = {"seq_sum": "sequence", "seq_mean": "geometric", "token": "token"}


def log_bounds(correction: Correction) -> dict[str, list[float]]:
    """Level -> log-ratios. Bounds on k2 and k3 of sequences are no bounds on a log-ratio."""
    found: dict[str, list[float]] = {}
    weighting = correction.weighting
    if weighting is not None:
        bounds = [weighting.upper]
        if weighting.outside != "truncate":
            bounds.append(weighting.lower_or_reciprocal)
        found[weighting.level] = _logs(bounds)
    for rejection in correction.rejections:
        level, logs = _of_rejection(rejection)
        found.setdefault(level, []).extend(logs)
    return found


def _of_rejection(rejection: Rejection) -> tuple[str, list[float]]:
    if rejection.of_ratio:
        bounds = [rejection.upper, *([] if rejection.lower is None else [rejection.lower])]
        return rejection.statistic, _logs(bounds)
    aggregation, _, k = rejection.statistic.rpartition("_")
    level = _LEVELS.get(aggregation, "sequence")
    if k == "k1":  # held against -log_ratio
        return level, [-rejection.upper, *([] if rejection.lower is None else [-rejection.lower])]
    if k == "k2" and level == "token":
        size = float(np.sqrt(2.0 * rejection.upper))
        return level, [-size, size]
    return level, []


def _logs(bounds: list[float]) -> list[float]:
    """A bound of 0 bounds nothing."""
    return [float(np.log(bound)) for bound in bounds if bound > 0.0]


TOLERANCE = 1e-9  # nats
# A ratio's statistic -> its level. k1 = -log_ratio says the same with the signs turned.
LEVELS: dict[str, Level] = {
    "token": "token",
    "sequence": "sequence",
    "geometric": "geometric",
    "token_k1": "token",
    "seq_sum_k1": "sequence",
    "seq_mean_k1": "geometric",
}


@dataclass(frozen=True, slots=True)
class Window:
    """What lies in [lower, upper] is kept, nats; log-ratios (target - behavior), or k2 or k3."""

    lower: float
    upper: float

    @property
    def bounds_nothing(self) -> bool:
        return self.lower == -np.inf and self.upper == np.inf

    def near(self, other: Window) -> bool:
        pairs = ((self.lower, other.lower), (self.upper, other.upper))
        return all(a == b or abs(a - b) <= TOLERANCE for a, b in pairs)


@dataclass(frozen=True, slots=True)
class Weights:
    """The ratio at a level, held in a window: pushed to its ends, or 0 outside."""

    level: Level
    window: Window
    zeroes: bool


def log_of(bound: float | None) -> float:
    """Natural log of a bound on ratios; none and 0 bound nothing from below."""
    if bound is None or bound == 0.0:
        return -np.inf
    if not bound > 0.0:
        raise RcdiagError(f"a bound on ratios is {bound:g}", hint="give a number above 0")
    return float(np.log(bound))


def within_reach(lower: float, upper: float) -> Window:
    """A window on a log-ratio that is clamped to +-20: a bound from there on bounds nothing."""
    return Window(
        -np.inf if lower <= -SAFETY_BOUND else lower,
        np.inf if upper >= SAFETY_BOUND else upper,
    )


def weights_of(weighting: Weighting) -> Weights:
    """The weights of a correction, in one form for all four treatments."""
    if weighting.outside == "mask":
        window = Window(-np.inf, np.inf)
    else:
        lower = None if weighting.outside == "truncate" else weighting.lower_or_reciprocal
        window = within_reach(log_of(lower), log_of(weighting.upper))
    zeroes = weighting.outside == "zero" and not window.bounds_nothing
    return Weights(weighting.level, window, zeroes)


def window_of(rejection: Rejection) -> Window:
    """What a rejection keeps. k1 of tokens and its means are clamped to +-20, its sums are not."""
    lower, upper = rejection.lower, rejection.upper
    if rejection.of_ratio:
        return within_reach(log_of(lower), log_of(upper))
    if rejection.statistic not in LEVELS:  # k2 and k3, never below 0
        return Window(-np.inf if lower is None or lower <= 0.0 else lower, upper)
    turned = Window(-upper, np.inf if lower is None else -lower)
    if rejection.statistic == "seq_sum_k1":
        return turned
    return within_reach(turned.lower, turned.upper)


def windows_of(rejections: Iterable[Rejection]) -> dict[str, Window]:
    """Level of the log-ratio, or name of the k2 or k3 statistic -> what all rejections keep."""
    found: dict[str, Window] = {}
    for rejection in rejections:
        name, window = LEVELS.get(rejection.statistic, rejection.statistic), window_of(rejection)
        if name in found:
            both = (found[name], window)
            window = Window(max(each.lower for each in both), min(each.upper for each in both))
        found[name] = window
    return {name: window for name, window in found.items() if not window.bounds_nothing}


def equivalent(a: Correction, b: Correction) -> bool:
    """Whether two corrections keep the same tokens and give the same weights, in the same loss.

    Bounds are compared as log-ratios, to 1e-9 nats. Two things are not looked at: what becomes of a
    NaN, and sums of k1 with a token beyond the clamp of +-20 (a product of ratios is not clamped by
    token).
    """
    return (
        _same_weights(a, b)
        and _same_windows(windows_of(a.rejections), windows_of(b.rejections))
        and _same_veto(a, b)
        and (a.mode, a.loss) == (b.mode, b.loss)
    )


def _same_weights(a: Correction, b: Correction) -> bool:
    if a.weighting is None or b.weighting is None:
        return a.weighting is b.weighting
    one, other = weights_of(a.weighting), weights_of(b.weighting)
    return (
        (one.level, one.zeroes) == (other.level, other.zeroes)
        and one.window.near(other.window)
        and (a.batch_normalize, a.weights_applied) == (b.batch_normalize, b.weights_applied)
    )


def _same_windows(a: dict[str, Window], b: dict[str, Window]) -> bool:
    return a.keys() == b.keys() and all(a[name].near(b[name]) for name in a)


def _same_veto(a: Correction, b: Correction) -> bool:
    if a.veto is None or b.veto is None:
        return a.veto is b.veto
    near = abs(log_of(a.veto) - log_of(b.veto)) <= TOLERANCE
    return near and a.veto_on_weights == b.veto_on_weights
