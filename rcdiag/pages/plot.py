"""Draw a figure of a result by name with matplotlib, for notebooks and scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.pages.figures import FIGURES, applying
from rcdiag.pages.page_figures import draw, draw_into, drawing
from rcdiag.pages.tabs.diagnosis import BY_STEP, MORE_BY_STEP
from rcdiag.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Name of a group -> the figures that it draws side by side.
GROUPS = {"steps": (*BY_STEP, *MORE_BY_STEP)}
ACROSS, UP = 6.9, 4.8  # inches of a group: the width of a page, and the height of two rows
NARROW = 5.0  # inches: a narrower figure has the width of a paper's column
LETTERS = 8.0  # points, in a group as wide as a page


def plot(result: Result, name: str | None, width: float | None = None) -> Figure:
    """Draw a figure of a result by name; `width` is in inches, and the height is scaled with it.

    `steps` draws all figures over training steps in one.
    """
    known = {spec.name: spec for spec in applying(result)}
    groups = {group: [one for one in names if one in known] for group, names in GROUPS.items()}
    if name is not None and name in known:
        return draw(known[name], result, width)
    if name is not None and groups.get(name):
        return _group(result, groups[name], width)
    names = [*(group for group, some in groups.items() if some), *known]
    if not names:
        raise RcdiagError(f"this result of `{result.kind}` has no figures")
    if name is None:
        raise RcdiagError("plot() needs the name of a figure", hint=f"one of {', '.join(names)}")
    raise RcdiagError(
        f"this result of `{result.kind}` has no figure `{name}`",
        hint=f"{did_you_mean(name, names)}it has {', '.join(names)}",
    )


def _group(result: Result, names: list[str], width: float | None) -> Figure:
    """Draw several figures in two columns, or in one if the figure is narrow."""
    across = ACROSS if width is None else width
    columns = 1 if across < NARROW else 2
    rows = -(-len(names) // columns)

    def parts(figure: Figure) -> None:
        grid = figure.subfigures(rows, columns, squeeze=False).ravel()
        for part, name in zip(grid, names, strict=False):
            draw_into(FIGURES[name], result, part)

    size = (across, across / columns * UP / ACROSS * rows)
    return drawing(parts, size, LETTERS * across / ACROSS)
