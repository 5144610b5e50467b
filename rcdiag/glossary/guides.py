"""Ideal and healthy range in words, from a guide."""

from __future__ import annotations

import math

from rcdiag.statistics.metrics.metric import Bound, Guide


def range_of(ideal: float | None, guide: Guide | None) -> str | None:
    """`ideal 0; warning from 0.001 on, error from 0.01 on (source)`."""
    said = [] if ideal is None else [f"ideal {ideal:g}"]
    if guide is not None:
        said.append(_bounds(guide))
    return "; ".join(said) or None


def _bounds(guide: Guide) -> str:
    """Bounds that depend on the data are told by their source."""
    found = [
        f"{level} {_side(guide)} {bound:g}"
        for level, bound in (("warning", guide.warning), ("error", guide.error))
        if not callable(bound) and math.isfinite(bound)
    ]
    return f"{', '.join(found)} ({guide.source})" if found else guide.source


def _side(guide: Guide) -> str:
    if guide.around is not None:
        return f"where the distance from {guide.around:g} reaches"
    return "at or below" if _number(guide.error) < _number(guide.warning) else "at or above"


def _number(bound: Bound) -> float:
    return math.nan if callable(bound) else bound
