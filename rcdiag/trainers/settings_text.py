"""Settings as the YAML that a trainer reads: numbers, quotes, comments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rcdiag.errors import RcdiagError

Value = str | float | bool | None
# Trainers clamp log-ratios to +-20: ratios end at 2.1e-9 and 4.9e8, and nothing is beyond these.
BELOW_ALL, ABOVE_ALL = 1e-9, 1e9


class Inexpressible(RcdiagError):
    """A trainer has no settings for it; the message says for what."""


@dataclass(frozen=True, slots=True)
class Written:
    """Settings in a trainer's own names, and what has to be said beside some of them."""

    settings: dict[str, Value] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)  # above the setting of that name

    def __or__(self, other: Written) -> Written:
        return Written(self.settings | other.settings, self.comments | other.comments)


def digits(value: float) -> str:
    """The shortest decimal within a share of 1e-14 of a positive number; `inf` as Python reads it.

    Reciprocals and exponentials are off by roundings: 1 / (1 / 0.3) is to be written 0.3.
    """
    return dotted(repr(rounded(value)))


def rounded(value: float) -> float:
    """The number with the fewest digits within a share of 1e-14 of a positive number."""
    for precision in range(1, 17):
        short = float(f"{value:.{precision}g}")
        if short == value or abs(short - value) <= 1e-14 * value:
            return short
    return float(value)


def dotted(text: str) -> str:
    """YAML 1.1 takes 1e-04 for text: a number needs a dot, and a sign in its exponent."""
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa}.0{exponent}{power}" if exponent and "." not in mantissa else text


def scalar(value: Value) -> str:
    """Thresholds that are text go into quotes: without them YAML reads 0.5_5 as 0.55."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return dotted(repr(value))
    return value if value[0].isalpha() else f'"{value}"'


def block(written: Written, head: Sequence[str], places: Sequence[str]) -> str:
    """The YAML to paste: comments of the head, then the settings below the names of `places`."""
    lines = [f"# {line}" for line in head]
    lines += [f"{'  ' * depth}{place}:" for depth, place in enumerate(places)]
    indent = "  " * len(places)
    for name, value in written.settings.items():
        if name in written.comments:
            lines.append(f"{indent}# {written.comments[name]}")
        lines.append(f"{indent}{name}: {scalar(value)}")
    return "\n".join(lines) + "\n"
