"""Figures of all policies at once: how far apart they are, and what each ladder step adds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rcdiag.formats import RAISED
from rcdiag.pages.charts import Axis, Chart, Series
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import heights, name_ticks, shades, signed_decades, whole_numbers
from rcdiag.pages.style import FIRST, INK, NARROW, SECOND, short
from rcdiag.results import CompareResult, MetricValue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def distances(result: CompareResult) -> dict[tuple[str, str], MetricValue]:
    """Return k2 of every two policies, the earlier one of the table first."""
    names = list(result.policies)
    return {
        (first, second): result.pairs[f"{first}->{second}"].mismatch["k2_kl"]
        for place, first in enumerate(names)
        for second in names[place + 1 :]
        if f"{first}->{second}" in result.pairs
    }


LEAST_LETTERS = 5.0  # points: numbers in cells that would be smaller stand in two lines


def triangle(result: CompareResult, figure: Figure) -> None:
    """Draw k2 of every two policies as the lower triangle of a matrix."""
    axes = figure.add_subplot()
    names = list(result.policies)
    values = np.full((len(names), len(names)), np.nan)
    for (first, second), value in distances(result).items():
        values[names.index(second), names.index(first)] = heights([value])[0]
    shown = np.where((values > 0) & np.isfinite(values), values, np.nan)
    least, most = np.nanmin(shown, initial=np.inf), np.nanmax(shown, initial=0.0)
    if most > 0:
        colours = shades(FIRST + "14", FIRST + "b0")
        most = max(most, 10.0 * least)  # equal values would give a colour scale without extent
        axes.imshow(shown, cmap=colours, norm="log", vmin=least, vmax=most, aspect="auto")
    # Two thirds of the width are cells, and a number has six letters.
    letters = min(8.0, figure.get_figwidth() * 72.0 * 0.66 / len(names) / (6 * 0.6))
    stacked = letters < LEAST_LETTERS
    if stacked:  # three letters above a power of ten
        letters = min(letters * 6 / 4, LEAST_LETTERS)
    for row, column in zip(*np.nonzero(~np.isnan(values)), strict=True):
        size = float(values[row, column])
        text = "0" if not size else _in_two_lines(size) if stacked else f"{size:.2g}"
        axes.text(column, row, text, ha="center", va="center", color=INK, fontsize=letters)
    labels = [short(name) for name in names]
    name_ticks(axes, labels)
    axes.set_yticks(range(len(names)), labels)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _in_two_lines(value: float) -> str:
    """Write a number as wide as three letters, with its power of ten below."""
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}\n·10{str(int(power)).translate(RAISED)}" if int(power) else digits


def triangle_chart(result: CompareResult) -> Chart:
    """Return k2 of every two policies with its interval; a cell leads to the pair's numbers."""
    return Chart(
        form="triangle",
        columns=("first", "second", "k2", "low", "high"),
        rows=[
            (first, second, value.value, value.low, value.high)
            for (first, second), value in distances(result).items()
        ],
        x=Axis(label="k2 (nats per token)", scale="log"),
        options={"names": list(result.policies), "opens": "pair"},
    )


def waterfall(result: CompareResult, figure: Figure) -> None:
    """Draw each step's part and its own k2 as dots, on a scale that shows the smallest too."""
    axes = figure.add_subplot()
    rungs, ladder = result.ladder.rungs, result.ladder
    alone, floor = len(rungs) == 1, _floor(result)
    apart = 0.0 if alone else 0.15
    for place, rung in enumerate(rungs):
        _dot(axes, rung.contribution, place - apart, FIRST)
        if not alone:
            _dot(axes, rung.k2, place + apart, INK + "80")
    if not alone:
        _dot(axes, ladder.whole, len(rungs), INK, size=7.0)
    labels = [f"{short(rung.start)}\n→ {short(rung.end)}" for rung in rungs]
    axes.set_yticks(range(len(rungs) + (not alone)), labels if alone else [*labels, "whole"])
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(len(rungs) - 0.5 + (not alone), -0.5)
    axes.axvline(0.0, color=INK, linewidth=0.8)
    shown = (*axes.dataLim.intervalx, floor or 0.0)
    if floor:
        axes.axvspan(0.0, floor, color=SECOND, alpha=0.18, linewidth=0.0)
    if alone:
        axes.locator_params(axis="x", nbins=5)
        whole_numbers(axes.xaxis)
    else:
        _decades_around_0(axes, _least(result), min(shown), max(shown))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("part of E[log-ratio²] / 2 (nats per token)")
    wide = figure.get_figwidth() >= NARROW
    _legend(axes, own=not alone, floor=bool(floor), wide=wide)


def _decades_around_0(axes: Axes, least: float, low: float, high: float) -> None:
    """Make the x axis logarithmic on both sides of 0 beyond `least`, as far as there are dots."""
    axes.set_xscale("symlog", linthresh=least, linscale=0.4)
    signed_decades(axes, least, max(-low, high, 10.0 * least))
    scale = axes.xaxis.get_transform()
    start, end = scale.transform([min(low, 0.0), max(high, 0.0)])
    room = 0.04 * (end - start) or least  # where no number is known the axis is linear around 0
    axes.set_xlim(*scale.inverted().transform([start - room, end + room]))


