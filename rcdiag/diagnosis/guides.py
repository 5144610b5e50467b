"""The one place where a number is compared with its guide."""

from __future__ import annotations

import math

from rcdiag.results.guide import Guide

LEVELS = ("ok", "unknown", "warning", "error")  # the last is the worst


def level(
    guide: Guide, value: float | None, low: float | None = None, high: float | None = None
) -> str | None:
    """Level of a number by its guide, its 95% interval counted; None where it is no number.

    The level is `unknown` where the interval reaches from `ok` to `error`: the data cannot tell.
    """
    if value is None or math.isnan(value):
        return None
    if low is None or high is None:
        return _level_at(guide, value)
    if guide.by_interval and guide.around is not None:
        return _level_at(guide, min(max(guide.around, low), high))
    ends = {_level_at(guide, low), _level_at(guide, value), _level_at(guide, high)}
    return "unknown" if {"ok", "error"} <= ends else _level_at(guide, value)


def _level_at(guide: Guide, value: float) -> str:
    """Level of a number without an interval."""
    size = value if guide.around is None else abs(value - guide.around)
    sign = -1.0 if guide.error < guide.warning else 1.0
    if sign * size >= sign * guide.error:
        return "error"
    return "warning" if sign * size >= sign * guide.warning else "ok"


def worst(levels: list[str]) -> str:
    """The worst of several levels; `ok` of none."""
    return max(levels, key=LEVELS.index, default="ok")
