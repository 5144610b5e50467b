"""Formats of dumps are explained by the words on their readers."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, Kind, first_clause
from rcdiag.table.readers import READERS


def entry(name: str) -> Entry:
    reader = READERS[name]
    return Entry(
        name=name,
        kind=KIND.title,
        what=reader.says,
        example=f"names in a folder: {', '.join(reader.patterns)}",
    )


KIND: Kind = Kind(
    title="format",
    plural="Formats of dumps",
    names=lambda: READERS,
    line=lambda name: first_clause(READERS[name].says),
    entry=entry,
)
