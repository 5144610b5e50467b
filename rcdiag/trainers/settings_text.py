"""Write settings in the format that a trainer reads (YAML, TOML or flags), with comments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct, field

from rcdiag.errors import RcdiagError

Value = str | float | bool | None | Sequence[Any]
# "flags" have a value each; "switches" use dashes, and have no value if they are true.
Form = Literal["yaml", "toml", "flags", "switches"]
# Trainers clamp log-ratios to +-20: ratios are between 2.1e-9 and 4.9e8, within these bounds.
BELOW_ALL, ABOVE_ALL = 1e-9, 1e9


class Inexpressible(RcdiagError):
    """A trainer's settings cannot express a correction; the message names what is missing."""


class Written(Struct, frozen=True):
    """Settings by the trainer's names, with comments on some of them."""

    settings: dict[str, Value] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)  # above the setting of that name


def digits(value: float) -> str:
    """Return the shortest decimal within a relative error of 1e-14 of a positive number.

    Reciprocals and exponentials have rounding errors: 1 / (1 / 0.3) must be written as 0.3.
    """
    return dotted(repr(rounded(value)))


def rounded(value: float) -> float:
    """Round a positive number to the fewest digits with a relative error of at most 1e-14."""
    for precision in range(1, 17):
        short = float(f"{value:.{precision}g}")
        if short == value or abs(short - value) <= 1e-14 * value:
            return short
    return float(value)


def dotted(text: str) -> str:
    """Add the dot without which YAML 1.1 reads 1e-04 as text; the exponent has a sign already."""
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa}.0{exponent}{power}" if exponent and "." not in mantissa else text


def scalar(value: Value) -> str:
    """Write a value; a threshold that is text is quoted, as YAML would read 0.5_5 as 0.55."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return dotted(repr(float(value)))
    if not isinstance(value, str):
        return _flow(value)
    return value if value[0].isalpha() else f'"{value}"'


def _flow(value: Any) -> str:
    """Write a list or mapping on one line, in YAML's flow style."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{name}: {_flow(inner)}" for name, inner in value.items())
        return f"{{{inside}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_flow, value))}]"
    return scalar(value)


def overrides(settings: Mapping[str, Value]) -> list[str]:
    """Write settings by dotted names as Hydra overrides, one word each: `algorithm.gamma=1.0`.

    Text other than a plain word is quoted, as Hydra reads 0.5_5 as a number and a comma as a sweep.
    https://hydra.cc/docs/advanced/override_grammar/basic/
    """
    words = []
    for name, value in settings.items():
        is_text = isinstance(value, str) and not value.replace("_", "").isalpha()
        words.append(f'{name}="{value}"' if is_text else f"{name}={scalar(value)}")
    return words


def text_of(written: Written, head: Sequence[str], names: Mapping[str, str], form: Form) -> str:
    """Write settings with the head as comments above them; `names` are their dotted names."""
    return "\n".join([*(f"# {line}" for line in head), *_FORMS[form](written, names)]) + "\n"


def _yaml_lines(written: Written, names: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    above: list[str] = []
    for name, value in written.settings.items():
        *place, last = names[name].split(".")
        same = 0
        while same < min(len(place), len(above)) and place[same] == above[same]:
            same += 1
        lines += [f"{'  ' * depth}{place[depth]}:" for depth in range(same, len(place))]
        above, indent = place, "  " * len(place)
        if name in written.comments:
            lines.append(f"{indent}# {written.comments[name]}")
        lines.append(f"{indent}{last}: {scalar(value)}")
    return lines


def _toml_lines(written: Written, names: Mapping[str, str]) -> list[str]:
    """Write TOML, where null is expressed by leaving the key out."""
    lines: list[str] = []
    table = ""
    for name, value in written.settings.items():
        above, _, last = names[name].rpartition(".")
        if above != table:
            lines += [f"[{above}]"]
            table = above
        if name in written.comments:
            lines.append(f"# {written.comments[name]}")
        if value is not None:
            quoted = f'"{value}"' if isinstance(value, str) else scalar(value)
            lines.append(f"{last} = {quoted}")
    return lines


def _flag_lines(written: Written, names: Mapping[str, str], *, switches: bool = False) -> list[str]:
    """Write flags with one value each: `--rho_clamp_upper_bound 2.0`; null is left out.

    `switches` use dashes; true ones have no value and false ones are left out.
    """
    lines = [f"# {comment}" for comment in written.comments.values()]
    for name, value in written.settings.items():
        flag = f"--{names[name].replace('_', '-') if switches else names[name]}"
        if switches and isinstance(value, bool):
            lines += [flag] if value else []
        elif isinstance(value, (list, tuple)):
            lines.append(f"{flag} {' '.join(scalar(item) for item in value)}")
        elif value is not None:
            lines.append(f"{flag} {value if isinstance(value, str) else scalar(value)}")
    return lines


_FORMS: dict[Form, Callable[[Written, Mapping[str, str]], list[str]]] = {
    "yaml": _yaml_lines,
    "toml": _toml_lines,
    "flags": _flag_lines,
    "switches": partial(_flag_lines, switches=True),
}
