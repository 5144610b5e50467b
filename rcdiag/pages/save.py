"""Figures are written as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rcdiag.files import write_bytes
from rcdiag.pages.drawn import drawing
from rcdiag.pages.figures import applying
from rcdiag.pages.svg import rendered
from rcdiag.pages.sweep.families import family_figure
from rcdiag.results import Result, SweepResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figures(result: Result, folder: Path) -> list[Path]:
    """Write every figure into the folder as NAME.png and NAME.svg; return the paths."""
    written = []
    for name, title, figure in _titled(result):
        figure.axes[0].set_title(title, loc="left")
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            write_bytes(path, rendered(figure, kind))
            written.append(path)
    return written


def _titled(result: Result) -> Iterator[tuple[str, str, Figure]]:
    """Return the figures of a result; for a sweep those of its families too."""
    yield from ((spec.name, spec.title, drawing(spec, result)) for spec in applying(result))
    if isinstance(result, SweepResult):
        for name, family in result.families.items():
            yield f"family-{name}", family.title, family_figure(family)
