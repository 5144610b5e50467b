"""Entries of engines, figures, and formats of dumps and logs."""

from __future__ import annotations

from collections.abc import Mapping

from rcdiag.engines import BACKENDS
from rcdiag.glossary.kinds import NameKind
from rcdiag.logs import LOG_READERS
from rcdiag.pages.figures import FIGURES
from rcdiag.table.readers import READERS
from rcdiag.table.readers.reader import Reader
from rcdiag.trainers import TRAINERS, families, trainers_not_computed

BACKENDS_OF_POLICIES = NameKind(
    title="backend", plural="Backends that score policies", definitions=lambda: BACKENDS
)
FIGURES_OF_REPORTS = NameKind(
    title="figure",
    plural="Figures of reports",
    definitions=lambda: FIGURES,
    line=lambda figure: f"{figure.title} ({figure.kind})",
)


def _formats() -> Mapping[str, Reader]:
    """Return formats by name; a format named like a trainer or engine is listed as `verl dump`."""
    others = {*TRAINERS, *families(), *trainers_not_computed(), *BACKENDS}
    return {f"{name} dump" if name in others else name: reader for name, reader in READERS.items()}


FORMATS = NameKind(title="format", plural="Formats of dumps", definitions=_formats)
LOGS = NameKind(
    title="format of logs",
    plural="Formats of logs",
    definitions=lambda: {f"{name} log": reader for name, reader in LOG_READERS.items()},
)
