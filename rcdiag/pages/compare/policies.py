"""These figures show all policies at once: how far apart they are, and what each step adds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rcdiag.pages.charts import Axis, Chart, Series
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import heights, shades, whole_numbers
from rcdiag.pages.style import FIRST, GRID, INK, SECOND, short
from rcdiag.results import CompareResult, MetricValue

if TYPE_CHECKING:
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


LEAST_LETTERS = 5.0  # points: smaller numbers in cells are left out


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
        most = max(most, 10.0 * least)  # equal values have no contrast
        axes.imshow(shown, cmap=colours, norm="log", vmin=least, vmax=most, aspect="auto")
    # Two thirds of the width are cells, and a number has six letters.
    letters = min(8.0, figure.get_figwidth() * 72.0 * 0.66 / len(names) / (6 * 0.6))
    for row, column in zip(*np.nonzero(~np.isnan(values)), strict=True):
        text = f"{values[row, column]:.2g}" if values[row, column] else "0"
        if letters >= LEAST_LETTERS:
            axes.text(column, row, text, ha="center", va="center", color=INK, fontsize=letters)
    labels = [short(name) for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), labels)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


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
    """Draw each step's part of the mismatch between both ends; parts add up to the whole."""
    axes = figure.add_subplot()
    ladder = result.ladder
    labels, start = [], 0.0
    for index, rung in enumerate(ladder.rungs):
        part = rung.contribution.value or 0.0
        colour = GRID if rung.at_floor else (FIRST if part >= 0 else SECOND)
        axes.barh(index, part, left=start, height=0.6, color=colour)
        if rung.contribution.low is not None and rung.contribution.high is not None:
            ends = [[part - rung.contribution.low], [rung.contribution.high - part]]
            axes.errorbar(start + part, index, xerr=ends, color=INK, linewidth=1, capsize=2)
        labels.append(f"{short(rung.start)}\n→ {short(rung.end)}")
        start += part
    whole = len(ladder.rungs)
    axes.barh(whole, ladder.whole.value or 0.0, height=0.6, color=INK)
    axes.set_yticks(range(whole + 1), [*labels, "whole"], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0.0, color=INK, linewidth=0.8)
    if result.noise_floor is not None and result.noise_floor.k2.value is not None:
        at = result.noise_floor.k2.value
        axes.axvline(at, color=SECOND, linewidth=1, linestyle="--")
        place = axes.get_xaxis_transform()  # x in the data, y as a share of the axes
        axes.text(at, 1.01, " noise floor", color=SECOND, fontsize=8, transform=place)
    axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=5)
    whole_numbers(axes.xaxis)
    axes.set_xlabel("part of E[log-ratio²] / 2 (nats per token)")


def waterfall_chart(result: CompareResult) -> Chart:
    """Return each step's part and its own k2, with the noise floor as a band."""
    rungs = result.ladder.rungs
    floor = None if result.noise_floor is None else result.noise_floor.k2
    high = None if floor is None else (floor.value if floor.high is None else floor.high)
    sizes = [abs(rung.contribution.value or 0.0) for rung in rungs] + [high or 0.0]
    least = min((size for size in sizes if size > 0 and math.isfinite(size)), default=1e-6)
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
        x=Axis(
            label="nats per token",
            scale="symlog",
            threshold=10.0 ** math.floor(math.log10(least / 3.0)),
        ),
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


FIGURES = (
    FigureSpec(
        name="mismatch-by-rung",
        kind="compare",
        title="What each step adds",
        says="From the sampler at the top to the trainer at the bottom, with 95% intervals; parts "
        "add up to the whole, a part to the left of 0 takes back what others added. The scale is "
        "logarithmic on both sides of 0. Steps within the noise floor cannot be told from two "
        "runs of one policy.",
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
