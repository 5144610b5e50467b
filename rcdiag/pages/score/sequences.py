"""These figures show whole sequences: their log-ratios along the response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rcdiag.pages.charts import Axis, Chart, Series
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import shades
from rcdiag.pages.style import FIRST, INK, SECOND
from rcdiag.results import ScoreResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_WORST = 5
# Of the page: points of a path, and paths of the sample.
MOST_POINTS, MOST_PATHS = 24, 20


def paths(result: ScoreResult, figure: Figure) -> None:
    """Draw the cumulative log-ratio of a sample of sequences, and of the worst."""
    axes = figure.add_subplot()
    for path in result.figures["paths"]:
        axes.plot(path["token_counts"], path["sums"], color=FIRST, alpha=0.45, linewidth=0.8)
    for sequence in result.worst_sequences[:MOST_WORST]:
        sums = np.cumsum(sequence.log_ratio)
        axes.plot(np.arange(1, len(sums) + 1), sums, color=SECOND, linewidth=1.1)
    axes.axhline(0.0, color=INK, linewidth=0.8)
    axes.annotate("5 largest |sum|", (0.03, 0.97), xycoords="axes fraction", color=SECOND, va="top")
    axes.set_xlabel("sampled tokens")
    axes.set_ylabel("cumulative log-ratio (nats)")


def paths_chart(result: ScoreResult) -> Chart:
    """Return the same paths, the worst sequences by their rows."""
    some = [
        (f"sample {index}", count, round(float(total), 3))
        for index, path in enumerate(result.figures["paths"][:MOST_PATHS], 1)
        for count, total in _some(list(zip(path["token_counts"], path["sums"], strict=True)))
    ]
    worst = [
        (f"row {sequence.row}", place, round(float(total), 3))
        for sequence in result.worst_sequences[:MOST_WORST]
        for place, total in _some(list(enumerate(np.cumsum(sequence.log_ratio), 1)))
    ]
    return Chart(
        form="curves",
        columns=("sequence", "token", "sum of log-ratios"),
        rows=[*some, *worst],
        x=Axis(label="sampled token"),
        y=Axis(label="cumulative log-ratio (nats)"),
        series=(
            Series(label="some sequences", y="sum of log-ratios", group="sequence", tone="first"),
            *(
                Series(
                    label=f"row {sequence.row}",
                    y="sum of log-ratios",
                    group="sequence",
                    only=f"row {sequence.row}",
                    tone="second",
                )
                for sequence in result.worst_sequences[:MOST_WORST]
            ),
        ),
        options={"zero": True, "quiet": True},
    )


def _some(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Return every so many points of a path, and its last."""
    every = -(-len(points) // MOST_POINTS) if points else 1
    return [*points[::every], *([] if (len(points) - 1) % every == 0 else points[-1:])]


def strips(result: ScoreResult, figure: Figure) -> None:
    """Draw a strip per sequence, with a cell per token, coloured by its log-ratio."""
    from matplotlib.colors import SymLogNorm

    axes = figure.add_subplot()
    sequences = result.worst_sequences
    width = max(len(sequence.log_ratio) for sequence in sequences)
    cells = np.full((len(sequences), width), np.nan)
    for index, sequence in enumerate(sequences):
        cells[index, : len(sequence.log_ratio)] = sequence.log_ratio
    largest = float(np.nanmax(np.abs(np.where(np.isfinite(cells), cells, np.nan)), initial=1e-9))
    mesh = axes.pcolormesh(
        np.arange(width + 1),
        np.arange(len(sequences) + 1) + 0.5,
        np.ma.masked_invalid(cells),
        cmap=shades(SECOND, SECOND + "00", FIRST),
        norm=SymLogNorm(largest / 100, vmin=-largest, vmax=largest),
        rasterized=True,
    )
    axes.set_yticks(
        range(1, len(sequences) + 1), [f"row {sequence.row}" for sequence in sequences], fontsize=8
    )
    axes.invert_yaxis()
    axes.grid(False)
    axes.set_xlabel("sampled token")
    bar = figure.colorbar(mesh, ax=axes, label="log-ratio (nats)", aspect=30)
    bar.outline.set_visible(False)  # type: ignore[operator]
    ticks = [sign * largest for sign in (-1, -0.1, 0, 0.1, 1)]
    bar.set_ticks(
        ticks, labels=[f"{tick:+.2g}".replace("-", "−") if tick else "0" for tick in ticks]
    )
    bar.ax.minorticks_off()


FIGURES = (
    FigureSpec(
        name="cumulative-log-ratio",
        kind="score",
        title="Cumulative log-ratio of sequences",
        says="A random walk around 0 that widens with the square root of the length is noise; a "
        "common drift is a systematic difference. A path that is not cut ends at its sequence's "
        "log weight.",
        draw=paths,
        chart=paths_chart,
        applies=lambda result: bool(result.figures.get("paths")),
    ),
    FigureSpec(
        name="worst-sequence-strips",
        kind="score",
        title="Sequences with the largest |sum of log-ratios|",
        says="A cell is a token: blue is likelier under the target, orange under the behavior "
        "policy. Single cells of strong colour are outliers, a whole coloured strip is an offset, "
        "a change along the strip an event. Long sequences are cut at 400 tokens.",
        draw=strips,
        on_page=False,
        size=lambda result: (5.4, 5.8),
        applies=lambda result: bool(result.worst_sequences),
    ),
)
