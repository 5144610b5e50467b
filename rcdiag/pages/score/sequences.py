"""Figures of whole sequences: their log-ratios along the response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rcdiag.pages.charts import Axis, Chart, Series
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import shades
from rcdiag.pages.style import FIRST, INK, SECOND
from rcdiag.results import ScoreResult
from rcdiag.results.score import SequenceTokens

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
    worst = result.worst_sequences[:MOST_WORST]
    label: str | None = f"{len(worst)} largest |sum|"
    for sequence in worst:
        counts, sums = zip(*running(sequence), strict=True)
        axes.plot(counts, sums, color=SECOND, linewidth=1.1, label=label)
        label = None  # one entry of the legend for all of them
    axes.axhline(0.0, color=INK, linewidth=0.8)
    if worst:
        axes.legend(fontsize=8, frameon=False, loc="best")
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
        for place, total in _some(running(sequence))
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


def running(sequence: SequenceTokens) -> list[tuple[int, float]]:
    """Return the number of tokens and the summed log-ratio after each stored token and each gap.

    Of a gap only the number of tokens and their sum are stored, so that the path still ends at the
    sum of the sequence.
    """
    left_out = {int(place): (int(tokens), total) for place, tokens, total in sequence.gaps or ()}
    points: list[tuple[int, float]] = []
    count, total = 0, 0.0
    for place in range(len(sequence.log_ratio) + 1):
        if place in left_out:
            tokens, skipped = left_out[place]
            count, total = count + tokens, total + skipped
            points.append((count, total))
        if place < len(sequence.log_ratio):
            count, total = count + 1, total + sequence.log_ratio[place]
            points.append((count, total))
    return points


def _some(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Thin out the points of a path; the last one stays."""
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
        np.where(np.isfinite(cells), cells, np.nan),
        cmap=shades(SECOND, SECOND + "00", FIRST),
        norm=SymLogNorm(largest / 100, vmin=-largest, vmax=largest),
        rasterized=True,
    )
    axes.set_yticks(
        range(1, len(sequences) + 1), [f"row {sequence.row}" for sequence in sequences], fontsize=8
    )
    axes.invert_yaxis()
    axes.grid(False)
    axes.set_xlabel("stored token")
    bar = figure.colorbar(mesh, ax=axes, label="log-ratio (nats)", aspect=30)
    bar.outline.set_visible(False)
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
        "common drift is a systematic difference. A path ends at its sequence's log weight; where "
        "tokens of a long one are not stored it is straight.",
        draw=paths,
        chart=paths_chart,
        applies=lambda result: bool(result.figures.get("paths")),
    ),
    FigureSpec(
        name="worst-sequence-strips",
        kind="score",
        title="Sequences with the largest |sum of log-ratios|",
        says="A cell is a token: blue is more likely under the target, orange under the behavior "
        "policy. Single cells of strong colour are outliers, a whole coloured strip is an offset, "
        "a change along the strip an event. Of a long sequence the first tokens stand side by side "
        "with those around its largest |log-ratio|.",
        draw=strips,
        on_page=False,
        size=lambda result: (5.4, 5.8),
        applies=lambda result: bool(result.worst_sequences),
    ),
)
