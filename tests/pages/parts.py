"""All parts of a page: its blocks, their tables and cells, at any depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from rcdiag.pages.blocks import Figure
from rcdiag.results import Finding


def parts_of(value: Any) -> Iterator[Any]:
    """Yield all nested parts of the tabs, down to the cells of tables."""
    if isinstance(value, (str, bytes)) or value is None:
        return
    if isinstance(value, Mapping):
        for item in value.values():
            yield from parts_of(item)
    elif isinstance(value, Iterable):
        for item in value:
            yield from parts_of(item)
    elif isinstance(value, Struct):
        yield value
        if not isinstance(value, (Figure, Finding)):
            for name in value.__struct_fields__:
                yield from parts_of(getattr(value, name))
