"""Figures of reports are explained by the words on their definitions."""

from __future__ import annotations

import re

from rcdiag.glossary.entry import Entry, Kind
from rcdiag.pages.figures import FIGURES

TITLE = "figure"


def entry(name: str) -> Entry:
    figure = FIGURES[name]
    return Entry(
        name=name,
        kind=TITLE,
        what=f"{figure.title}, in reports of `rcdiag {figure.kind}`. {figure.says}",
        example=f"rcdiag report {figure.kind}.json --plots figures --figure {name} writes "
        f"figures/{name}.pdf, .svg and .png",
    )


def _registered(name: str) -> str | None:
    """Return the registered name of a figure for any spelling of it; None where there is none."""
    written = re.sub(r"[\s_-]+", "-", name.lower())
    return written if written in FIGURES else None


KIND: Kind = Kind(
    title=TITLE,
    plural="Figures of reports",
    names=lambda: FIGURES,
    line=lambda name: f"{FIGURES[name].title} ({FIGURES[name].kind})",
    entry=entry,
    find=_registered,
)
