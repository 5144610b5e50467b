"""The figure of the log-probs of the same tokens under both policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import shades
from rcdiag.pages.style import FIRST, GRID, SECOND, short
from rcdiag.results import ScoreResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def log_prob_density(result: ScoreResult, figure: Figure) -> None:
    """Draw cells of tokens by both log-probs, and the tokens that are farthest apart."""
    axes = figure.add_subplot()
    data = result.figures["log_probs"]
    edges = np.array(data["edges"])
    cells = np.array(data["cells"], dtype=float).reshape(-1, 3)
    counts = np.zeros((len(edges) - 1, len(edges) - 1))
    counts[cells[:, 1].astype(int), cells[:, 0].astype(int)] = cells[:, 2]
    axes.pcolormesh(
        edges,
        edges,
        np.where(counts == 0.0, np.nan, counts),
        cmap=shades(FIRST + "33", FIRST),
        norm="log",
        vmin=1.0,
        vmax=max(counts.max(), 10.0),
        rasterized=True,
    )
    low = float(edges[0])
    axes.plot([low, 0], [low, 0], color=GRID, linewidth=2.5, zorder=0.5)
    _ring_worst(result, axes, low)
    axes.set(xlim=(low, 0.4), ylim=(low, 0.4), aspect="equal")
    axes.set_xlabel(f"log-prob under {short(result.behavior)} (nats)")
    axes.set_ylabel(f"log-prob under {short(result.target)} (nats)")


def _ring_worst(result: ScoreResult, axes: Axes, low: float) -> None:
    pairs = [
        (token["behavior_log_prob"], token["target_log_prob"]) for token in result.worst_tokens
    ]
    finite = [pair for pair in pairs if all(map(_is_finite, pair))]
    if not finite:
        return
    points = np.maximum(np.array(finite, dtype=float), low)
    x, y = points[:, 0], points[:, 1]
    axes.scatter(x, y, s=26, zorder=3, facecolors="none", edgecolors=SECOND, linewidths=1.1)
    axes.annotate(
        f"{len(points)} largest |log-ratio|",
        (0.03, 0.95),
        xycoords="axes fraction",
        color=SECOND,
        va="top",
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and bool(np.isfinite(value))


FIGURES = (
    FigureSpec(
        name="log-prob-density",
        kind="score",
        title="Log-prob of the same tokens under both policies",
        says="On the diagonal the policies agree; the stronger the colour of a cell, the more "
        "tokens it holds (logarithmic). Rings are the tokens with the largest |log-ratio|.",
        draw=log_prob_density,
        on_page=False,
        applies=lambda result: bool(result.figures),
    ),
)
