"""Settings are written as the YAML that a trainer reads: numbers, quotes, comments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rcdiag.errors import RcdiagError

Value = str | float | bool | None
# Trainers clamp log-ratios to +-20: ratios end at 2.1e-9 and 4.9e8, and nothing is beyond these.
BELOW_ALL, ABOVE_ALL = 1e-9, 1e9


class Inexpressible(RcdiagError):
    """A correction for which a trainer has no settings; the message names what it lacks."""


@dataclass(frozen=True, slots=True)
class Written:
    """Settings in a trainer's own names, with comments on some of them."""

    settings: dict[str, Value] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)  # above the setting of that name

    def __or__(self, other: Written) -> Written:
        return Written(self.settings | other.settings, self.comments | other.comments)


def digits(value: float) -> str:
    """Return the shortest decimal near a positive number, within a share of 1e-14.

    Reciprocals and exponentials are off by roundings: 1 / (1 / 0.3) is to be written 0.3.
    """
    return dotted(repr(rounded(value)))


def rounded(value: float) -> float:
    """Return the number with the fewest digits within a share of 1e-14 of a positive number."""
    for precision in range(1, 17):
        short = float(f"{value:.{precision}g}")
        if short == value or abs(short - value) <= 1e-14 * value:
            return short
    return float(value)


def dotted(text: str) -> str:
    """Add the dot without which YAML 1.1 takes 1e-04 for text; its exponent has a sign."""
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa}.0{exponent}{power}" if exponent and "." not in mantissa else text


def scalar(value: Value) -> str:
    """Write a value; a threshold that is text is quoted, or YAML would read 0.5_5 as 0.55."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return dotted(repr(value))
    return value if value[0].isalpha() else f'"{value}"'


def overrides(settings: Mapping[str, Value], places: Sequence[str]) -> list[str]:
    """Write settings as overrides of Hydra, one word each: `algorithm.gamma=1.0`.

    Text other than a plain word is quoted: Hydra reads 0.5_5 as a number, and a comma as a choice.
    https://hydra.cc/docs/advanced/override_grammar/basic/
    """
    return [
        f"{'.'.join([*places, name])}={_hydra_value(value)}" for name, value in settings.items()
    ]


def _hydra_value(value: Value) -> str:
    is_text = isinstance(value, str) and not value.replace("_", "").isalpha()
    return f'"{value}"' if is_text else scalar(value)


def block(written: Written, head: Sequence[str], places: Sequence[str]) -> str:
    """Write the YAML to paste: comments of the head, then settings below the names of `places`."""
    lines = [f"# {line}" for line in head]
    lines += [f"{'  ' * depth}{place}:" for depth, place in enumerate(places)]
    indent = "  " * len(places)
    for name, value in written.settings.items():
        if name in written.comments:
            lines.append(f"{indent}# {written.comments[name]}")
        lines.append(f"{indent}{name}: {scalar(value)}")
    return "\n".join(lines) + "\n"
