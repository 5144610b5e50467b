"""The figure of the ratios with the bounds at which presets act."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import histogram, reach, signed_decades
from rcdiag.pages.style import SECOND
from rcdiag.results import ScoreResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Level -> where the result holds its counts, and its words.
LEVELS = {
    "token": ("log_ratio_histogram", "of tokens"),
    "sequence": ("sequence_log_ratio", "of sequences (sum)"),
    "geometric": ("geometric_log_ratio", "of sequences (mean)"),
}


def ratios_and_bounds(result: ScoreResult, figure: Figure) -> None:
    """Draw ratios by level on one log axis each, with the bounds that presets put there."""
    edges = np.array(result.figures["log_ratio_histogram"]["edges"])
    panels = figure.subplots(3, 1)
    for (level, (name, words)), axes in zip(LEVELS.items(), panels, strict=True):
        data = result.figures[name]
        counts = np.array(data["counts"] if level == "token" else data)
        histogram(axes, edges, counts)
        axes.set_xscale("symlog", linthresh=1e-4, linscale=0.5)
        bounds = sorted(_log_bounds(result, level))
        largest = max(reach(edges, counts), 1e-3)
        largest = max([largest, *(abs(bound) for bound in bounds if abs(bound) < 30 * largest)])
        axes.set_xlim(-1.3 * largest, 1.3 * largest)
        signed_decades(axes, 1e-4, largest)
        for bound in bounds:
            axes.axvline(bound, color=SECOND, linewidth=1.0, linestyle="--")
        axes.set_ylabel("count", fontsize=8)
        axes.set_title(f"log-ratio {words}", fontsize=9, loc="right")


def _log_bounds(result: ScoreResult, level: str) -> set[float]:
    """Return where presets truncate, zero or reject at a level, as log-ratios."""
    return {
        round(float(bound), 9)
        for correction in result.corrections.values()
        for bound in correction.log_bounds.get(level, ())
        if np.isfinite(bound)
    }


FIGURES = (
    FigureSpec(
        name="ratios-and-bounds",
        kind="score",
        title="Ratios, and the bounds of the presets",
        says="Dashed lines are bounds at which a preset truncates, zeroes or rejects at that "
        "level. Bounds in the bulk decide over many tokens, bounds beyond the tails over none.",
        draw=ratios_and_bounds,
        on_page=False,
        applies=lambda result: bool(result.corrections),
    ),
)
