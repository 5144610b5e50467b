"""Figures are written as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from rcdiag.files import write_bytes
from rcdiag.pages.figures import drawn
from rcdiag.pages.svg import rendered
from rcdiag.pages.sweep.families import family_figure
from rcdiag.results import Result, SweepResult


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
    """Return the figures of the page; for a sweep those of its families too."""
    yield from ((spec.name, spec.title, figure) for spec, figure in drawn(result))
    if isinstance(result, SweepResult):
        for name, family in result.families.items():
            figure, _ = family_figure(family)
            yield f"family-{name}", family.title, figure
