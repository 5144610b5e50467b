"""Figures of whole sequences: their log-ratios along the response."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.results import ScoreResult
from rcdiag.results.sequences import SequenceTokens

MOST_WORST = 5
MOST_POINTS, MOST_PATHS = 24, 20  # points of a path, and paths drawn at random
RANDOM, LARGEST = "random", "largest"


def paths(result: ScoreResult) -> Chart:
    """Return the chart of the cumulative log-ratio of random sequences, and of the worst."""
    some = [
        (f"sample {index}", count, round(float(total), 3), RANDOM)
        for index, path in enumerate(result.figures["paths"][:MOST_PATHS], 1)
        for count, total in _some(list(zip(path["token_counts"], path["sums"], strict=True)))
    ]
    worst = result.worst_sequences[:MOST_WORST]
    largest = [
        (f"row {sequence.row}", place, round(float(total), 3), LARGEST)
        for sequence in worst
        for place, total in _some(running(sequence))
    ]
    looks: tuple[tuple[str, str, Tone, bool], ...] = (
        (RANDOM, "drawn at random", "first", True),
        (LARGEST, f"{len(worst)} largest |sum|", "second", False),
    )
    return Chart(
        columns=("sequence", "token", "sum of log-ratios", "drawn"),
        rows=[*some, *largest],
        panels=[
            Panel(
                x=ChartAxis(label="sampled token"),
                y=ChartAxis(label="cumulative log-ratio (nats)"),
                marks=[
                    Mark(
                        shape="line",
                        x="token",
                        y="sum of log-ratios",
                        group="sequence",
                        where=("drawn", which),
                        label=label,
                        tone=tone,
                        thin=thin,
                    )
                    for which, label, tone, thin in looks
                ],
                rules=[ReferenceLine(at=0.0, axis="y")],
            )
        ],
    )


def running(sequence: SequenceTokens) -> list[tuple[int, float]]:
    """Return the number of tokens and the summed log-ratio after each stored token and each gap.

    For a gap only the number of tokens and the sum are stored, so the path still ends at the sum of
    the sequence.
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
    """Thin out the points of a path, keeping the last."""
    every = -(-len(points) // MOST_POINTS) if points else 1
    return [*points[::every], *([] if (len(points) - 1) % every == 0 else points[-1:])]


def strips(result: ScoreResult) -> Chart:
    """Return a strip for each sequence, with a cell for each token, shaded by its log-ratio."""
    sequences = result.worst_sequences
    rows = [
        (f"row {sequence.row}", place, log_ratio)
        for sequence in sequences
        for place, log_ratio in enumerate(sequence.log_ratio, 1)
        if isfinite(log_ratio)
    ]
    largest = max((abs(log_ratio) for _, _, log_ratio in rows), default=0.0) or 1e-9
    return Chart(
        columns=("sequence", "token", "log-ratio"),
        rows=rows,
        panels=[
            Panel(
                x=ChartAxis(label="stored token", start=0.0),
                y=ChartAxis(scale="names", names=[f"row {sequence.row}" for sequence in sequences]),
                marks=[Mark(shape="cell", x="token", y="sequence", value="log-ratio")],
                shade=ChartAxis(label="log-ratio (nats)", scale="symlog", threshold=largest / 100),
            )
        ],
    )


FIGURES = (
    FigureSpec(
        name="cumulative-log-ratio",
        kind="score",
        title="Cumulative log-ratio of sequences",
        says="A random walk around 0 that widens with the square root of the length is noise; a "
        "common drift is a systematic difference. A path ends at its sequence's log weight; it is "
        "straight where tokens of a long sequence are not stored.",
        chart=paths,
        applies=lambda result: bool(result.figures.get("paths")),
    ),
    FigureSpec(
        name="worst-sequence-strips",
        kind="score",
        title="Sequences with the largest |sum of log-ratios|",
        says="A cell is a token: blue is more likely under the target, orange under the behavior "
        "policy. Single strong cells are outliers, a coloured strip is an offset, a change along "
        "the strip an event. For a long sequence the first tokens are shown, followed by those "
        "around its largest |log-ratio|.",
        chart=strips,
        on_page=False,
        size=lambda result: (5.4, 5.8),
        applies=lambda result: bool(result.worst_sequences),
    ),
)
