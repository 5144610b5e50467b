"""Figures with one panel for every pair of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import MOST_COLUMNS, ends, heights, name_ticks, panels, shades
from rcdiag.pages.style import FIRST, INK, short
from rcdiag.results import CompareResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PAIRS = 6


def densities(result: CompareResult, figure: Figure) -> None:
    """Draw log-prob against log-prob, one panel for every pair."""
    colours = shades(FIRST + "30", FIRST)
    pairs = result.figures
    for axes, (name, pair) in zip(panels(figure, len(pairs)), pairs.items(), strict=True):
        edges = np.array(pair.edges)
        cells = np.array(pair.cells, np.int64).reshape(-1, 3)
        counts = np.full((len(edges) - 1, len(edges) - 1), np.nan)
        counts[cells[:, 1], cells[:, 0]] = cells[:, 2]
        low = edges[max(int(cells[:, :2].min(initial=len(edges) - 2)) - 1, 0)]
        most = max(float(np.nanmax(counts, initial=1)), 2)
        axes.pcolormesh(
            edges, edges, counts, cmap=colours, norm="log", vmin=1, vmax=most, rasterized=True
        )
        axes.plot([low, 0], [low, 0], color=INK, linewidth=0.7)
        axes.set_xlim(low, 0)
        axes.set_ylim(low, 0)
        axes.set_xlabel(short(result.pairs[name].behavior), fontsize=8)
        axes.set_ylabel(short(result.pairs[name].target), fontsize=8)
        axes.tick_params(labelsize=7)
    figure.supxlabel("log-prob (nats)", fontsize=8)


def by_probability(result: CompareResult, figure: Figure) -> None:
    """Draw the size of the log-ratio by token probability, one panel for every pair."""
    pairs = result.figures
    all_axes = panels(figure, len(pairs), sharey=True)
    for axes, (name, pair) in zip(all_axes, pairs.items(), strict=True):
        bins = pair.by_probability.bins
        at = np.arange(len(bins))
        size = [bin_.log_ratio_rms for bin_ in bins]
        axes.fill_between(at, *ends(size), color=FIRST, alpha=0.2, linewidth=0)
        axes.plot(at, heights(size), color=FIRST, marker="o", markersize=3, linewidth=1.2)
        axes.set_yscale("symlog", linthresh=1e-4)
        labels = [bin_.label for bin_ in bins]
        name_ticks(axes, labels, columns=min(len(pairs), MOST_COLUMNS), fontsize=6)
        axes.tick_params(axis="y", labelsize=7)
        first, second = short(result.pairs[name].behavior), short(result.pairs[name].target)
        axes.set_title(f"{first}\n→ {second}", fontsize=8, loc="left")
        axes.label_outer(remove_inner_ticks=False)
    figure.supxlabel("geometric mean of both probabilities", fontsize=8)
    figure.supylabel("rms log-ratio (nats)", fontsize=8)


def _size(result: CompareResult) -> tuple[float, float]:
    """Return a size with room for all panels."""
    count = len(result.figures)
    columns = min(MOST_COLUMNS, count)
    return (5.4, 4.4) if columns == 1 else (11.0, 0.4 + 11.0 / columns * 0.9 * -(-count // columns))


def _few_pairs(result: CompareResult) -> bool:
    """Tell whether every pair can have a panel that can be read."""
    return 0 < len(result.figures) <= MOST_PAIRS


FIGURES = (
    FigureSpec(
        name="log-prob-density-by-pair",
        kind="compare",
        title="Log-prob of the same tokens under two policies",
        says="A panel is a pair. On the diagonal both policies agree; the stronger the colour of "
        "a cell, the more tokens it holds (logarithmic).",
        draw=densities,
        on_page=False,
        applies=_few_pairs,
        size=_size,
    ),
    FigureSpec(
        name="mismatch-by-probability-by-pair",
        kind="compare",
        title="Mismatch by probability",
        says="rms log-ratio (nats) in bins of the geometric mean of both probabilities, with 95% "
        "intervals by cluster. Rounding grows towards rare tokens; a level that does not grow is "
        "another cause.",
        draw=by_probability,
        on_page=False,
        applies=_few_pairs,
        size=_size,
    ),
)
