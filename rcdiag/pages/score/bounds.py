"""The figure of the ratios, with the bounds at which presets act."""

from __future__ import annotations

import numpy as np

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine
from rcdiag.pages.definitions import FigureSpec
from rcdiag.results import ScoreResult

# Level of a bound -> the histogram in `figures` that has it, and what that counts.
LEVELS = {
    "token": ("log_ratio_histogram", "of tokens"),
    "sequence": ("sequence_log_ratio", "of sequences (sum)"),
    "geometric": ("geometric_log_ratio", "of sequences (mean)"),
}
LINEAR = 1e-4  # nats: smaller log-ratios are rounding
FAR = 30.0  # bounds beyond this multiple of the largest log-ratio are not drawn


def chart(result: ScoreResult) -> Chart:
    """Return histograms of log-ratios by level, with the bounds of presets at that level."""
    edges = np.array(result.figures["log_ratio_histogram"]["edges"])
    rows, panels = [], []
    for level, (name, words) in LEVELS.items():
        data = result.figures[name]
        counts = np.array(data["counts"] if level == "token" else data)
        filled = np.flatnonzero(counts)
        panel = f"log-ratio {words}"
        rows += [
            (panel, float(edges[place]), float(edges[place + 1]), int(counts[place]))
            for place in filled
        ]
        ends = [edges[filled[0]], edges[filled[-1] + 1]] if len(filled) else [0.0]
        largest = max(*np.abs(ends), 1e-3)
        bounds = [bound for bound in log_bounds(result, level) if abs(bound) < FAR * largest]
        largest = 1.3 * float(max([largest, *map(abs, bounds)]))
        panels.append(
            Panel(
                title=panel,
                x=ChartAxis(scale="symlog", threshold=LINEAR, start=-largest, end=largest),
                y=ChartAxis(label="count", scale="log", start=0.7),
                marks=[Mark(shape="bar", x="from", to="to", y="count")],
                rules=[ReferenceLine(at=bound, dashed=True) for bound in bounds],
                where=("panel", panel),
                height=0.4,
            )
        )
    return Chart(columns=("panel", "from", "to", "count"), rows=rows, panels=panels)


def log_bounds(result: ScoreResult, level: str) -> list[float]:
    """Return the bounds at which presets truncate, zero or reject at a level, as log-ratios."""
    bounds = {
        round(float(bound), 9)
        for correction in result.corrections.values()
        for bound in correction.log_bounds.get(level, ())
        if np.isfinite(bound)
    }
    return sorted(bounds)


FIGURES = (
    FigureSpec(
        name="ratios-and-bounds",
        kind="score",
        title="Ratios, and the bounds of the presets",
        says="Dashed lines are bounds at which a preset truncates, zeroes or rejects at that "
        "level. Bounds in the bulk affect many tokens, bounds beyond the tails none.",
        chart=chart,
        on_page=False,
        applies=lambda result: bool(result.corrections),
    ),
)
