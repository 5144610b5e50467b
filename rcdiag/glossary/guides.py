"""A guide and an ideal value become words here: the healthy range of a number."""

from __future__ import annotations

import math

from rcdiag.results.guide import Guide


def range_of(ideal: float | None, guide: Guide | None) -> str | None:
    """Write ideal and guide: `ideal 0; warning at or above 0.001 (source)`; None without both."""
    parts = [] if ideal is None else [f"ideal {ideal:g}"]
    if guide is not None:
        parts.append(bounds_of(guide))
    return "; ".join(parts) or None


def bounds_of(guide: Guide) -> str:
    """Write the bounds of a guide: `warning at or above 0.001, error at or above 0.01 (source)`.

    Infinite bounds are left out.
    """
    side = "below" if guide.error < guide.warning else "above"
    place = "at or {} {:g}" if guide.around is None else "{1:g} or more away from {2:g}"
    bounds = [
        f"{level} {place.format(side, bound, guide.around)}"
        for level, bound in (("warning", guide.warning), ("error", guide.error))
        if math.isfinite(bound)
    ]
    return f"{', '.join(bounds)} ({guide.source})"
