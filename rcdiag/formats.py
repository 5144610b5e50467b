"""Numbers and counts as text, for screens, pages, findings and sentences.

A number has as many digits as its 95% interval justifies: the value and the ends are rounded to
the second significant digit of the interval's width. Without an interval it has three digits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import floor, isfinite, log10
from typing import Any, Protocol

NOT_AVAILABLE = "n/a"
# Numbers below this are rounding errors of float64, written as zero.
NOISE = 1e-12
# The most decimals near 1, and the most digits anywhere: engines round log-probs.
DECIMALS, DIGITS = 4, 5
# Numbers from here on are written as powers of ten, smaller ones with commas: 1,230,000.
LARGE = 1e9
# Digits of an exponent -> superscripts, which all fonts and terminals have.
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class WithInterval(Protocol):
    """A number with its 95% interval; an end is None if the table cannot determine it."""

    @property
    def value(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def level(self) -> str | None: ...


def number(value: float | None) -> str:
    """Return a number without an interval with three digits; near 1 up to four decimals."""
    if value is None:
        return NOT_AVAILABLE
    if not isfinite(value):
        return str(value)
    if abs(value) < NOISE:
        return "0"
    distance = abs(value - 1.0)
    if distance < NOISE:
        return "1"
    if distance < 0.1:
        return f"{value:.{min(1 - _exponent(distance), DECIMALS)}f}"
    return f"{float(f'{value:.3g}'):,.0f}" if 1e3 <= abs(value) < LARGE else f"{value:.3g}"


def measured(number_: WithInterval) -> tuple[str, str]:
    """Return a number and its 95% interval as text: `0.025` and `0.021 to 0.032`.

    The interval is `up to 0.032` or `from 0.021` if one end cannot be determined, and empty if it
    has no ends or no width.
    """
    value, low, high = number_.value, number_.low, number_.high
    ends = [end for end in (low, high) if end is not None]
    if value is None or not ends or low == high:
        return number(value), ""
    width = abs(ends[-1] - ends[0]) if len(ends) == 2 else 2.0 * abs(value - ends[0])
    largest = max(abs(value), *map(abs, ends))
    if width < NOISE:
        return number(value), ""
    if not isfinite(width) or not isfinite(largest):
        return number(value), between(
            *(None if end is None else number(end) for end in (low, high))
        )
    most = DECIMALS if abs(largest - 1.0) < 0.1 else DIGITS - 1 - _exponent(largest)
    decimals = min(1 - _exponent(width), most)
    # A value far below the width of its interval keeps one digit.
    own = max(decimals, min(-_exponent(value), 6)) if abs(value) >= NOISE else decimals
    # A value below 1e-4 and an end just above are written alike.
    powers = abs(value) < 1e-4 and largest < 1e-3

    def end_of(end: float | None, beyond_0: bool) -> str | None:
        """Write an end; where 0 is outside the interval, with decimals that show it."""
        if end is None or not beyond_0 or abs(end) < NOISE:
            return None if end is None else _rounded(end, decimals, powers)
        own = -_exponent(end)
        return _rounded(end, max(decimals, own), powers or own > 6)

    ends_of = end_of(low, (low or 0.0) > 0.0), end_of(high, (high or 0.0) < 0.0)
    return _rounded(value, own, powers), between(*ends_of)


def with_interval(number: WithInterval) -> str:
    """Return a number with its 95% interval in brackets: `0.025 (0.021 to 0.032)`."""
    value, interval = measured(number)
    return f"{value} ({interval})" if interval else value


def between(low: str | None, high: str | None) -> str:
    """Return the ends of an interval as text; an end that cannot be determined is None."""
    if low is None:
        return "" if high is None else f"up to {high}"
    return f"from {low}" if high is None else f"{low} to {high}"


def _rounded(value: float, decimals: int, powers: bool) -> str:
    """Round to `decimals`, left of the point if negative; `powers` writes a power of ten."""
    if abs(value) < NOISE:
        return "0"
    if powers or abs(value) >= LARGE:
        return f"{value:.{max(_exponent(value) + decimals, 0)}e}"
    return f"{round(value, decimals):z,.{max(decimals, 0)}f}"


def _exponent(value: float) -> int:
    return floor(log10(abs(value)))


def percentage(share: float) -> str:
    """Return a share as a percentage of three digits; 100% only if the share is 1."""
    if not isfinite(share):
        return number(share)
    percent = 100.0 * share
    if percent in (0.0, 100.0):
        return f"{percent:.0f}%"
    if abs(percent) < 0.01:
        return "<0.01%" if percent > 0.0 else ">-0.01%"
    digits = next((d for d in (3, 4, 5, 6) if float(f"{percent:.{d}g}") != 100.0), None)
    return "100%" if digits is None else f"{float(f'{percent:.{digits}g}'):,.10g}%"


def percent(number: WithInterval) -> str:
    """Return a measured share as whole per cent, with one decimal below 10%."""
    if number.value is None:
        return NOT_AVAILABLE
    return f"{100.0 * number.value:z.{0 if abs(number.value) >= 0.1 else 1}f}%"


def share(number: WithInterval) -> str:
    """Return a share as `percent` does, or `unknown` if its interval is too wide."""
    return "unknown" if number.level == "unknown" else percent(number)


def part_of(part: int, whole: int) -> str:
    """Return a count as a percentage of all, with one decimal; 100% only if all are counted."""
    return "100%" if part == whole else f"{100.0 * part / whole:.1f}%"


def fraction(value: float | None) -> str:
    """Return a number between 0 and 1 with three decimals."""
    return NOT_AVAILABLE if value is None else f"{value:.3f}"


def effective(samples: float) -> str:
    """Return an effective sample size with two digits, and without decimals from 10 on."""
    return f"{samples:,.0f}" if 10.0 <= samples < 1e15 else f"{samples:.2g}"


def effective_share(share: WithInterval, count: int) -> str:
    """Return an effective share of `count` samples, with its interval, as their effective number.

    `157 (up to 177)` for a share of 0.533, at most 0.602, of 294.
    """
    value, low, high = (
        None if part is None else effective(max(part * count, 1.0))
        for part in (share.value, share.low, share.high)
    )
    return f"{value}" if low == high else f"{value} ({between(low, high)})"


def plural(count: int, noun: str, several: str = "") -> str:
    """Return a count with its noun: `1 sequence`, `2,304 sequences`, `2 batches`."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"


