"""Figures of the page: charts for its script, SVG where a figure has no chart."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from rcdiag.pages.blocks import Figure
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.figures import FIGURES, applying
from rcdiag.pages.style import STYLE, own_style
from rcdiag.pages.svg import to_svg
from rcdiag.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

LOWEST = 0.8  # height over width of a figure for papers
LEAST_SHRUNK = 0.5  # names of rows would overlap in a figure of less than half its height
SMALLEST_LETTERS = 7.0  # points
WIDE = 6.0  # inches: figures beyond take the whole width of the page


def figures_of(result: Result | None, names: Collection[str] = ()) -> list[Figure]:
    """Return the figures of a result for the page, all or those with the given names."""
    if result is None:
        return []
    return [
        page_figure(spec, result)
        for spec in applying(result)
        if spec.on_page and (not names or spec.name in names)
    ]


def page_figure(spec: FigureSpec, result: Result) -> Figure:
    """Return a figure for the page: its chart, or its matplotlib drawing where it has none."""
    return Figure(
        name=spec.name,
        title=spec.title,
        caption=spec.caption(result),
        chart=None if spec.chart is None else spec.chart(result).data(),
        svg="" if spec.chart is not None else to_svg(drawing(spec, result), spec.name),
        wide=spec.size(result)[0] > WIDE,
    )


def static_svg(name: str, result: Result) -> str:
    """Draw a figure that stands in for its chart where no script runs."""
    return to_svg(drawing(FIGURES[name], result), f"static-{name}")


def drawing(spec: FigureSpec, result: Result, width: float | None = None) -> Drawing:
    """Draw a figure with matplotlib; `width` is in inches, and letters scale with it."""
    across, up = spec.size(result)
    size = (across, up)
    if width is not None:
        size = (width, max(up * max(width / across, LEAST_SHRUNK), LOWEST * width))
    letters = {"font.size": max(STYLE["font.size"] * size[0] / across, SMALLEST_LETTERS)}
    with own_style({} if width is None else letters):
        from rcdiag.pages.print_figures import PaperFigure, fit_column, plain_ticks

        made = PaperFigure(figsize=size, layout="constrained")
        spec.draw(result, made)
        plain_ticks(made)
        if width is not None:
            fit_column(made, width)
        return made
