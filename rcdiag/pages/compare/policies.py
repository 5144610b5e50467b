"""Figures of all policies: their distances, and what each ladder step adds."""

from __future__ import annotations

import math

from rcdiag.pages.charts import Band, Chart, ChartAxis, Mark, Note, Panel, ReferenceLine, Value
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.score.profiles import with_ends
from rcdiag.results import CompareResult, MetricValue

WHOLE = "whole"  # the row of the whole ladder
# Decades of step sizes that the logarithmic scale shows; smaller steps are in its linear part.
DECADES = 7


def distances(result: CompareResult) -> dict[tuple[str, str], MetricValue]:
    """Return k2 of every two policies, the earlier one in the table first."""
    names = list(result.policies)
    return {
        (first, second): result.pairs[f"{first}->{second}"].mismatch["k2_kl"]
        for place, first in enumerate(names)
        for second in names[place + 1 :]
        if f"{first}->{second}" in result.pairs
    }


def triangle(result: CompareResult) -> Chart:
    """Return the chart of k2 of every two policies; a click on a cell opens the pair."""
    names = list(result.policies)
    return Chart(
        columns=("policy", "other policy", "k2", "low", "high"),
        rows=[(*pair, *with_ends(value)) for pair, value in distances(result).items()],
        panels=[
            Panel(
                x=ChartAxis(scale="names", names=names, hidden=True),
                y=ChartAxis(scale="names", names=names, hidden=True),
                marks=[Mark(shape="cell", x="policy", y="other policy", value="k2", written=True)],
                notes=[Note(text=name, x=name, y=name) for name in names],
                shade=ChartAxis(label="k2 (nats per token)", scale="log"),
            )
        ],
        opens="pair",
    )


def _floor(result: CompareResult) -> float | None:
    """Return the upper end of the noise floor; None if it was not measured."""
    floor = None if result.noise_floor is None else result.noise_floor.k2
    return None if floor is None else (floor.value if floor.high is None else floor.high)


def _linear_threshold(result: CompareResult) -> float:
    """Return the size below which the scale of steps is linear: a decade below the smallest step.

    It is at most DECADES below the largest, so that one tiny step does not squeeze the others.
    """
    parts = [abs(rung.contribution.value or 0.0) for rung in result.ladder.rungs]
    known = [size for size in (*parts, _floor(result) or 0.0) if size > 0 and math.isfinite(size)]
    if not known:
        return 1e-7
    below, largest = math.log10(min(known) / 3.0), math.log10(max(known))
    return 10.0 ** max(math.floor(below), math.floor(largest) - DECADES)


def waterfall(result: CompareResult) -> Chart:
    """Return the chart of each step's part and its own k2, with the noise floor as a band."""
    rungs, floor = result.ladder.rungs, _floor(result)
    alone = len(rungs) == 1
    rows: list[tuple[Value, ...]] = [
        (
            f"{rung.start} → {rung.end}",
            *with_ends(rung.contribution),
            *with_ends(rung.k2),
            "at the noise floor" if rung.at_floor else "",
        )
        for rung in rungs
    ]
    if not alone:
        rows.append((WHOLE, *with_ends(result.ladder.whole), None, None, None, ""))
    apart = 0.0 if alone else 0.15
    adds = Mark(
        shape="dot",
        x="adds",
        y="step",
        low="low",
        high="high",
        label="" if alone else "what the step adds",
        shift=-apart,
    )
    own = Mark(
        shape="dot",
        x="own k2",
        y="step",
        low="own low",
        high="own high",
        label="its own k2",
        tone="soft",
        shift=apart,
    )
    return Chart(
        columns=("step", "adds", "low", "high", "own k2", "own low", "own high", "note"),
        rows=rows,
        panels=[
            Panel(
                x=ChartAxis(
                    label="part of E[log-ratio²] / 2 (nats per token)",
                    scale="linear" if alone else "symlog",
                    threshold=_linear_threshold(result),
                ),
                y=ChartAxis(scale="names", names=[str(row[0]) for row in rows]),
                marks=[adds] if alone else [adds, own],
                rules=[ReferenceLine(at=0.0)],
                band=Band(start=0.0, end=floor, label="noise floor") if floor else None,
            )
        ],
        strong=WHOLE,
    )


def _size(result: CompareResult) -> tuple[float, float]:
    """Return a size with a cell or a row for each policy; beyond seven, as wide as the page."""
    count = len(result.policies)
    return (5.4 if count <= 7 else 11.0, 2.2 + 0.42 * count)


FIGURES = (
    FigureSpec(
        name="mismatch-by-rung",
        kind="compare",
        title="What each step adds",
        says="From the sampler at the top to the trainer at the bottom, with 95% intervals. Parts "
        "add up to the whole; a part left of 0 cancels some of the others. The scale is "
        "logarithmic on both sides of 0.",
        # Explain the band, if there is one.
        adds=lambda result: (
            "Steps within the noise floor cannot be told from a repeated run of one policy."
            if _floor(result)
            else ""
        ),
        chart=waterfall,
        applies=lambda result: bool(result.pairs),
        size=_size,
    ),
    FigureSpec(
        name="pair-distances",
        kind="compare",
        title="How far apart every two policies are",
        says="A cell is k2, half the mean squared log-ratio in nats per token, whichever policy "
        "sampled; the stronger its colour, the farther apart (logarithmic). A policy far from all "
        "others has strong cells in its row and its column.",
        chart=triangle,
        applies=lambda result: bool(distances(result)),
        size=_size,
    ),
)
