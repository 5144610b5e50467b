"""The matplotlib renderer of charts, for files and notebooks; it knows marks, not figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.formats import RAISED
from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, Value
from rcdiag.pages.rendering import rendered
from rcdiag.pages.style import (
    FIRST,
    GRID,
    INK,
    NOTEBOOK_DPI,
    SECOND,
    SOFT,
    as_text,
)
from rcdiag.pages.ticks import (
    LETTER,
    PLOT_SHARE,
    fitted,
    letter_size,
    plain,
    power_of_ten,
    set_ends,
    set_scale,
    write_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

LEAST_PANEL = 1.5  # inches: if panels would be narrower, two stand in a row
LEAST_IN_CELL = 5.0  # points: numbers in cells are split into two lines before they get smaller
LANE = 1.2  # letter sizes: height of a line of labels above a panel
TITLE_PAD = 4.0  # points between a panel's title and what is below it
COLOURS = {"first": FIRST, "second": SECOND, "ink": INK, "soft": SOFT}
Numbers = NDArray[np.float64]


class PaperFigure(Figure):
    """A figure without a window, which a notebook shows as a picture without any set-up."""

    def _repr_png_(self) -> bytes:
        return rendered(self, "png", NOTEBOOK_DPI)


class Points(Struct, frozen=True, kw_only=True):
    """The rows of a mark as arrays; missing numbers are NaN."""

    keys: list[str]  # the first value of each row
    x: Numbers
    y: Numbers
    to: Numbers
    low: Numbers
    high: Numbers
    value: Numbers
    group: list[Value]


def draw_chart(chart: Chart, figure: FigureBase) -> None:
    """Draw the panels of a chart into an empty figure, and its legend above them."""
    inches, tall = _inches(figure)
    across = chart.across if inches >= chart.across * LEAST_PANEL else min(2, chart.across)
    rows = -(-len(chart.panels) // across)
    heights = [panel.height for panel in chart.panels[::across]]
    grid = figure.subplots(rows, across, squeeze=False, height_ratios=heights).ravel()
    for axes in grid[len(chart.panels) :]:
        axes.set_visible(False)
    for place, (panel, axes) in enumerate(zip(chart.panels, grid, strict=False)):
        high = 0.85 * tall * panel.height / sum(heights)
        _draw_panel(chart, panel, axes, inches / across, high)
        beside = chart.panels[place - 1] if place % across else None
        if beside is not None and panel.y.scale == "names" and panel.y == beside.y:
            axes.tick_params(labelleft=False)
    _legend(chart, figure, inches)


def _inches(figure: FigureBase) -> tuple[float, float]:
    """Return width and height of a figure or subfigure in inches."""
    whole: Any = figure
    return float(whole.bbox.width) / float(whole.dpi), float(whole.bbox.height) / float(whole.dpi)


def _draw_panel(chart: Chart, panel: Panel, axes: Axes, inches: float, high: float) -> None:
    """Draw a panel into axes of approximately this width and height in inches."""
    size = letter_size()
    axes.tick_params(labelsize="small")
    axes.set_xlabel(fitted(panel.x.label, inches, size))
    axes.set_ylabel(fitted(panel.y.label, high, size), fontsize="medium")
    set_scale(axes.set_xscale, panel.x)
    set_scale(axes.set_yscale, panel.y)
    for mark in panel.marks:
        MARKS[mark.shape](axes, chart, panel, mark, _points(chart, panel, mark))
    _draw_references(axes, panel)
    set_ends(axes, panel)
    most = max(min(int(1.4 * inches), 6), 3)
    write_ticks(axes.xaxis, panel.x, most, inches)
    write_ticks(axes.yaxis, panel.y, 5, inches)
    if any(mark.shape == "cell" for mark in panel.marks):
        axes.grid(visible=False)
    elif panel.y.scale == "names":
        axes.grid(axis="y", visible=False)
    elif panel.x.scale == "names":
        axes.grid(axis="x", visible=False)
    above = _draw_labelled_rules(axes, panel, inches)
    if panel.title:
        title = fitted(panel.title, inches, size)
        axes.set_title(title, fontsize="medium", loc="left", pad=TITLE_PAD + above)
    _draw_notes(axes, panel)
    if panel.x.hidden and panel.y.hidden:
        axes.spines[:].set_visible(False)
    if panel.square:
        axes.set_aspect("equal", adjustable="box")
    for label in axes.get_yticklabels() if panel.y.scale == "names" else ():
        if chart.strong and label.get_text() == as_text(chart.strong):
            label.set_fontweight("bold")


def _points(chart: Chart, panel: Panel, mark: Mark) -> Points:
    """Read the columns of a mark, for the rows selected by the mark and its panel."""
    places = {name: place for place, name in enumerate(chart.columns)}
    wanted = [(places[name], value) for name, value in filter(None, (panel.where, mark.where))]
    rows = [row for row in chart.rows if all(row[place] == value for place, value in wanted)]

    def column(name: str | None, axis: ChartAxis | None = None) -> Numbers:
        values = [None if name is None else row[places[name]] for row in rows]
        return _numbers([mark.lane] * len(rows) if mark.lane and axis is panel.y else values, axis)

    return Points(
        keys=[str(row[0]) for row in rows],
        x=column(mark.x, panel.x),
        y=column(mark.y or None, panel.y),
        to=column(mark.to, panel.x),
        low=column(mark.low),
        high=column(mark.high),
        value=column(mark.value),
        group=[None if mark.group is None else row[places[mark.group]] for row in rows],
    )


def _numbers(values: Sequence[Value], axis: ChartAxis | None = None) -> Numbers:
    """Return numbers, or the indices of names on an axis of names; NaN for anything else."""
    if axis is not None and axis.scale == "names":
        slots: dict[Value, float] = {}
        for place, name in enumerate(axis.names):
            slots[name] = float(place)
            if name.replace(".", "", 1).isdecimal():  # also find the name by its number
                slots[float(name)] = float(place)
        return np.array([slots.get(value, np.nan) for value in values], dtype=np.float64)
    known = [value if isinstance(value, (int, float)) else np.nan for value in values]
    numbers = np.array(known, dtype=np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _draw_line(axes: Axes, chart: Chart, panel: Panel, mark: Mark, points: Points) -> None:
    colour = COLOURS[mark.tone]
    style: dict[str, Any] = {
        "linestyle": "--" if mark.dashed else "-",
        "linewidth": 0.8 if mark.thin else 1.4,
        "alpha": 0.5 if mark.thin else 1.0,
        "marker": "o" if mark.points else None,
        "markersize": 3.5,
    }
    for group in dict.fromkeys(points.group):
        some = np.array([each == group for each in points.group]) & np.isfinite(points.y)
        x, low, high = points.x[some], points.low[some], points.high[some]
        axes.plot(x, points.y[some], color=colour, **style)
        bounded = np.isfinite(low) & np.isfinite(high)
        if bounded.any():
            axes.fill_between(
                x, low, high, where=bounded.tolist(), color=colour, alpha=0.2, linewidth=0
            )


def _draw_dots(axes: Axes, chart: Chart, panel: Panel, mark: Mark, points: Points) -> None:
    if mark.small:
        axes.scatter(
            points.x,
            points.y,
            s=4,
            color=COLOURS[mark.tone],
            alpha=0.4,
            linewidths=0,
            rasterized=True,
        )
        return
    named = panel.y.scale == "names"
    for key, x, y, low, high in zip(
        points.keys, points.x, points.y + mark.shift, points.low, points.high, strict=True
    ):
        if np.isnan(x) or np.isnan(y):
            continue
        strong = key == chart.strong and mark.tone == "first" and not mark.shift
        style: dict[str, Any] = {
            "color": SECOND if strong else COLOURS[mark.tone],
            "alpha": 0.45 if key in chart.pale else 1.0,
        }
        middle = x if named else y
        ends = [middle if np.isnan(end) else end for end in (low, high)]
        if not (np.isnan(low) and np.isnan(high)):
            axes.plot(*((ends, [y, y]) if named else ([x, x], ends)), linewidth=1.4, **style)
        size = (0.65 if strong else 0.45) * letter_size()
        fill = "none" if mark.hollow else "full"
        axes.plot(x, y, "o", markersize=size, fillstyle=fill, **style)
        if strong and not named:
            axes.annotate(
                as_text(key), (x, y), xytext=(5, 5), textcoords="offset points", fontsize="small"
            )


def _draw_bars(axes: Axes, chart: Chart, panel: Panel, mark: Mark, points: Points) -> None:
    foot = (panel.y.start or 0.0) if panel.y.scale == "log" else 0.0
    look: dict[str, Any] = {"color": COLOURS[mark.tone], "alpha": 0.85}
    if mark.hollow:
        look = {"fill": False, "edgecolor": INK}
    if mark.to is None:
        axes.bar(points.x, points.y - foot, 0.8 if mark.hollow else 0.7, bottom=foot, **look)
    else:
        axes.bar(points.x, points.y - foot, points.to - points.x, bottom=foot, align="edge", **look)


def _draw_ranges(axes: Axes, chart: Chart, panel: Panel, mark: Mark, points: Points) -> None:
    for x, to, y in zip(points.x, points.to, points.y, strict=True):
        axes.plot([x, to], [y, y], color=GRID, linewidth=3, solid_capstyle="round", zorder=1)


def _draw_cells(axes: Axes, chart: Chart, panel: Panel, mark: Mark, points: Points) -> None:
    wide, tall = panel.cell
    x, y, values = points.x, points.y, points.value
    colours, norm = _shading(panel.shade, mark, values)
    shown = np.isfinite(x) & np.isfinite(y) & np.isfinite(values)
    if isinstance(norm, LogNorm):
        shown &= values > 0
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * (wide / 2, tall / 2)
    cells = PolyCollection(
        list(np.stack([x[shown], y[shown]], axis=1)[:, None, :] + corners),
        array=values[shown],
        cmap=colours,
        norm=norm,
        antialiased=False,
        linewidths=0,
        rasterized=True,
    )
    axes.add_collection(cells)
    axes.autoscale_view()
    for key, across, up in zip(points.keys, x, y, strict=True):
        if chart.strong and key == chart.strong:
            axes.plot(across, up, "o", color=INK, markersize=0.7 * letter_size(), fillstyle="none")
    if mark.written:
        _write_values(axes, panel, points)
    elif panel.shade is not None and panel.shade.label and len(chart.panels) == 1 and shown.any():
        whole: Any = axes.get_figure()
        bar = whole.colorbar(cells, ax=axes, label=panel.shade.label, aspect=30)
        bar.outline.set_visible(False)
        bar.ax.minorticks_off()
        if isinstance(norm, SymLogNorm):
            ends = [sign * float(norm.vmax or 1.0) for sign in (-1.0, -0.1, 0.0, 0.1, 1.0)]
            bar.set_ticks(ends, labels=[plain(float(f"{end:.2g}")) for end in ends])
        else:
            bar.ax.yaxis.set_major_formatter(lambda value, _: power_of_ten(value))


def _shading(axis: ChartAxis | None, mark: Mark, values: Numbers) -> tuple[Colormap, Normalize]:
    """Return colour map and norm for cells; without an axis, values are shares of 1."""
    tone = COLOURS[mark.tone]
    known = values[np.isfinite(values)]
    if axis is None:
        return _shades(f"{tone}00", tone), Normalize(0.0, 1.0)
    if axis.scale == "symlog":
        most = max(float(np.abs(known).max(initial=0.0)), axis.threshold)
        colours = _shades(SECOND, f"{SECOND}00", FIRST)
        return colours, SymLogNorm(axis.threshold, vmin=-most, vmax=most)
    least = axis.start or float(known[known > 0].min(initial=np.inf))
    if not np.isfinite(least):
        return _shades(f"{tone}14", tone), Normalize(0.0, 1.0)
    # Equal values would give a scale without range.
    most = max(float(known.max(initial=0.0)), 10.0 * least)
    ends = ("14", "b0") if mark.written else ("30", "ff")  # keeps written numbers readable
    return _shades(*(f"{tone}{alpha}" for alpha in ends)), LogNorm(least, most)


def _shades(*colours: str) -> Colormap:
    """Return a colour map that interpolates evenly between the given colours."""
    return LinearSegmentedColormap.from_list("shades", colours)


def _write_values(axes: Axes, panel: Panel, points: Points) -> None:
    """Write the value of each cell into it, in two lines if cells are narrow."""
    # Cells take two thirds of the width, and a number has six characters.
    whole: Any = axes.get_figure()
    room = _inches(whole)[0] * 72.0 * 0.66 / max(len(panel.x.names), 1)
    size = min(0.8 * letter_size(), room / (6 * 0.6))
    stacked = size < LEAST_IN_CELL
    if stacked:  # three characters above a power of ten
        size = min(room / (4 * 0.6), LEAST_IN_CELL)
    for x, y, value in zip(points.x, points.y, points.value, strict=True):
        if np.isnan(value):
            continue
        text = f"{value:.2g}" if value else "0"
        if stacked and value:
            digits, power = f"{value:.1e}".split("e")
            text = f"{digits}\n·10{str(int(power)).translate(RAISED)}" if int(power) else digits
        axes.text(x, y, text, ha="center", va="center", fontsize=size)


MARKS: dict[str, Callable[[Axes, Chart, Panel, Mark, Points], None]] = {
    "line": _draw_line,
    "dot": _draw_dots,
    "bar": _draw_bars,
    "range": _draw_ranges,
    "cell": _draw_cells,
}


def _draw_references(axes: Axes, panel: Panel) -> None:
    """Draw reference lines without a label, the band, and the diagonal of a square panel."""
    for rule in panel.rules:
        if not rule.label:
            style: dict[str, Any] = {"color": SECOND, "linestyle": "--"} if rule.dashed else {}
            (axes.axvline if rule.axis == "x" else axes.axhline)(
                rule.at, **{"color": INK, "linewidth": 0.8, **style}
            )
    if panel.band is not None:
        axes.axvspan(
            panel.band.start, panel.band.end, color=SECOND, alpha=0.18, linewidth=0.0, zorder=0.5
        )
    if panel.square and panel.x.start is not None and panel.x.end is not None:
        ends = [panel.x.start, panel.x.end]
        axes.plot(ends, ends, color=SOFT, linewidth=0.8, zorder=0.5)


def _draw_labelled_rules(axes: Axes, panel: Panel, inches: float) -> float:
    """Draw dashed lines with labels above the panel, stacked where labels would overlap.

    Returns the height of the labels in points.
    """
    size = 0.8 * letter_size()
    low, high = sorted(axes.get_xlim())
    taken: list[float] = []
    for rule in sorted(panel.rules, key=lambda rule: rule.at):
        if not rule.label or not low <= rule.at <= high:
            continue
        axes.axvline(rule.at, color=SOFT, linewidth=1.0, linestyle="--", zorder=0.5)
        place = axes.transData.transform((rule.at, axes.get_ylim()[1]))
        left = float(axes.transAxes.inverted().transform(place)[0])
        length = (len(rule.label) + 1) * size * LETTER / (72.0 * inches * PLOT_SHARE)
        end = left + length > 1.05 and left >= length
        start = left - length if end else max(min(left, 1.05 - length), 0.0)
        lane = next((at for at, last in enumerate(taken) if last <= start), len(taken))
        taken[lane : lane + 1] = [start + length]
        axes.annotate(
            as_text(rule.label),
            (left if end else start, 1.0),
            xycoords=axes.transAxes,
            xytext=(-2 if end else 2, 2 + lane * size * LANE),
            textcoords="offset points",
            fontsize=size,
            ha="right" if end else "left",
        )
    return len(taken) * size * LANE


def _draw_notes(axes: Axes, panel: Panel) -> None:
    """Write notes: in the slot of a name, or beside the plot with a line to their point."""
    size = 0.7 * letter_size()
    if panel.y.scale == "names":
        xs, ys = (
            _numbers([n.x for n in panel.notes], panel.x),
            _numbers([n.y for n in panel.notes], panel.y),
        )
        for note, x, y in zip(panel.notes, xs, ys, strict=True):
            style: dict[str, Any] = {"va": "center", "fontsize": "small", "fontweight": "bold"}
            axes.text(x - 0.45, y, as_text(note.text), color=COLOURS[note.tone], **style)
        return
    step, room = 1.0 / max(len(panel.notes), 1), 1.0
    ordered = sorted(panel.notes, key=lambda note: float(note.y), reverse=True)
    for place, note in enumerate(ordered):
        at = axes.transData.transform((float(note.x), float(note.y)))
        height = float(axes.transAxes.inverted().transform(at)[1])
        room = max(min(room, height), step * (len(ordered) - 1 - place))
        colour = COLOURS[note.tone]
        axes.annotate(
            as_text(note.text),
            (float(note.x), float(note.y)),
            xytext=(1.02, room),
            textcoords="axes fraction",
            fontsize=size,
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops={
                **{"arrowstyle": "-", "color": colour, "linewidth": 0.4, "alpha": 0.5},
                **{"relpos": (0.0, 0.5), "shrinkA": 1.0},  # the line ends before the first letter
            },
        )
        room -= step


def _legend(chart: Chart, figure: FigureBase, inches: float) -> None:
    """Draw a legend of labelled marks and bands above all panels."""
    entries: dict[str, Any] = {}
    for panel in chart.panels:
        for mark in panel.marks:
            points = _points(chart, panel, mark)
            if mark.label and (np.isfinite(points.x) & np.isfinite(points.y)).any():
                entries.setdefault(mark.label, _legend_handle(mark))
        if panel.band is not None:
            entries[panel.band.label] = Patch(color=SECOND, alpha=0.18, linewidth=0.0)
    if not entries:
        return
    size = 0.8 * letter_size()
    longest = (max(map(len, entries)) + 5) * size * LETTER / 72.0
    figure.legend(
        handles=list(entries.values()),
        labels=[fitted(label, inches, size) for label in entries],
        loc="outside upper left",
        ncols=max(min(int(inches / longest), len(entries)), 1),
        fontsize=size,
        frameon=False,
    )


def _legend_handle(mark: Mark) -> Line2D | Patch:
    """Return the legend's handle for a mark."""
    colour = COLOURS[mark.tone]
    if mark.shape in ("bar", "cell"):
        look: dict[str, Any] = (
            {"fill": False, "edgecolor": INK} if mark.hollow else {"color": colour}
        )
        return Patch(**look)
    if mark.shape == "dot":
        fill = "none" if mark.hollow else "full"
        return Line2D(
            [], [], color=colour, marker="o", linestyle="", fillstyle=fill, markersize=4.5
        )
    return Line2D([], [], color=colour, linestyle="--" if mark.dashed else "-")
