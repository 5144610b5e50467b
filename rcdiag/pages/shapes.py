"""Parts of drawings that several figures share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rcdiag.formats import number
from rcdiag.pages.style import FIRST, as_text
from rcdiag.results import MetricValue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

MOST_COLUMNS = 3  # panels in a row
FEW_DECADES = 2.0
PLOT_SHARE, LETTER = 0.78, 0.62  # of a figure's width that is plot; width of a letter by its size
LEAST_PANEL = 1.5  # inches: narrower panels stand two in a row


def shades(*colours: str) -> Colormap:
    """Make a colour map that runs evenly through the given colours."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", colours)


def histogram(axes: Axes, edges: np.ndarray, counts: np.ndarray) -> None:
    """Draw counts of bins as a filled step line over a logarithmic axis."""
    axes.stairs(counts, edges, fill=True, color=FIRST, alpha=0.85)
    axes.set_ylim(0.7, max(counts.max(initial=1) * 2, 10))
    if counts.any():
        axes.set_yscale("log")
        axes.yaxis.minorticks_off()  # they take longer to draw than all the rest
        axes.yaxis.set_major_formatter(_power)


def reach(edges: np.ndarray, counts: np.ndarray) -> float:
    """Return the largest distance from 0 at which a bin holds something; 0 where none does."""
    filled = np.flatnonzero(counts)
    return float(max(abs(edges[filled[0]]), abs(edges[filled[-1] + 1]))) if len(filled) else 0.0


def name_ticks(axes: Axes, names: Sequence[str], *, columns: int = 1, **letters: Any) -> None:
    """Write a name below each place of the x axis: upright where all fit beside each other.

    Args:
        axes: has its places at 0, 1, 2, ...
        names: one of each place.
        columns: how many axes share the width of the figure.
        letters: settings of the letters, `fontsize` among them.
    """
    size = float(letters.get("fontsize") or axes.xaxis.get_label().get_fontsize())
    inches = axes.get_figure(root=True).get_figwidth()  # type: ignore[union-attr]
    room = inches * 72.0 * PLOT_SHARE / columns / max(len(names), 1)
    longest = max((len(name) for name in names), default=0)
    names = [as_text(name) for name in names]
    if (longest + 1) * size * LETTER <= room:
        axes.set_xticks(range(len(names)), names, **letters)
        return
    turned = {"rotation": 40, "ha": "right", "rotation_mode": "anchor", **letters}
    axes.set_xticks(range(len(names)), names, **turned)


def signed_decades(axes: Axes, smallest: float, largest: float) -> None:
    """Label a symmetric logarithmic x axis at 0 and at powers of ten on both sides of it."""
    low, high = round(np.log10(smallest)), int(np.floor(np.log10(largest)))
    step = max(-(-(high - low) // 4), 1)  # at most four a side, none crowding the 0
    powers = [10.0**power for power in range(high, low, -step)]
    axes.set_xticks([*(-power for power in powers), 0.0, *reversed(powers)])
    axes.xaxis.minorticks_off()
    axes.xaxis.set_major_formatter(_signed_power)


def _signed_power(value: float, place: float) -> str:
    return "0" if value == 0 else f"{'−' if value < 0 else '+'}{_power(abs(value), place)}"


def _power(value: float, _: float) -> str:
    """Write a power of ten as text, which keeps the SVG searchable and needs no mathtext."""
    # U+2212 and superscripts.
    digits = str(round(np.log10(value))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{digits}"


def few_decades(axes: Axes) -> None:
    """Label a logarithmic y axis at 1, 2 and 5 of each decade, or at decades where there are more.

    What matplotlib writes between two decades runs into each other in a low panel.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axes.get_ylim()
    if high < low * 10.0**FEW_DECADES:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def whole_numbers(axis: Axis, written: Callable[[float], str] = number) -> None:
    """Write the numbers of an axis whole, and not as multiples of a power at its end."""
    # Ticks are sums of steps: 0.30000000000000004 is 0.3.
    axis.set_major_formatter(lambda value, _: written(float(f"{value:.6g}")))


def panels(figure: Figure, count: int, **shared: Any) -> Sequence[Axes]:
    """Make `count` axes in rows of three, or of two in a narrow figure; the rest stays empty."""
    columns = min(MOST_COLUMNS if figure.get_figwidth() >= MOST_COLUMNS * LEAST_PANEL else 2, count)
    grid = figure.subplots(-(-count // columns), columns, squeeze=False, **shared).ravel()
    for axes in grid[count:]:
        axes.set_visible(False)
    shown: Sequence[Axes] = grid[:count]
    return shown


def heights(values: Sequence[MetricValue]) -> np.ndarray:
    """Return values as an array, NaN where there is none."""
    return np.array([np.nan if value.value is None else value.value for value in values])


def ends(values: Sequence[MetricValue]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the 95% intervals; the value itself where there is no end."""
    middle = heights(values)
    low = [at if value.low is None else value.low for at, value in zip(middle, values, strict=True)]
    high = [
        at if value.high is None else value.high for at, value in zip(middle, values, strict=True)
    ]
    return np.array(low), np.array(high)
