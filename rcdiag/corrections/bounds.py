"""Where a correction begins to act, as log-ratios: what figures mark."""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.config import Correction, Rejection

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
