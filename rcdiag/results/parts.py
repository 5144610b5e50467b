"""Short `repr` of results: long lists and dictionaries are summarised, long texts are cut.

In a notebook each is a small table. `result.frame()` and `result.to_json()` have everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from html import escape
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, force_setattr

# Characters at most of a text, of a value within a line, and of what is printed by itself.
TEXT, LINE, WHOLE = 70, 100, 600
ENTRIES = 5  # entries shown of a list or dictionary that is printed by itself
FEW = 8  # this many numbers or texts are printed as Python prints them
PLAIN = (str, int, float, type(None))


class Short(Struct, frozen=True):
    """A struct whose lists and dictionaries print short, those within them too."""

    def __post_init__(self) -> None:
        for name, value in zip(self.__struct_fields__, astuple(self), strict=True):
            if (type(value) is dict or type(value) is list) and value:
                force_setattr(self, name, _listed(value))


class Part(Short, frozen=True, forbid_unknown_fields=True):
    """A part of a result: plain data with documented fields."""

    def __repr__(self) -> str:
        """Write the fields that are not null, each in short."""
        values = (f"{name}={text}" for name, text in _fields(self))
        return f"{type(self).__name__}({_joined(values, WHOLE)})"

    def _repr_html_(self) -> str:
        return _table(type(self).__name__, _fields(self))


class ShortDict(dict[Any, Any]):
    """A dictionary that prints its size, its first entries, and the names of the others."""

    def __repr__(self) -> str:
        return "\n".join([_size(self), *(f"  {name}: {text}" for name, text in self._rows())])

    def _repr_html_(self) -> str:
        return _table(_size(self), self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        names = _joined(map(str, islice(self, ENTRIES, None)), LINE)
        left = [(f"and {len(self) - ENTRIES} more", names)] if names else []
        return [
            *((str(name), short(value)) for name, value in islice(self.items(), ENTRIES)),
            *left,
        ]


class ShortList(list[Any]):
    """A list that prints its size and its first entries."""

    def __repr__(self) -> str:
        return "\n".join([_size(self), *(f"  {place}: {text}" for place, text in self._rows())])

    def _repr_html_(self) -> str:
        return _table(_size(self), self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        left = [("...", f"{len(self) - ENTRIES:,} more")] if len(self) > ENTRIES else []
        return [*((str(place), short(value)) for place, value in enumerate(self[:ENTRIES])), *left]


def _listed(value: Any) -> Any:
    """Return a list or dictionary as one that prints short; a few numbers or texts as they are."""
    if type(value) is dict and not _is_brief(value.values()):
        return ShortDict((name, _listed(item)) for name, item in value.items())
    if type(value) is list and not _is_brief(value):
        # Lists of thousands of pairs of numbers are not looked through.
        return ShortList(value if len(value) > LINE else map(_listed, value))
    return value


def _is_brief(values: Collection[Any]) -> bool:
    return len(values) <= FEW and all(
        len(value) <= TEXT if isinstance(value, str) else isinstance(value, PLAIN)
        for value in values
    )


def _size(values: Any) -> str:
    """Say how many entries there are, and of what kind they are if they are parts."""
    named = isinstance(values, dict)
    kinds = {type(value) for value in (values.values() if named else values)}
    of_parts = len(kinds) == 1 and all(issubclass(kind, Part) for kind in kinds)
    kind = next(iter(kinds)).__name__ if of_parts else "entries"
    return f"{len(values):,} {kind}{' by name' if named else ''}"


def _fields(part: Part) -> list[tuple[str, str]]:
    """Return the fields of a part that are not null, with their short texts."""
    values = ((name, getattr(part, name)) for name in part.__struct_fields__)
    return [(name, short(value)) for name, value in values if value is not None]


def _table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows
    )
    return f"<table><caption>{escape(caption)}</caption><tbody>{body}</tbody></table>"


def _joined(texts: Iterable[str], most: int) -> str:
    """Join texts with commas as long as they fit into `most` characters."""
    joined = ""
    for text in texts:
        if joined and len(joined) + len(text) > most:
            return f"{joined}, ..."
        joined += f"{', ' if joined else ''}{text}"
    return joined


def short(value: Any) -> str:
    """Write a value in about 100 characters at most."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return repr(value if len(value) <= TEXT else f"{value[:TEXT]}...")
    if isinstance(value, Mapping):
        entries = [f"{name!r}: {short(one)}" for name, one in islice(value.items(), LINE)]
        whole = ", ".join(entries)
        if len(whole) < LINE:
            return f"{{{whole}}}"
        if all(isinstance(one, PLAIN) for one in value.values()) and len(value) <= FEW:
            return f"{{{_joined(entries, LINE)}}}"
        return f"<{len(value)}: {_joined(map(str, value), LINE // 2)}>"
    if isinstance(value, (list, tuple)):
        whole = ", ".join(map(short, value[:LINE]))
        return f"[{whole}]" if len(whole) < LINE else f"<{_size(value)}>"
    if isinstance(value, Part):
        values = ((name, getattr(value, name)) for name in value.__struct_fields__)
        plain = [f"{name}={short(one)}" for name, one in values if isinstance(one, PLAIN[:-1])]
        return f"{type(value).__name__}({_joined(plain, LINE)})"
    return repr(value)
