"""Terminal and page write numbers by these functions."""

from __future__ import annotations

from math import floor, isfinite, log10

from rcdiag.results import MetricValue
from rcdiag.results.base import written_interval

# What is nearer to 1 is written as 1: log-probs of 32 bits do not tell ratios so near.
NEAREST = 1e-9
# Digits of a power of ten -> raised letters, which any font and any terminal has.
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None) -> str:
    """Write three significant digits; near 1 as many as its distance from 1 has two of."""
    return "n/a" if value is None else f"{value:.{near_one(value)}g}"


def near_one(value: float) -> int:
    """Return how many significant digits a number is written with: three, and more near 1."""
    distance = abs(value - 1.0)
    if not NEAREST <= distance < 0.1:
        return 3
    decimals = 1 - floor(log10(distance))
    return max(decimals + (1 if value > 1.0 else 0), 3)


def effective(samples: float) -> str:
    """Write how many samples are left, from ten on without a fraction."""
    return f"{samples:,.0f}" if 10.0 <= samples < 1e15 else f"{samples:.3g}"


def interval(value: MetricValue) -> str:
    """Write both ends of the 95% interval; empty where there is none."""
    return written_interval(value, number, " … ")


def with_interval(value: MetricValue) -> str:
    """Write a number, with its 95% interval in brackets where that has some width."""
    ends = interval(value) if value.low != value.high else ""
    return f"{number(value.value)} ({ends})" if ends else number(value.value)


def shortened(value: str, most: int) -> str:
    """Leave out the middle of a text of more than `most` letters."""
    half = (most - 1) // 2
    return value if len(value) <= most else f"{value[:half]}…{value[-half:]}"


def percent(value: MetricValue) -> str:
    """Write a share in whole per cent; one below 10% has a digit more."""
    if value.value is None:
        return "n/a"
    return f"{100.0 * value.value:z.{0 if abs(value.value) >= 0.1 else 1}f}%"


def share(value: MetricValue) -> str:
    """Write a share as `percent` does, and `unknown` where its interval is too wide to tell it."""
    return "unknown" if value.level == "unknown" else percent(value)


def part_of(part: int, whole: int) -> str:
    """Write a count as a percentage of all, with one digit; 100% only where all are counted."""
    return "100%" if part == whole else f"{100.0 * part / whole:.1f}%"


def fraction(value: float | None) -> str:
    """Write a number between 0 and 1, with three digits after the point."""
    return "n/a" if value is None else f"{value:.3f}"


def percentage(value: float) -> str:
    """Write a share as a percentage with three digits, and with more where those read 100%."""
    if not isfinite(value):
        return number(value)
    percent = 100.0 * value
    if percent == 100.0:
        return "100%"
    digits = next((d for d in (3, 4, 5, 6) if float(f"{percent:.{d}g}") != 100.0), None)
    return "100%" if digits is None else f"{percent:.{digits}g}%"
