"""Bounds of corrections as log-ratios, for figures and for comparing two trainers' corrections."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.arithmetic import SAFETY_BOUND
from rcdiag.corrections.correction import Correction, Level, Rejection, Weighting
from rcdiag.corrections.statistics import place_and_statistic
from rcdiag.errors import RcdiagError

_PLACES = {
    "seq_sum": "sequence",
    "seq_mean": "geometric",
    "token": "token",
    "segment": "segment",
}


def log_bounds(correction: Correction) -> dict[str, list[float]]:
    """Return the log-ratios (nats) at which a correction acts, by level; k2 and k3 have none."""
    by_level: dict[str, list[float]] = {}
    weighting = correction.weighting
    if weighting is not None:
        bounds = [weighting.upper]
        if weighting.outside != "truncate":
            bounds.append(weighting.lower_or_reciprocal)
        by_level[weighting.level] = _logs(bounds)
    for rejection in correction.rejections:
        level, logs = _of_rejection(rejection)
        by_level.setdefault(level, []).extend(logs)
    return by_level


def _of_rejection(rejection: Rejection) -> tuple[str, list[float]]:
    if rejection.of_ratio and not rejection.over:
        bounds = [rejection.upper, *([] if rejection.lower is None else [rejection.lower])]
        return rejection.statistic, _logs(bounds)
    aggregation, k = place_and_statistic(rejection.statistic)
    level = _PLACES.get(aggregation, "sequence")
    if k == "k1":  # compared with -log_ratio
        return level, [-rejection.upper, *([] if rejection.lower is None else [-rejection.lower])]
    if k == "k2" and level == "token":
        size = float(np.sqrt(2.0 * rejection.upper))
        return level, [-size, size]
    return level, []


def _logs(bounds: list[float]) -> list[float]:
    """Return the logs of bounds on ratios, without 0 and infinity, which do not bound anything."""
    return [float(np.log(bound)) for bound in bounds if 0.0 < bound < np.inf]


TOLERANCE = 1e-9  # nats
# Statistic of a ratio -> its level. k1 = -log_ratio is equivalent, with the sign changed.
LEVELS: dict[str, Level] = {
    "token": "token",
    "segment": "segment",
    "sequence": "sequence",
    "geometric": "geometric",
    "token_k1": "token",
    "seq_sum_k1": "sequence",
    "seq_mean_k1": "geometric",
}


class Window(Struct, frozen=True):
    """The kept interval [lower, upper] of log_ratio (target - behavior, nats), k2 or k3."""

    lower: float
    upper: float

    @property
    def bounds_nothing(self) -> bool:
        return self.lower == -np.inf and self.upper == np.inf

    def near(self, other: Window) -> bool:
        pairs = ((self.lower, other.lower), (self.upper, other.upper))
        return all(a == b or abs(a - b) <= TOLERANCE for a, b in pairs)


class Weights(Struct, frozen=True):
    """A ratio at a level that is restricted to a window: clipped to it, or set to 0 outside.

    With `floors`, it is set to the lower end on both sides.
    """

    level: Level
    window: Window
    zeroes: bool
    floors: bool = False


def log_of(bound: float | None) -> float:
    """Return the natural log of a bound on ratios; -inf for None and 0."""
    if bound is None or bound == 0.0:
        return -np.inf
    if not bound > 0.0:
        raise RcdiagError(f"a bound on ratios is {bound:g}", hint="give a number above 0")
    return float(np.log(bound))


def within_reach(lower: float, upper: float) -> Window:
    """Return a window on a log-ratio clamped to +-20, where bounds beyond have no effect."""
    return Window(
        -np.inf if lower <= -SAFETY_BOUND else lower,
        np.inf if upper >= SAFETY_BOUND else upper,
    )


def weights_of(weighting: Weighting) -> Weights:
    """Return the weights of a correction in one form for all treatments outside the bounds."""
    if weighting.outside == "mask":
        window = Window(-np.inf, np.inf)
    else:
        lower = None if weighting.outside == "truncate" else weighting.lower_or_reciprocal
        window = within_reach(log_of(lower), log_of(weighting.upper))
    zeroes = weighting.outside == "zero" and not window.bounds_nothing
    floors = weighting.outside == "floor" and window.upper < np.inf
    return Weights(weighting.level, window, zeroes, floors)


def window_of(rejection: Rejection) -> Window:
    """Return what a rejection keeps; k1 of tokens and its means are clamped to +-20, sums not."""
    lower, upper = rejection.lower, rejection.upper
    if rejection.of_ratio or _ratio_of(rejection):
        return within_reach(log_of(lower), log_of(upper))
    if rejection.statistic not in LEVELS:
        never_below_0 = place_and_statistic(rejection.statistic)[1] in ("k2", "k3")
        if lower is None or (never_below_0 and lower <= 0.0):
            lower = -np.inf
        return Window(lower, upper)
    turned = Window(-upper, np.inf if lower is None else -lower)
    if rejection.statistic == "seq_sum_k1":
        return turned
    return within_reach(turned.lower, turned.upper)


def windows_of(rejections: Iterable[Rejection]) -> dict[str, Window]:
    """Return the window that all rejections keep, by level or by name of another statistic.

    If a statistic is computed over what other rejections keep, its name says so.
    """
    windows: dict[str, Window] = {}
    for rejection in rejections:
        name = _ratio_of(rejection) or LEVELS.get(rejection.statistic, rejection.statistic)
        window = window_of(rejection)
        for other in rejection.over:
            kept = window_of(other)
            name += f" after {other.statistic} within [{kept.lower:.9g}, {kept.upper:.9g}]"
        if name in windows:
            both = (windows[name], window)
            window = Window(max(part.lower for part in both), min(part.upper for part in both))
        windows[name] = window
    return {name: window for name, window in windows.items() if not window.bounds_nothing}


def _ratio_of(rejection: Rejection) -> str:
    """Return the level of the ratio to which a token statistic is equivalent; "" if none."""
    return "" if rejection.of_ratio or not rejection.of_tokens else rejection.reads.ratio_of


def equivalent(a: Correction, b: Correction) -> bool:
    """Tell whether two corrections keep the same tokens with the same weights in the same loss.

    Bounds are compared as log-ratios, to 1e-9 nats. Three things are ignored: the treatment of NaN;
    sums of k1 with a token beyond the clamp of +-20 (a product of ratios is not clamped by token);
    and guards, which only differ between trainers at ratios beyond e^10.
    """
    a, b = _zeroed_by_weight(a), _zeroed_by_weight(b)
    if a.veto is None or b.veto is None:
        same_veto = a.veto is b.veto
    else:
        near = abs(log_of(a.veto) - log_of(b.veto)) <= TOLERANCE
        same_veto = near and a.veto_on_weights == b.veto_on_weights
    return (
        _same_weights(a, b)
        and _same_windows(windows_of(a.rejections), windows_of(b.rejections))
        and _same_windows(windows_of(a.zeroing), windows_of(b.zeroing))
        and same_veto
        and (a.mode, _loss_in_use(a)) == (b.mode, _loss_in_use(b))
    )


def _loss_in_use(correction: Correction) -> str:
    """Return the policy loss that a correction brings along; "" if it is the trainer's own."""
    if correction.mode == "bypass" or correction.weights_in_loss:
        return correction.loss or "ppo_clip"
    return ""


