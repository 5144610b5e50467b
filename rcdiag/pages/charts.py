"""The description of a chart: a table of numbers, and the marks that show its columns in panels.

Two renderers draw a description: the page's script (`script/charts.js`) and matplotlib
(`drawing.py`). They know panels, axes and marks, and no figure. The table is what the page shows
and copies, and what `--plots` writes as CSV.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

Scale = Literal["linear", "log", "symlog", "names"]
Shape = Literal["line", "dot", "bar", "cell", "range"]
# The meaning of colours: the target is likelier, the behavior is likelier, neither.
Tone = Literal["first", "second", "ink", "soft"]
Value = float | int | str | None

DIGITS = 5  # significant digits of a number that is drawn


class ChartAxis(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An axis: its label, its scale, and how its numbers are written."""

    label: str = ""
    scale: Scale = "linear"
    names: Sequence[str] = ()  # of the scale "names", one slot for each; from top to bottom
    threshold: float = 0.0  # the scale "symlog" is linear within this distance of 0
    percent: bool = False
    whole: bool = False  # ticks at whole numbers
    start: float | None = None  # ends that are given; None: those of the data
    end: float | None = None
    hidden: bool = False  # without ticks: notes name the slots, or the panel below does


class Mark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A shape for each row of the table, or a line through them; texts name columns.

    A `bar` stands on 0 where x has names, and reaches from `x` to `to` where x is a number. A
    `range` is a segment from `x` to `to`. A `cell` is shaded by its `value`. Intervals lie along
    the axis of numbers: along y unless y has names.
    """

    shape: Shape
    x: str
    y: str = ""
    lane: str = ""  # a name of the y axis at which all rows stand, in place of a column
    to: str | None = None
    low: str | None = None  # ends of the interval: a band around a line, a bar through a dot
    high: str | None = None
    value: str | None = None
    label: str = ""  # in the legend
    tone: Tone = "first"
    dashed: bool = False
    thin: bool = False
    hollow: bool = False  # outlines alone
    points: bool = False  # a dot at each point of a line
    small: bool = False  # dots of which there are thousands
    written: bool = False  # the value stands in its cell
    shift: float = 0.0  # part of a slot by which a dot stands below the middle of its name
    group: str | None = None  # a line for each value of this column
    where: tuple[str, Value] | None = None  # rows with this value in this column alone


class ReferenceLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line across a panel at a number of an axis.

    One with a label is dashed, and left out beyond the data; one without is always shown.
    """

    at: float
    label: str = ""
    dashed: bool = False
    axis: Literal["x", "y"] = "x"


class Band(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A shaded part of the x axis, with its name."""

    start: float
    end: float
    label: str


class Note(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text that begins at a place of the panel."""

    text: str
    x: float | str
    y: float | str
    tone: Tone = "ink"


class Panel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Marks over two axes."""

    x: ChartAxis
    y: ChartAxis
    marks: Sequence[Mark]
    title: str = ""
    rules: Sequence[ReferenceLine] = ()
    band: Band | None = None
    notes: Sequence[Note] = ()
    where: tuple[str, Value] | None = None  # rows with this value in this column alone
    shade: ChartAxis | None = None  # of cells; None: their values are shares of 1
    cell: tuple[float, float] = (1.0, 1.0)  # width and height of a cell, in numbers of the axes
    height: float = 1.0  # part of the usual height
    square: bool = False  # both axes have the same numbers, and a line where they are equal


class Chart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table of numbers, and the panels that show it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    panels: Sequence[Panel]
    across: int = 1  # panels beside each other where there is room
    strong: str = ""  # the row, by its first value, that stands out
    pale: Sequence[str] = ()  # rows that stand back
    opens: str = ""  # what a click on a point opens on the page
    bins: dict[str, Any] = field(default_factory=dict)  # where a click finds its examples

    def column(self, name: str) -> list[Value]:
        """Return a column of the table."""
        place = list(self.columns).index(name)
        return [row[place] for row in self.rows]

    def data(self) -> dict[str, Any]:
        """Return the chart as the page's script reads it: without defaults, numbers rounded."""
        rows = [[rounded(value) for value in row] for row in self.rows]
        data: dict[str, Any] = to_builtins(replace(self, rows=rows))
        return data


def rounded(value: Value) -> Value:
    """Return a number with as many digits as are drawn; None where it is not finite."""
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    return float(f"{value:.{DIGITS}g}") if isfinite(value) else None
