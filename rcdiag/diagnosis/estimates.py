"""Sentences on causes write estimates with the digits that these have, large ones in words."""

from __future__ import annotations

from math import floor, isfinite, log10

WORDS = ((1e9, "billion"), (1e6, "million"))
LARGEST = 1e12  # from here on powers of ten say more than words


def rough(value: float) -> str:
    """Write an estimate in two significant digits: `240`, `19 million`, `3.1e+14`."""
    if not isfinite(value) or abs(value) >= LARGEST:
        return f"{value:.2g}"
    two = float(f"{value:.2g}")
    for size, word in WORDS:
        if abs(two) >= size:
            return f"{two / size:.3g} {word}"
    return f"{two:,.0f}" if abs(two) >= 10.0 else f"{two:.2g}"


def mean_ratio(value: float) -> str:
    """Write a mean of ratios, whose distance from 1 is what counts: `1.0042`, `0.874`, `240`."""
    distance = abs(value - 1.0)
    if not isfinite(value) or distance >= 1.0:
        return rough(value)
    if distance >= 0.1:
        return f"{value:.3f}"
    decimals = 4 if distance == 0.0 else max(4, 1 - floor(log10(distance)))
    return f"{value:.{min(decimals, 9)}f}"


def share_of(share: float, what: str = "rows") -> str:
    """Write a share of things: `all rows`, `27% of the rows`, `under 1% of the rows`."""
    if share >= 0.995:
        return f"all {what}"
    return f"{share:.0%} of the {what}" if share >= 0.005 else f"under 1% of the {what}"
