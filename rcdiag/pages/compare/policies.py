"""These figures show all policies at once: how far apart they are, and what each step adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rcdiag.pages.compare.words import how_rows_are_made
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import shades
from rcdiag.pages.style import FIRST, GRID, INK, SECOND, short
from rcdiag.results import CompareResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heat_map(result: CompareResult, figure: Figure) -> None:
    """Draw KL by k3 of every ordered pair."""
    axes = figure.add_subplot()
    names = list(result.policies)
    values = np.full((len(names), len(names)), np.nan)
    for pair in result.pairs.values():
        value = pair.mismatch["k3_kl"].value
        place = names.index(pair.behavior), names.index(pair.target)
        values[place] = np.nan if value is None else value
    shown = np.where((values > 0) & np.isfinite(values), values, np.nan)
    least, most = np.nanmin(shown, initial=np.inf), np.nanmax(shown, initial=0.0)
    if most > 0:
        colours = shades(FIRST + "14", FIRST + "b0")
        most = max(most, 10.0 * least)  # equal values have no contrast
        axes.imshow(shown, cmap=colours, norm="log", vmin=least, vmax=most, aspect="auto")
    for row, column in zip(*np.nonzero(~np.isnan(values)), strict=True):
        text = f"{values[row, column]:.2g}" if values[row, column] else "0"
        axes.text(column, row, text, ha="center", va="center", color=INK, fontsize=8)
    labels = [short(name) for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), labels)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("target")
    axes.set_ylabel("behavior")


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
    axes.set_xlabel("part of E[log-ratio²] / 2 (nats per token)")


def _size(result: CompareResult) -> tuple[float, float]:
    """Return a size with a cell or a bar for each policy; beyond seven it is the whole page."""
    count = len(result.policies)
    return (5.4 if count <= 7 else 11.0, 2.2 + 0.42 * count)


def _rows_made(result: CompareResult) -> str:
    """Say under which law the rows are, where not every row's policy sampled."""
    made = how_rows_are_made(result)
    return f"Here: {made}." if made else ""


FIGURES = (
    FigureSpec(
        name="kl-matrix",
        kind="compare",
        title="KL of every pair",
        says="A cell is KL(behavior || target) by k3, nats per token; colours are logarithmic. "
        "Blocks of weak colour are policies that agree; a row and "
        "column of strong colour is a policy that stands apart.",
        draw=heat_map,
        applies=lambda result: bool(result.pairs),
        size=_size,
        adds=_rows_made,
    ),
    FigureSpec(
        name="mismatch-by-rung",
        kind="compare",
        title="What each step adds",
        says="From the sampler at the top to the trainer at the bottom; parts add up to the "
        "whole, a part to the left takes back what others added. Grey steps are at the noise "
        "floor.",
        draw=waterfall,
        applies=lambda result: bool(result.pairs),
        size=_size,
    ),
)
