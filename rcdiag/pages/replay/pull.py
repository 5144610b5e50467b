"""Figures of the coefficients d loss / d log-prob by sequence and token, and of the weights."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

import numpy as np

from rcdiag.formats import listed
from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.replay.words import equal_updates
from rcdiag.results import PresetReplay, ReplayResult

MOST_PANELS = 6
ACROSS = 3  # panels in a row
ROOM = 1.4  # factor between the outermost point and the end of a logarithmic axis
TONES: tuple[Tone, ...] = ("first", "second", "soft")
NO_CORRECTION = "no correction"
ABOVE, BELOW = "advantage above 0", "advantage below 0"


def distinct(result: ReplayResult) -> list[tuple[str, PresetReplay]]:
    """Return a preset of each distinct update that has coefficients, no correction first."""
    groups = equal_updates(result)
    return [(group.names[0], group.preset) for group in groups if group.preset.scatter]


def weighted(result: ReplayResult) -> list[tuple[str, PresetReplay]]:
    """Return up to six presets with distinct weights: the first of each set of equal ones."""
    first: dict[tuple[float, ...], tuple[str, PresetReplay]] = {}
    for name, preset in result.presets.items():
        if preset.weight_histogram is not None and preset.kept_tokens:
            first.setdefault(tuple(preset.weight_histogram["counts"]), (name, preset))
    return list(first.values())[:MOST_PANELS]


def _shared_lines(result: ReplayResult) -> dict[str, np.ndarray]:
    """Return lines of cumulative shares over sequences by label: the first preset of a line.

    Lines within 0.01 of each other count as one, since they cannot be told apart in print; the
    label says how many presets share it.
    """
    groups: list[tuple[list[str], np.ndarray]] = []
    for name, preset in distinct(result):
        if preset.shares is None:
            continue
        sums = np.cumsum(preset.shares.sequences)
        for names, line in groups:
            if len(line) == len(sums) and np.all(np.abs(line - sums) < 0.01):
                names.append(name)
                break
        else:
            groups.append(([name], sums))
    return {
        listed([NO_CORRECTION if "naive" in names else names[0], *names[1:]]): line
        for names, line in groups
    }


def lines_of_presets(
    names: Iterable[str], x: str, y: str, ends: tuple[str, str] | None = None
) -> list[Mark]:
    """Return a line of column `y` over `x` for each preset, with intervals if `ends` name them.

    No correction is drawn in the text colour.
    """
    others = cycle((tone, dashed) for dashed in (False, True) for tone in TONES)
    plain: tuple[Tone, bool] = ("ink", False)
    low, high = ends or (None, None)
    styles = [
        (name, *(plain if NO_CORRECTION in name or name == "naive" else next(others)))
        for name in names
    ]
    return [
        Mark(
            shape="line",
            x=x,
            y=y,
            low=low,
            high=high,
            points=ends is not None,
            label=name,
            tone=tone,
            dashed=dashed,
            where=("preset", name),
        )
        for name, tone, dashed in styles
    ]


def shares(result: ReplayResult) -> Chart:
    """Return the chart of the cumulative share of |coefficient|, strongest sequences first."""
    lines = _shared_lines(result)
    return Chart(
        columns=("preset", "sequences", "share"),
        rows=[
            (name, place, float(total))
            for name, sums in lines.items()
            for place, total in enumerate(sums, 1)
            if place <= 10 or place % 5 == 0 or place == len(sums)
        ],
        panels=[
            Panel(
                x=ChartAxis(label="sequences, strongest first", scale="log"),
                y=ChartAxis(
                    label="share of summed |coefficient|", percent=True, start=0.0, end=1.0
                ),
                marks=lines_of_presets(lines, "sequences", "share"),
            )
        ],
    )


def weights(result: ReplayResult) -> Chart:
    """Return histograms of tokens by weight in the loss, a panel for each distinct preset."""
    rows = [
        (name, 10.0 ** edges[place], 10.0 ** edges[place + 1], count)
        for name, preset in weighted(result)
        if (histogram := preset.weight_histogram) is not None
        for edges in [histogram["edges"]]
        for place, count in enumerate(histogram["counts"])
        if count
    ]
    ends = min(row[1] for row in rows), max(row[2] for row in rows)
    panels = [
        Panel(
            title=name,
            x=ChartAxis(label="weight", scale="log", start=ends[0] / ROOM, end=ends[1] * ROOM),
            y=ChartAxis(label="tokens", scale="log", start=0.7),
            marks=[Mark(shape="bar", x="from", to="to", y="tokens")],
            rules=[ReferenceLine(at=1.0)],
            where=("preset", name),
        )
        for name, _ in weighted(result)
    ]
    columns = ("preset", "from", "to", "tokens")
    return Chart(columns=columns, rows=rows, panels=panels, across=min(ACROSS, len(panels)))


def coefficients(result: ReplayResult) -> Chart:
    """Return scatters of |coefficient| over the token's probability, by sign of the advantage."""
    presets = distinct(result)[:MOST_PANELS]
    signs: tuple[tuple[str, Tone], ...] = ((ABOVE, "first"), (BELOW, "second"))
    rows = [
        (name, -log_prob, abs(coefficient), ABOVE if advantage > 0 else BELOW)
        for name, preset in presets
        for log_prob, advantage, coefficient in preset.scatter
        if advantage and coefficient
    ]
    farthest = max((row[1] for row in rows), default=1.0)
    sizes = [row[2] for row in rows] or [1.0]
    panels = [
        Panel(
            title=name,
            x=ChartAxis(
                label="−log-prob (nats)",
                scale="symlog",
                threshold=1e-3,
                start=0.0,
                end=ROOM * farthest,
            ),
            y=ChartAxis(
                label="|coefficient|", scale="log", start=min(sizes) / ROOM, end=max(sizes) * ROOM
            ),
            marks=[
                Mark(
                    shape="dot",
                    x="-log-prob",
                    y="|coefficient|",
                    small=True,
                    tone=tone,
                    label=sign,
                    where=("advantage", sign),
                )
                for sign, tone in signs
            ],
            where=("preset", name),
        )
        for name, _ in presets
    ]
    return Chart(
        columns=("preset", "-log-prob", "|coefficient|", "advantage"),
        rows=rows,
        panels=panels,
        across=min(ACROSS, len(panels)),
    )


