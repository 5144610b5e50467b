"""Charts of the page: a table of numbers, and how the page's script draws its columns.

There are six forms: curves over an axis, bars by bin, a scatter of named points, dots with
intervals by name, a triangle of pairs, and lanes whose cells are shaded row by row. The same table
is shown on demand and copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

from msgspec import Struct, field

Form = Literal["curves", "bars", "scatter", "dots", "triangle", "lanes"]
Scale = Literal["linear", "log", "symlog"]
# The meaning of colours: the target is likelier, the behavior is likelier, neither.
Tone = Literal["first", "second", "ink", "soft"]
Value = float | int | str | None

DIGITS = 5  # significant digits of a number that is drawn


class Axis(Struct, frozen=True, kw_only=True):
    """An axis of a chart: its label, its scale, and how its numbers are written."""

    label: str
    scale: Scale = "linear"
    threshold: float = 0.0  # a symmetric logarithmic axis is linear within this distance of 0
    percent: bool = False
    start: float | None = None  # ends that are given; None: those of the data
    end: float | None = None

    def data(self) -> dict[str, Any]:
        """Return the axis as the script reads it, without what has its default."""
        parts: dict[str, Any] = {"label": self.label, "scale": self.scale}
        optional = {"percent": self.percent, "threshold": self.threshold}
        parts |= {name: value for name, value in optional.items() if value}
        ends = {"start": self.start, "end": self.end}
        return parts | {name: value for name, value in ends.items() if value is not None}


class Series(Struct, frozen=True, kw_only=True):
    """A line, or the dots of a column, by the names of the columns of the chart's table."""

    label: str
    y: str
    low: str | None = None
    high: str | None = None
    tone: Tone = "first"
    dashed: bool = False
    dots: bool = False  # dots alone, without a line
    group: str | None = None  # a line for each value of this column
    only: str | None = None  # the value of `group` that this series is of


class Mark(Struct, frozen=True, kw_only=True):
    """A line across a chart at a number of its x axis, with its name."""

    at: float
    label: str


class Chart(Struct, frozen=True, kw_only=True):
    """A table of numbers and the form in which the page's script draws it."""

    form: Form
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    x: Axis
    y: Axis | None = None
    series: Sequence[Series] = ()
    marks: Sequence[Mark] = ()
    floor: tuple[float, float, str] | None = None  # a band of the value axis, with its name
    options: dict[str, Any] = field(default_factory=dict)  # what one form alone needs

    def data(self) -> dict[str, Any]:
        """Return the chart as the script reads it, without what is empty."""
        parts: dict[str, Any] = {
            "form": self.form,
            "columns": list(self.columns),
            "rows": [[rounded(value) for value in row] for row in self.rows],
            "x": self.x.data(),
            **self.options,
        }
        if self.y is not None:
            parts["y"] = self.y.data()
        if self.series:
            parts["series"] = [_series_data(item) for item in self.series]
        if self.marks:
            parts["marks"] = [[rounded(mark.at), mark.label] for mark in self.marks]
        if self.floor is not None:
            parts["floor"] = [rounded(part) for part in self.floor]
        return parts


def rounded(value: Value) -> Value:
    """Return a number with as many digits as are drawn; None where it is not finite."""
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    return float(f"{value:.{DIGITS}g}") if isfinite(value) else None


def _series_data(series: Series) -> dict[str, Any]:
    names = ("label", "y", "low", "high", "tone", "dashed", "dots", "group", "only")
    return {name: value for name in names if (value := getattr(series, name)) not in (None, False)}
