"""Engines, figures, and formats of dumps and logs are explained by their definitions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rcdiag.engines import BACKENDS
from rcdiag.entry import Entry, first_clause
from rcdiag.glossary.kinds import Kind, registered
from rcdiag.logs import LOG_READERS
from rcdiag.logs.log import LogReader
from rcdiag.pages.figures import FIGURES
from rcdiag.table.readers import READERS
from rcdiag.trainers import TRAINERS, families

DUMP, LOG = " dump", " log"

BACKENDS_OF_POLICIES: Kind = registered("backend", "Backends that score policies", lambda: BACKENDS)


def _figure(name: str) -> str | None:
    """Return the name of a figure for any spelling of it; None where there is none."""
    written = re.sub(r"[\s_-]+", "-", name.lower())
    return written if written in FIGURES else None


FIGURES_OF_REPORTS: Kind = registered(
    "figure",
    "Figures of reports",
    lambda: FIGURES,
    line=lambda name: f"{FIGURES[name].title} ({FIGURES[name].kind})",
    find=_figure,
)


def _format_names() -> list[str]:
    """Return the names of formats: `verl dump`, where `verl` is a trainer or an engine."""
    others = {*TRAINERS, *families(), *BACKENDS}
    return [f"{name}{DUMP}" if name in others else name for name in READERS]


def _format(name: str) -> Entry:
    reader = READERS[name.removesuffix(DUMP)]
    return Entry(
        what=reader.says,
        example=f"names in a folder: {', '.join(reader.patterns)}",
        links={"what writes it": reader.source} if reader.source else {},
    )


FORMATS: Kind = Kind(
    title="format",
    plural="Formats of dumps",
    names=_format_names,
    line=lambda name: first_clause(READERS[name.removesuffix(DUMP)].says),
    entry=_format,
)


def _logs() -> Mapping[str, LogReader]:
    return {f"{name}{LOG}": reader for name, reader in LOG_READERS.items()}


LOGS: Kind = registered("format of logs", "Formats of logs", _logs)
