"""Axes of matplotlib drawings: scales, ends, ticks as plain text, names, and shortened texts."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, inf, log10
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axis import YAxis
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator

from rcdiag.formats import RAISED
from rcdiag.pages.charts import ChartAxis, Panel
from rcdiag.pages.style import as_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as Ruler

LETTER = 0.62  # width of a letter relative to its size
PLOT_SHARE = 0.78  # share of a panel's width that the plot takes
STEPS = [1, 2, 2.5, 5, 10]  # distances between ticks, times a power of ten
# For a logarithmic axis that spans fewer than so many decades: the multiples of powers of ten at
# which it has ticks.
SUBS = (
    (1.2, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)),
    (2.5, (1.0, 2.0, 5.0)),
    (inf, (1.0,)),
)


def letter_size() -> float:
    """Return the font size, in points, of the current drawing."""
    return float(mpl.rcParams["font.size"])


def fitted(text: str, inches: float, size: float) -> str:
    """Shorten a text to a width by cutting its middle, since the ends often differ."""
    most = max(int(inches * 72.0 / (size * LETTER)), 6)
    half = most // 2
    return as_text(text if len(text) <= most else f"{text[:half]}…{text[1 - half :]}")


def set_scale(put: Callable[..., None], axis: ChartAxis) -> None:
    """Set the scale of an axis; `put` is `set_xscale` or `set_yscale`."""
    if axis.scale == "log":
        put("log")
    elif axis.scale == "symlog":
        put("symlog", linthresh=axis.threshold or 1e-6, linscale=0.4)


def set_ends(axes: Axes, panel: Panel) -> None:
    """Set the ends of both axes from the description; axes of names show whole slots."""
    for axis, put, get in (
        (panel.x, axes.set_xlim, axes.get_xlim),
        (panel.y, axes.set_ylim, axes.get_ylim),
    ):
        if axis.scale == "names":
            ends = (-0.5, len(axis.names) - 0.5)
            put(*(ends if axis is panel.x else ends[::-1]))
            continue
        low, high = get()
        if axis.scale == "log" and axis.start is not None and axis.end is None:
            high = max(1.6 * high, 10.0)
        if axis.scale == "symlog" and axis.start is axis.end is None:
            _reach_around_0(axes, axis is panel.x)
            continue
        start = low if axis.start is None else axis.start
        end = high if axis.end is None else axis.end
        if axis.scale == "linear" and not panel.square:
            room = 0.03 * (end - start)  # so that marks at a given end are not cut off
            start, end = start - room * (axis.start is not None), end + room
        put(start, end)


def _reach_around_0(axes: Axes, across: bool) -> None:
    """Set the ends of a symmetric logarithmic axis slightly beyond its data and 0."""
    ruler = axes.xaxis if across else axes.yaxis
    low, high = axes.dataLim.intervalx if across else axes.dataLim.intervaly
    scale = ruler.get_transform()
    known = [at for at in (low, high, 0.0) if np.isfinite(at)]
    start, end = scale.transform([min(known), max(known)])
    room = 0.04 * (end - start) or float(scale.transform([1.0])[0])
    ends = scale.inverted().transform([start - room, end + room])
    (axes.set_xlim if across else axes.set_ylim)(*map(float, ends))


def write_ticks(ruler: Ruler, axis: ChartAxis, most: int, inches: float) -> None:
    """Place the ticks of an axis, with labels as plain text."""
    ruler.set_minor_locator(NullLocator())
    if axis.hidden:
        ruler.set_major_locator(NullLocator())
        return
    low, high = sorted(ruler.get_view_interval())
    written: Callable[[float], str] = plain
    if axis.scale == "names":
        _write_names(ruler, axis, inches)
        return
    if axis.scale == "log":
        decades = log10(high / low)
        subs = next(subs for fewer_than, subs in SUBS if decades < fewer_than)
        ruler.set_major_locator(LogLocator(subs=subs, numticks=most))
        if not 1e-4 < low < high < 1e5 and len(subs) == 1:
            written = power_of_ten
    elif axis.scale == "symlog":
        smallest = axis.threshold or 1e-6
        ruler.set_major_locator(FixedLocator(_signed_decades(smallest, max(-low, high), most)))
        written = power_of_ten
    else:
        ruler.set_major_locator(MaxNLocator(nbins=most, integer=axis.whole, steps=STEPS))
    ruler.set_major_formatter(
        lambda value, _: f"{plain(100.0 * value)}%" if axis.percent else written(value)
    )
    ruler.set_minor_formatter(NullFormatter())


def _write_names(ruler: Ruler, axis: ChartAxis, inches: float) -> None:
    """Write the names of an axis: on x turned if they do not fit, or thinned out if numbers."""
    size = 0.8 * letter_size()
    if isinstance(ruler, YAxis):
        names = [fitted(name, 0.42 * inches, size) for name in axis.names]
        ruler.set_ticks(list(range(len(names))), names, fontsize=size)
        ruler.set_tick_params(length=0)
        return
    room = inches * 72.0 * PLOT_SHARE / max(len(axis.names), 1)
    longest = (max((len(name) for name in axis.names), default=0) + 1) * size * LETTER
    upright = longest <= room
    counting = all(name.isdecimal() for name in axis.names)
    every = 1 if upright else ceil(longest / room) if counting else ceil(size / room)
    places = list(range(0, len(axis.names), every))
    turned: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    style = {} if upright or counting else turned
    names = [fitted(axis.names[place], 1.4, size) for place in places]
    ruler.set_ticks(places, names, fontsize=size, **style)


def _signed_decades(smallest: float, largest: float, most: int) -> list[float]:
    """Return 0 and powers of ten on both sides of it, not too close to 0."""
    low, high = round(log10(smallest)), floor(log10(max(largest, smallest)))
    step = max(-(-(high - low) // max(most - 2, 2)), 1)
    powers = [10.0**power for power in range(high, low, -step)] or [smallest]
    return [*(-power for power in powers), 0.0, *reversed(powers)]


def plain(value: float) -> str:
    """Format a tick; rounding turns 0.30000000000000004, a sum of steps, into 0.3."""
    return f"{float(f'{value:.6g}'):,.10g}".replace("-", "−")


def power_of_ten(value: float) -> str:
    """Format a power of ten with superscript characters, which keep the SVG searchable."""
    if not value:
        return "0"
    power = log10(abs(value))
    if abs(power - round(power)) > 1e-6:
        return plain(value)
    return f"{'−' if value < 0 else ''}10{str(round(power)).translate(RAISED)}"
