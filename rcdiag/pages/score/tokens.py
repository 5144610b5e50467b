"""Figures of single tokens."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from rcdiag.pages.style import FIRST, GRID, INK, SECOND, short
from rcdiag.results import ScoreResult


def log_ratio_histogram(result: ScoreResult, figure: Figure) -> None:
    """Tokens by log-ratio, both axes logarithmic, either sign on its own side of 0."""
    axes = figure.add_subplot()
    data = result.figures["log_ratio"]
    edges, counts = np.array(data["edges"]), np.array(data["counts"])
    filled = np.flatnonzero(counts)
    smallest = edges[edges > 0][0]
    axes.stairs(counts, edges, fill=True, color=FIRST, alpha=0.85)
    axes.set_xscale("symlog", linthresh=smallest, linscale=0.5)
    axes.set_yscale("log")
    axes.set_ylim(0.7, max(counts.max(initial=1) * 2, 10))
    if len(filled):
        reach = max(abs(edges[filled[0]]), abs(edges[filled[-1] + 1]), 10 * smallest)
        axes.set_xlim(-reach * 1.2, reach * 1.2)
        axes.set_xticks(_signed_decades(smallest, reach))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_signed_power))
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.set_xlabel(f"log-ratio, {short(result.target)} - {short(result.behavior)} (nats)")
    axes.set_ylabel("tokens")


def _signed_decades(smallest: float, reach: float) -> list[float]:
    """Ticks at powers of ten on both sides, at most four a side, none crowding the 0."""
    low, high = round(np.log10(smallest)), int(np.floor(np.log10(reach)))
    step = max(-(-(high - low) // 4), 1)
    powers = [10.0**power for power in range(high, low, -step)]
    return [-power for power in powers] + [0.0] + powers[::-1]


def _signed_power(value: float, _: object) -> str:
    if value == 0:
        return "0"
    # U+2212 and superscripts as text, so that the SVG stays searchable.
    digits = str(round(np.log10(abs(value)))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{'−' if value < 0 else '+'}10{digits}"


def log_prob_density(result: ScoreResult, figure: Figure) -> None:
    """Cells of tokens by both policies' log-prob, and the tokens that are farthest apart."""
    axes = figure.add_subplot()
    data = result.figures["log_probs"]
    edges = np.array(data["edges"])
    cells = np.array(data["cells"], dtype=float).reshape(-1, 3)
    counts = np.zeros((len(edges) - 1, len(edges) - 1))
    counts[cells[:, 1].astype(int), cells[:, 0].astype(int)] = cells[:, 2]
    shades = LinearSegmentedColormap.from_list("tokens", [FIRST + "33", FIRST])
    axes.pcolormesh(
        edges,
        edges,
        np.ma.masked_equal(counts, 0.0),
        cmap=shades,
        norm=LogNorm(1.0, max(counts.max(), 10.0)),
        rasterized=True,
    )
    low = float(edges[0])
    axes.plot([low, 0], [low, 0], color=GRID, linewidth=2.5, zorder=0.5)
    _ring_worst(result, axes, low)
    axes.set(xlim=(low, 0.4), ylim=(low, 0.4), aspect="equal")
    axes.set_xlabel(f"log-prob under {short(result.behavior)} (nats)")
    axes.set_ylabel(f"log-prob under {short(result.target)} (nats)")


def _ring_worst(result: ScoreResult, axes: Axes, low: float) -> None:
    worst = [
        (token["behavior_log_prob"], token["target_log_prob"]) for token in result.worst_tokens
    ]
    known = [pair for pair in worst if all(map(_is_number, pair))]
    if not known:
        return
    points = np.maximum(np.array(known, dtype=float), low)
    x, y = points[:, 0], points[:, 1]
    axes.scatter(x, y, s=26, zorder=3, facecolors="none", edgecolors=SECOND, linewidths=1.1)
    axes.annotate(
        f"{len(points)} largest |log-ratio|",
        (0.03, 0.95),
        xycoords="axes fraction",
        color=SECOND,
        va="top",
    )


def _is_number(value: object) -> bool:
    return isinstance(value, float) and bool(np.isfinite(value))


LEVELS = {
    "token": ("log_ratio", "of tokens"),
    "sequence": ("sequence_log_ratio", "of sequences (sum)"),
    "geometric": ("geometric_log_ratio", "of sequences (mean)"),
}


def weights(result: ScoreResult, figure: Figure) -> None:
    """Ratios by level on one log axis each, with the bounds that the presets put there."""
    edges = np.array(result.figures["log_ratio"]["edges"])
    panels = figure.subplots(3, 1)
    for (level, (name, words)), axes in zip(LEVELS.items(), panels, strict=True):
        counts = result.figures["log_ratio"]["counts"] if level == "token" else result.figures[name]
        counts = np.array(counts)
        filled = np.flatnonzero(counts)
        axes.stairs(counts, edges, fill=True, color=FIRST, alpha=0.85)
        axes.set_xscale("symlog", linthresh=1e-4, linscale=0.5)
        axes.set_yscale("log")
        axes.set_ylim(0.7, max(counts.max(initial=1) * 2, 10))
        reach = 1e-3
        if len(filled):
            reach = max(abs(edges[filled[0]]), abs(edges[filled[-1] + 1]), 1e-3)
        bounds = sorted(_log_bounds(result, level))
        reach = max([reach, *(abs(bound) for bound in bounds if abs(bound) < 30 * reach)])
        axes.set_xlim(-1.3 * reach, 1.3 * reach)
        axes.set_xticks(_signed_decades(1e-4, reach))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(_signed_power))
        for bound in bounds:
            axes.axvline(bound, color=SECOND, linewidth=1.0, linestyle="--")
        axes.set_ylabel("count", fontsize=8)
        axes.set_title(f"log-ratio {words}", fontsize=9, loc="right")


def _log_bounds(result: ScoreResult, level: str) -> set[float]:
    """Where presets truncate, zero or reject at a level, as log-ratios."""
    return {
        round(float(bound), 9)
        for each in result.corrections.values()
        for bound in each.log_bounds.get(level, ())
        if np.isfinite(bound)
    }
