"""Formats of dumps and of logs are explained by the words on their readers."""

from __future__ import annotations

from rcdiag.engines import BACKENDS
from rcdiag.glossary.entry import Entry, Kind, first_clause
from rcdiag.logs import LOG_READERS
from rcdiag.table.readers import READERS
from rcdiag.trainers import TRAINERS, families

DUMP, LOG = " dump", " log"


def _names() -> list[str]:
    """Return the names of formats: `verl dump`, where `verl` is a trainer or an engine."""
    others = {*TRAINERS, *families(), *BACKENDS}
    return [f"{name}{DUMP}" if name in others else name for name in READERS]


def entry(name: str) -> Entry:
    reader = READERS[name.removesuffix(DUMP)]
    return Entry(
        name=name,
        kind=KIND.title,
        what=reader.says,
        example=f"names in a folder: {', '.join(reader.patterns)}",
        links={"what writes it": reader.source} if reader.source else {},
    )


KIND: Kind = Kind(
    title="format",
    plural="Formats of dumps",
    names=_names,
    line=lambda name: first_clause(READERS[name.removesuffix(DUMP)].says),
    entry=entry,
)


def log_entry(name: str) -> Entry:
    """Explain a format of logs."""
    reader = LOG_READERS[name.removesuffix(LOG)]
    return Entry(
        name=name,
        kind=LOGS.title,
        what=f"A trainer's own log that `rcdiag score --logged` reads: {reader.says}.",
        example="rcdiag score rollouts.parquet --logged FILE",
        see=("log_format", "theirs"),
    )


LOGS: Kind = Kind(
    title="format of logs",
    plural="Formats of logs",
    names=lambda: [f"{name}{LOG}" for name in LOG_READERS],
    line=lambda name: first_clause(LOG_READERS[name.removesuffix(LOG)].says),
    entry=log_entry,
)
