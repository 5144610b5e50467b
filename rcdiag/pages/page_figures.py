"""Figures for the page and as matplotlib drawings, from charts or a plugin's own function."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from rcdiag.pages.blocks import Figure
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.figures import applying
from rcdiag.pages.style import own_style
from rcdiag.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing
    from matplotlib.figure import FigureBase

SMALLEST_LETTERS = 6.5  # points, the minimum of journals for labels
LETTERS = 10.0  # points, at a figure's own size
LOWEST = 0.8  # smallest height relative to the width, of a figure with a given width
LEAST_SHRUNK = 0.5  # smallest factor for the height, so that names of rows do not overlap
WIDE = 6.0  # inches: wider figures take the whole width of the page


def figures_of(result: Result | None, names: Collection[str] = ()) -> list[Figure]:
    """Return the figures of a result for the page: all, or those with the given names."""
    if result is None:
        return []
    return [
        page_figure(spec, result)
        for spec in applying(result)
        if spec.on_page and (not names or spec.name in names)
    ]


def page_figure(spec: FigureSpec, result: Result) -> Figure:
    """Return a figure for the page: its chart, or a matplotlib drawing if it has none."""
    image = ""
    if spec.chart is None:
        from rcdiag.pages.rendering import rendered

        svg = base64.b64encode(rendered(draw(spec, result), "svg")).decode()
        image = f"data:image/svg+xml;base64,{svg}"
    return Figure(
        name=spec.name,
        title=spec.title,
        caption=spec.caption(result),
        chart=None if spec.chart is None else spec.chart(result).data(),
        image=image,
        wide=spec.size(result)[0] > WIDE,
    )


def draw(spec: FigureSpec, result: Result, width: float | None = None) -> Drawing:
    """Draw a figure with matplotlib; with a `width` in inches, height and letters are scaled."""
    across, up = spec.size(result)
    wide = across if width is None else width
    high = up if width is None else max(up * max(width / across, LEAST_SHRUNK), LOWEST * width)
    letters = LETTERS * wide / across
    return drawing(lambda figure: draw_into(spec, result, figure), (wide, high), letters)


def drawing(draw: Callable[[Drawing], None], size: tuple[float, float], letters: float) -> Drawing:
    """Make a figure with a size in inches and a font size in points."""
    # matplotlib is imported only within `own_style`, so that no matplotlibrc is applied.
    with own_style({"font.size": max(letters, SMALLEST_LETTERS)}):
        from rcdiag.pages.drawing import PaperFigure

        made = PaperFigure(figsize=size, layout="constrained")
        draw(made)
        return made


def draw_into(spec: FigureSpec, result: Result, figure: FigureBase) -> None:
    """Draw a figure into an empty matplotlib figure or subfigure."""
    from rcdiag.pages.drawing import draw_chart

    if spec.chart is not None:
        draw_chart(spec.chart(result), figure)
    elif spec.draw is not None:
        spec.draw(result, figure)  # type: ignore[arg-type]