def listed(names: Sequence[object], most: int = 1) -> str:
    """List the first `most` names or numbers, and the number of the others: `a, b and 3 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(map(str, names[:most]))}{more}"


def shortest_names(paths: Sequence[str]) -> list[str]:
    """Shorten paths or keys to their last parts, as many as it takes to tell each from the others.

    Of `healthy/metrics.jsonl`, `failed/metrics.jsonl` and `runs/other.jsonl` the last one alone
    becomes shorter: `other.jsonl`.
    """
    parts = [path.split("/") for path in paths]
    shortest = (
        next(
            (n for n in range(1, len(one)) if [of[-n:] for of in parts].count(one[-n:]) == 1),
            len(one),
        )
        for one in parts
    )
    return ["/".join(one[-n:]) for one, n in zip(parts, shortest, strict=True)]


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours: `45 s`, `12 min`, `1 h 40 min`."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60:,} h {minutes % 60} min"


def capitalised(text: str) -> str:
    """Write a text with a large first letter, unless its first word is a name such as vLLM."""
    first = text.partition(" ")[0]
    return f"{text[0].upper()}{text[1:]}" if first.isalpha() and first.islower() else text


def after_colon(sentence: str) -> str:
    """Write a sentence with a small first letter, unless its first word is a name such as KL."""
    plain = re.match(r"[A-Z](?:[a-z]+\b| )", sentence)
    return f"{sentence[0].lower()}{sentence[1:]}" if plain else sentence


def as_sentence(text: str) -> str:
    """Write a text as a sentence: `capitalised`, with a full stop."""
    return f"{capitalised(text)}{'' if text.endswith('.') else '.'}"


def shortened(value: str, most: int) -> str:
    """Replace the middle of a text of more than `most` characters by an ellipsis."""
    half = (most - 1) // 2
    return value if len(value) <= most else f"{value[:half]}…{value[-half:]}"


LARGE_WORDS = ((1e9, "billion"), (1e6, "million"))
LARGEST_IN_WORDS = 1e12  # from here on powers of ten are easier to read than words


def rough(value: float, digits: int = 2) -> str:
    """Return an estimate with some significant digits: `240`, `19 million`, `3.1e+14`."""
    if not isfinite(value) or abs(value) >= LARGEST_IN_WORDS:
        return f"{value:.{digits}g}"
    rounded = float(f"{value:.{digits}g}")
    for size, word in LARGE_WORDS:
        if abs(rounded) >= size:
            return f"{rounded / size:.{digits + 1}g} {word}"
    return f"{rounded:,.0f}" if abs(rounded) >= 10.0 ** (digits - 1) else f"{rounded:.{digits}g}"


def from_to(first: float, last: float) -> str:
    """Return two estimates with as many digits as differ: `9.5e-05 to 1.2e-04`, `1 to 0.996`.

    Where five digits are equal one is returned: `0.2`.
    """
    return " to ".join(dict.fromkeys(distinct(first, last)))


def distinct(*values: float) -> list[str]:
    """Return estimates in one notation, with two digits, or more (up to five) until they differ."""
    sizes = sorted(map(abs, values))
    powers = NOISE < sizes[0] < 1e-4 and sizes[-1] < 1e-3
    texts: list[str] = []
    for digits in range(2, DIGITS + 1):
        texts = [f"{x:.{digits - 1}e}" if powers else rough(x, digits) for x in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


def mean_ratio(value: float) -> str:
    """Return a mean ratio, whose distance from 1 matters: `1.0042`, `0.874`, `240`."""
    distance = abs(value - 1.0)
    if not isfinite(value) or distance >= 1.0:
        return rough(value)
    if distance >= 0.1:
        return f"{value:.3f}"
    decimals = 4 if distance == 0.0 else max(4, 1 - floor(log10(distance)))
    return f"{value:.{min(decimals, 9)}f}"


def share_of(share: float, what: str = "rows") -> str:
    """Return a share of things in words: `all rows`, `27% of the rows`, `under 1% of the rows`."""
    if share >= 0.995:
        return f"all {what}"
    return f"{share:.0%} of the {what}" if share >= 0.005 else f"under 1% of the {what}"


def yaml_value(value: Any) -> str:
    """Return a value in YAML: null, true, and bounds such as 0.5_2 in quotes."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    bounds = isinstance(value, str) and "_" in value and value[0].isdigit()
    return f'"{value}"' if bounds else f"{value}"