def _zeroed_by_weight(correction: Correction) -> Correction:
    """Rewrite unbounded weights that are zeroed by their own ratio in the form of IcePop."""
    weighting, windows = correction.weighting, windows_of(correction.zeroing)
    if weighting is None or windows.keys() != {weighting.level} or correction.zeroing[0].over:
        return correction
    if (
        weighting.outside not in ("truncate", "clip")
        or not weights_of(weighting).window.bounds_nothing
    ):
        return correction
    window = windows[weighting.level]
    lower, upper = float(np.exp(window.lower)), float(np.exp(window.upper))
    own = replace(weighting, outside="zero", lower=lower, upper=upper)
    return replace(correction, weighting=own, zeroing=())


def _same_weights(a: Correction, b: Correction) -> bool:
    if a.weighting is None or b.weighting is None:
        return a.weighting is b.weighting
    one, other = weights_of(a.weighting), weights_of(b.weighting)
    return (
        (one.level, one.zeroes, one.floors) == (other.level, other.zeroes, other.floors)
        and one.window.near(other.window)
        and a.weighting.over == b.weighting.over
        and a.weighting.only_outside == b.weighting.only_outside
        and (a.batch_normalize, a.weights_applied) == (b.batch_normalize, b.weights_applied)
    )


def _same_windows(a: dict[str, Window], b: dict[str, Window]) -> bool:
    return a.keys() == b.keys() and all(a[name].near(b[name]) for name in a)
