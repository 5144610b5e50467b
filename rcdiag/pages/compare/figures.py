"""Figures of several policies: who is how far from whom, and which step adds what.

Figures of `rcdiag compare`.
"""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory

from rcdiag.pages.style import FIRST, GRID, INK, SECOND, FigureSpec, short
from rcdiag.results import CompareResult

MOST_PANELS = 3  # in a row, where there is one for every pair


def grid_of_panels(result: CompareResult) -> tuple[int, int]:
    """Rows and columns."""
    count = len(result.figures)
    columns = min(MOST_PANELS, count)
    return -(-count // columns), columns


def size_of_panels(result: CompareResult) -> tuple[float, float]:
    rows, columns = grid_of_panels(result)
    return (5.4, 4.4) if columns == 1 else (11.0, 0.4 + 11.0 / columns * 0.9 * rows)


def heat_map(result: CompareResult, figure: Figure) -> None:
    """KL by k3 of every ordered pair."""
    axes = figure.add_subplot()
    names = list(result.policies)
    values = np.full((len(names), len(names)), np.nan)
    for pair in result.pairs.values():
        value = pair.mismatch["k3_kl"].value
        place = names.index(pair.behavior), names.index(pair.target)
        values[place] = np.nan if value is None else value
    shown = np.where(values > 0, values, np.nan)
    least, most = np.nanmin(shown, initial=np.inf), np.nanmax(shown, initial=0.0)
    if most > 0:
        norm = LogNorm(least, max(most, 10.0 * least))  # equal values have no contrast
        colours = LinearSegmentedColormap.from_list("kl", [FIRST + "14", FIRST + "b0"])
        axes.imshow(shown, cmap=colours, norm=norm, aspect="auto")
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
    """Each step's part of the mismatch between both ends; parts add up to the whole."""
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
        place = blended_transform_factory(axes.transData, axes.transAxes)
        axes.text(at, 1.01, " noise floor", color=SECOND, fontsize=8, transform=place)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("part of E[log-ratio²] / 2 (nats per token)")


def densities(result: CompareResult, figure: Figure) -> None:
    """Log-prob against log-prob, one panel for every pair."""
    colours = LinearSegmentedColormap.from_list("density", [FIRST + "30", FIRST])
    panels = figure.subplots(*grid_of_panels(result), squeeze=False).ravel()
    pairs = result.figures
    for axes in panels[len(pairs) :]:
        axes.set_visible(False)
    for axes, (name, pair) in zip(panels, pairs.items(), strict=False):
        edges = np.array(pair.edges)
        cells = np.array(pair.cells).reshape(-1, 3)
        counts = np.full((len(edges) - 1, len(edges) - 1), np.nan)
        counts[cells[:, 1], cells[:, 0]] = cells[:, 2]
        low = edges[max(int(cells[:, :2].min(initial=len(edges) - 2)) - 1, 0)]
        norm = LogNorm(1, max(float(np.nanmax(counts, initial=1)), 2))
        axes.pcolormesh(edges, edges, counts, cmap=colours, norm=norm, rasterized=True)
        axes.plot([low, 0], [low, 0], color=INK, linewidth=0.7)
        axes.set_xlim(low, 0)
        axes.set_ylim(low, 0)
        axes.set_xlabel(short(result.pairs[name].behavior), fontsize=8)
        axes.set_ylabel(short(result.pairs[name].target), fontsize=8)
        axes.tick_params(labelsize=7)


def by_probability(result: CompareResult, figure: Figure) -> None:
    """Size of the log-ratio by the probability of the token, one panel for every pair."""
    panels = figure.subplots(*grid_of_panels(result), squeeze=False, sharey=True).ravel()
    pairs = result.figures
    for axes in panels[len(pairs) :]:
        axes.set_visible(False)
    for axes, (name, pair) in zip(panels, pairs.items(), strict=False):
        bins = pair.by_probability.bins
        at = np.arange(len(bins))
        size = [each.log_ratio_rms for each in bins]
        heights = np.array([np.nan if v.value is None else v.value for v in size])
        low = np.array([h if v.low is None else v.low for h, v in zip(heights, size, strict=True)])
        high = np.array(
            [h if v.high is None else v.high for h, v in zip(heights, size, strict=True)]
        )
        axes.fill_between(at, low, high, color=FIRST, alpha=0.2, linewidth=0)
        axes.plot(at, heights, color=FIRST, marker="o", markersize=3, linewidth=1.2)
        axes.set_yscale("symlog", linthresh=1e-4)
        labels = [each.label for each in bins]
        axes.set_xticks(at, labels, rotation=40, ha="right", rotation_mode="anchor", fontsize=6)
        axes.tick_params(axis="y", labelsize=7)
        first, second = short(result.pairs[name].behavior), short(result.pairs[name].target)
        axes.set_title(f"{first} against {second}", fontsize=8, loc="left")
        axes.label_outer(remove_inner_ticks=False)


def _by_policies(result: CompareResult) -> tuple[float, float]:
    """Room for a cell or a bar of each; beyond seven policies over the whole page."""
    count = len(result.policies)
    return (5.4 if count <= 7 else 11.0, 2.2 + 0.42 * count)


FIGURES_OF_COMPARE: dict[str, FigureSpec] = {
    "matrix": FigureSpec(
        "KL of every pair",
        "A cell is KL(behavior || target) by k3, nats per token; colours are logarithmic. Pale "
        "blocks are policies that agree; a dark row and column is one that stands apart.",
        heat_map,
        size=_by_policies,
    ),
    "ladder": FigureSpec(
        "What each step adds",
        "From the sampler at the top to the trainer at the bottom; parts add up to the whole, a "
        "part to the left takes back what others did. Grey steps are at the noise floor.",
        waterfall,
        size=_by_policies,
    ),
    "densities": FigureSpec(
        "Log-prob of the same tokens under two policies",
        "A panel is a pair. On the diagonal they agree; the darker a cell, the more tokens "
        "(logarithmic).",
        densities,
        size=size_of_panels,
    ),
    "probability": FigureSpec(
        "Mismatch by probability",
        "rms log-ratio (nats) in bins of the geometric mean of both probabilities, with 95% "
        "intervals by cluster. Rounding grows towards rare tokens; a level that does not is "
        "another cause.",
        by_probability,
        size=size_of_panels,
    ),
}
