"""Short `repr` of results: long lists and dictionaries are summarised, long texts are cut.

In a notebook a part is a small table. `result.frame()` and `result.to_json()` have everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from msgspec import Struct

TEXT, LINE = 70, 100  # characters at most of a text, and of a list, a dictionary or a part
NAMES = 4  # keys shown of a large dictionary


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a result: plain data with documented fields."""

    def __repr__(self) -> str:
        """Write the fields that are not null, each in short."""
        values = ", ".join(f"{name}={text}" for name, text in _fields(self))
        return f"{type(self).__name__}({values})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in _fields(self)
        )
        return f"<table><caption>{type(self).__name__}</caption><tbody>{rows}</tbody></table>"


def _fields(part: Part) -> list[tuple[str, str]]:
    """Return the fields of a part that are not null, with their short texts."""
    values = ((name, getattr(part, name)) for name in part.__struct_fields__)
    return [(name, short(value)) for name, value in values if value is not None]


def short(value: Any) -> str:
    """Write a value in about 100 characters at most."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return repr(value if len(value) <= TEXT else f"{value[:TEXT]}...")
    if isinstance(value, Mapping):
        some = list(value.items())[:LINE]  # more than a short text holds
        whole = ", ".join(f"{key!r}: {short(one)}" for key, one in some)
        names = ", ".join(map(str, list(value)[:NAMES])) + ", ..." * (len(value) > NAMES)
        return f"{{{whole}}}" if len(whole) < LINE else f"<{len(value)}: {names}>"
    if isinstance(value, (list, tuple)):
        whole = ", ".join(map(short, value[:LINE]))
        return f"[{whole}]" if len(whole) < LINE else f"<{len(value)} {type(value[0]).__name__}>"
    whole = repr(value)
    if isinstance(value, Part) and len(whole) >= LINE:
        return f"{type(value).__name__}(...)"
    return whole
