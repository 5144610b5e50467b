"""Comparison of nested numbers by name."""

from __future__ import annotations

import math
from typing import Any


def differing(wanted: Any, found: Any, tolerance: float, name: str = "") -> list[str]:
    """Describe where nested numbers differ by more than a relative tolerance, one line each.

    Two NaN are equal. Sums of cancelling terms may differ by the tolerance in absolute terms.
    """
    if isinstance(wanted, dict) and isinstance(found, dict):
        lines = [f"{name} only one has {key}" for key in wanted.keys() ^ found.keys()]
        for key in wanted.keys() & found.keys():
            lines += differing(wanted[key], found[key], tolerance, f"{name}/{key}")
        return sorted(lines)
    if isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
        if len(wanted) != len(found):
            return [f"{name}: {len(wanted)} wanted, {len(found)} found"]
        pairs = enumerate(zip(wanted, found, strict=True))
        return [
            line
            for at, (one, other) in pairs
            for line in differing(one, other, tolerance, f"{name}[{at}]")
        ]
    return [] if _close(wanted, found, tolerance) else [f"{name}: {wanted!r} wanted, {found!r}"]


def _close(wanted: Any, found: Any, tolerance: float) -> bool:
    numbers = (int, float)
    if not (isinstance(wanted, numbers) and isinstance(found, numbers)):
        return bool(wanted == found)
    if math.isnan(wanted) or math.isnan(found):
        return math.isnan(wanted) and math.isnan(found)
    if math.isinf(wanted) or math.isinf(found):
        return wanted == found
    return abs(wanted - found) <= tolerance * max(1.0, abs(wanted), abs(found))