def _dot(axes: Axes, value: MetricValue, place: float, colour: str, size: float = 4.5) -> None:
    """Draw a number as a dot with its 95% interval; nothing where there is none."""
    if value.value is None or not math.isfinite(value.value):
        return
    if value.low is not None and value.high is not None:
        axes.plot([value.low, value.high], [place, place], color=colour, linewidth=1.4)
    axes.plot(value.value, place, "o", color=colour, markersize=size)


def _legend(axes: Axes, *, own: bool, floor: bool, wide: bool) -> None:
    """Name what is drawn beside the steps' parts, above the frame."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown: list[Any] = [
        Line2D([], [], color=FIRST, marker="o", markersize=4.5, label="what the step adds")
    ]
    if own:
        shown.append(
            Line2D([], [], color=INK + "80", marker="o", markersize=4.5, label="its own k2")
        )
    if floor:
        shown.append(Patch(color=SECOND, alpha=0.18, linewidth=0.0, label="noise floor"))
    if len(shown) > 1:
        axes.legend(
            handles=shown,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=len(shown) if wide else 2,
            frameon=False,
            fontsize=8,
        )


def _floor(result: CompareResult) -> float | None:
    """Return the upper end of the noise floor; None where none was measured."""
    floor = None if result.noise_floor is None else result.noise_floor.k2
    return None if floor is None else (floor.value if floor.high is None else floor.high)


# Decades of step sizes that the logarithmic scale shows; smaller steps count as nothing.
DECADES = 7


def _least(result: CompareResult) -> float:
    """Return the size below which the scale of steps is linear: a decade below the smallest.

    One tiny step does not take the room of the others: it is DECADES below the largest at most.
    """
    parts = [abs(rung.contribution.value or 0.0) for rung in result.ladder.rungs]
    known = [size for size in (*parts, _floor(result) or 0.0) if size > 0 and math.isfinite(size)]
    if not known:
        return 1e-7
    below, largest = math.log10(min(known) / 3.0), math.log10(max(known))
    return 10.0 ** max(math.floor(below), math.floor(largest) - DECADES)


def waterfall_chart(result: CompareResult) -> Chart:
    """Return each step's part and its own k2, with the noise floor as a band."""
    rungs, high = result.ladder.rungs, _floor(result)
    rows: list[tuple[Any, ...]] = [
        (
            f"{rung.start} → {rung.end}",
            *_parts(rung.contribution),
            *_parts(rung.k2),
            "at the noise floor" if rung.at_floor else "",
        )
        for rung in rungs
    ]
    if len(rungs) > 1:
        rows.append(("whole", *_parts(result.ladder.whole), None, None, None, ""))
    return Chart(
        form="dots",
        columns=("step", "adds", "low", "high", "own k2", "own low", "own high", "note"),
        rows=rows,
        x=Axis(label="nats per token", scale="symlog", threshold=_least(result)),
        series=(
            Series(label="what the step adds", y="adds", low="low", high="high", tone="first"),
            Series(label="its own k2", y="own k2", low="own low", high="own high", tone="soft"),
        ),
        floor=None if not high else (0.0, high, "noise floor"),
        options={"zero": True, "emphasis": "whole"},
    )


def _parts(value: MetricValue) -> tuple[float | None, float | None, float | None]:
    return value.value, value.low, value.high


def _size(result: CompareResult) -> tuple[float, float]:
    """Return a size with a cell or a bar for each policy; beyond seven it is the whole page."""
    count = len(result.policies)
    return (5.4 if count <= 7 else 11.0, 2.2 + 0.42 * count)


def _at_floor(result: CompareResult) -> str:
    """Say what the band of the noise floor means, where there is one."""
    if not _floor(result):
        return ""
    return "Steps within the noise floor cannot be told from two runs of one policy."


FIGURES = (
    FigureSpec(
        name="mismatch-by-rung",
        kind="compare",
        title="What each step adds",
        says="From the sampler at the top to the trainer at the bottom, with 95% intervals; parts "
        "add up to the whole, a part to the left of 0 takes back what others added. The scale is "
        "logarithmic on both sides of 0.",
        adds=_at_floor,
        draw=waterfall,
        chart=waterfall_chart,
        applies=lambda result: bool(result.pairs),
        size=_size,
    ),
    FigureSpec(
        name="pair-distances",
        kind="compare",
        title="How far apart every two policies are",
        says="A cell is k2, half the mean squared log-ratio in nats per token, whoever sampled; "
        "the stronger its colour, the farther apart (logarithmic). A policy that stands apart has "
        "strong cells in its row and its column.",
        draw=triangle,
        chart=triangle_chart,
        applies=lambda result: bool(distances(result)),
        size=_size,
    ),
)