def _size(count: int) -> tuple[float, float]:
    """Return a figure size with room for `count` panels, three in a row."""
    return (5.4, 4.4) if count == 1 else (11.0, 3.4 * (-(-count // 3)))


FIGURES = (
    FigureSpec(
        name="gradient-shares",
        kind="replay",
        title="Who gets the gradient",
        says="Cumulative share of sequences in the summed |d loss / d log-prob|. Presets whose "
        "lines differ by less than 0.01 share one; the update without correction is drawn in the "
        "colour of the text. A line that starts high is an update dominated by few sequences.",
        size=lambda result: (5.4, 4.8),
        chart=shares,
        applies=lambda result: any(preset.shares for preset in result.presets.values()),
    ),
    FigureSpec(
        name="loss-weights",
        kind="replay",
        title="Weights in the loss",
        says="Kept tokens by their importance weight, both axes logarithmic; weights of 0 are at "
        "the left edge. A tall bar at the right end is truncation. Presets with the same weights "
        "share a panel; there are at most six panels.",
        chart=weights,
        on_page=False,
        applies=lambda result: bool(weighted(result)),
        size=lambda result: _size(len(weighted(result))),
    ),
    FigureSpec(
        name="token-coefficients",
        kind="replay",
        title="Pull on single tokens",
        says="A dot is a token: its log-prob, and the size of its coefficient in the loss; blue if "
        "the advantage is above 0, orange below. Presets with the same coefficients share a panel; "
        "there are at most six panels.",
        chart=coefficients,
        on_page=False,
        applies=lambda result: bool(distinct(result)),
        size=lambda result: _size(min(len(distinct(result)), MOST_PANELS)),
    ),
)
