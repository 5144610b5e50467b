"""The description of a chart: a table of numbers, and marks that show its columns in panels.

Two renderers draw it: the page's script (`script/charts.js`) and matplotlib (`drawing.py`). They
know panels, axes and marks, but no particular figure. The page shows the table and can copy it, and
`--plots` writes it as CSV.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

Scale = Literal["linear", "log", "symlog", "names"]
Shape = Literal["line", "dot", "bar", "cell", "range"]
# Colours: first = likelier under the target, second = under the behavior policy, others neutral.
Tone = Literal["first", "second", "ink", "soft"]
Value = float | int | str | None

DIGITS = 5  # significant digits in the chart's data


class ChartAxis(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An axis: label, scale, and format of its numbers."""

    label: str = ""
    scale: Scale = "linear"
    names: Sequence[str] = ()  # for the scale "names": one slot each, from top to bottom
    threshold: float = 0.0  # the scale "symlog" is linear within this distance of 0
    percent: bool = False
    whole: bool = False  # ticks at whole numbers
    start: float | None = None  # fixed ends; None: from the data
    end: float | None = None
    hidden: bool = False  # without ticks: notes label the slots, or the panel below does


class Mark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A shape for each row of the table, or a line through them; strings name columns.

    A `bar` starts at 0 if x has names, and spans from `x` to `to` if x is numeric. A `range` is a
    segment from `x` to `to`. A `cell` is shaded by its `value`. Intervals are along the numeric
    axis: along y unless y has names.
    """

    shape: Shape
    x: str
    y: str = ""
    lane: str = ""  # a name of the y axis at which all rows are drawn, instead of a column
    to: str | None = None
    low: str | None = None  # ends of the interval: a band around a line, a bar through a dot
    high: str | None = None
    value: str | None = None
    label: str = ""  # shown in the legend
    tone: Tone = "first"
    dashed: bool = False
    thin: bool = False
    hollow: bool = False  # only outlines
    points: bool = False  # a dot at each point of a line
    small: bool = False  # for thousands of dots
    written: bool = False  # write the value into its cell
    shift: float = 0.0  # fraction of a slot by which a dot is below the middle of its name
    group: str | None = None  # a line for each value of this column
    where: tuple[str, Value] | None = None  # only rows with this value in this column


class ReferenceLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line across a panel at a value of an axis.

    With a label it is dashed, and left out if it is outside of the data; without one it is always
    shown.
    """

    at: float
    label: str = ""
    dashed: bool = False
    axis: Literal["x", "y"] = "x"


class Band(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A shaded range of the x axis, with its label."""

    start: float
    end: float
    label: str


class Note(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text that begins at a point of the panel."""

    text: str
    x: float | str
    y: float | str
    tone: Tone = "ink"


class Panel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pair of axes with marks."""

    x: ChartAxis
    y: ChartAxis
    marks: Sequence[Mark]
    title: str = ""
    rules: Sequence[ReferenceLine] = ()
    band: Band | None = None
    notes: Sequence[Note] = ()
    where: tuple[str, Value] | None = None  # only rows with this value in this column
    shade: ChartAxis | None = None  # scale of cells; None: their values are shares of 1
    cell: tuple[float, float] = (1.0, 1.0)  # width and height of a cell, in units of the axes
    height: float = 1.0  # relative to the usual height
    square: bool = False  # both axes have the same numbers; draw the diagonal


class Chart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table of numbers, and the panels that show it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    panels: Sequence[Panel]
    across: int = 1  # panels side by side, if there is room
    strong: str = ""  # first value of the row that is highlighted
    pale: Sequence[str] = ()  # first values of rows that are drawn pale
    opens: str = ""  # kind of page part that a click on a point opens
    bins: dict[str, Any] = field(default_factory=dict)  # where a click finds examples of a bin

    def data(self) -> dict[str, Any]:
        """Return the chart for the page's script: without defaults, with rounded numbers."""
        rows = [[rounded(value) for value in row] for row in self.rows]
        data: dict[str, Any] = to_builtins(replace(self, rows=rows))
        return data


def rounded(value: Value) -> Value:
    """Return a number rounded to DIGITS; None if it is not finite."""
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    return float(f"{value:.{DIGITS}g}") if isfinite(value) else None
