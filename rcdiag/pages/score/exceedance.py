"""The figure of the share of tokens beyond each |log-ratio|, by sign, with presets' bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rcdiag.formats import number, percentage
from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.score.bounds import log_bounds
from rcdiag.results import Histogram, ScoreResult
from rcdiag.statistics.examples import SIZES, labels_of_sizes

SMALLEST = 1e-3  # nats; smaller log-ratios are float32 rounding
MOST_RULES = 6


def shares_beyond(histogram: Histogram) -> list[tuple[float, float, float]]:
    """Return sizes in nats, with the shares of tokens above the size and below minus the size."""
    edges = np.array(histogram["edges"])
    counts = np.array(histogram["counts"], dtype=float)
    total = max(counts.sum(), 1.0)
    sizes = edges[edges >= SMALLEST]
    rows = []
    for size in sizes:
        above = float(counts[edges[:-1] >= size].sum() / total)
        below = float(counts[edges[1:] <= -size].sum() / total)
        rows.append((float(size), above, below))
        if not above and not below:
            break
    return rows


def any_beyond(result: ScoreResult) -> bool:
    """Tell whether any token is beyond the smallest size that is drawn."""
    histogram = result.figures.get("log_ratio_histogram")
    return histogram is not None and any(
        above or below for _, above, below in shares_beyond(histogram)
    )


def bounds(result: ScoreResult) -> list[ReferenceLine]:
    """Return lines where presets truncate, zero or reject tokens, labelled with the ratio."""
    sizes = (abs(bound) for bound in log_bounds(result, "token"))
    logs = {round(size, 6) for size in sizes if size >= SMALLEST}
    return [
        ReferenceLine(at=at, label=f"{number(float(np.exp(at)))}×")
        for at in sorted(logs)[:MOST_RULES]
    ]


def beyond_panel(lines: Sequence[tuple[str, str, Tone]], rules: Sequence[ReferenceLine]) -> Panel:
    """Return a panel of shares of tokens beyond each size; a line is column, label and tone."""
    return Panel(
        x=ChartAxis(label="|log-ratio| (nats)", scale="log"),
        y=ChartAxis(label="share of tokens beyond", scale="log", percent=True),
        marks=[
            Mark(shape="line", x="|log-ratio|", y=column, label=label, tone=tone)
            for column, label, tone in lines
        ],
        rules=rules,
    )


def chart(result: ScoreResult) -> Chart:
    """Return the shares of tokens beyond each size of log-ratio, for both signs."""
    rows = shares_beyond(result.figures["log_ratio_histogram"])
    up, down = f"more likely under {result.target}", f"more likely under {result.behavior}"
    # Where a click on a curve finds examples: in the bins of the profile of its sign.
    bins = {
        "starts": [0.0, *SIZES],
        "labels": labels_of_sizes(),
        "of": {up: "likelier_target", down: "likelier_behavior"},
    }
    return Chart(
        columns=("|log-ratio|", "ratio", up, down),
        rows=[(at, float(np.exp(at)), above or None, below or None) for at, above, below in rows],
        panels=[beyond_panel([(down, down, "second"), (up, up, "first")], bounds(result))],
        opens="" if result.examples is None else "bin",
        bins={} if result.examples is None else bins,
    )


def _adds(result: ScoreResult) -> str:
    """Say how many tokens are off by more than a factor of 2."""
    value = result.mismatch["ratio_outside_2"].value
    if value is None:
        return ""
    return f"{percentage(value)} of the tokens are off by more than a factor of 2."


FIGURES = (
    FigureSpec(
        name="tokens-beyond-ratio",
        kind="score",
        title="How far off the tokens are",
        says="The share of tokens whose log-ratio is beyond a size, for each sign. Dashed lines "
        "are the ratios at which a preset truncates, zeroes or rejects tokens: tokens to the right "
        "of one are changed. A click on a curve lists tokens of that size.",
        chart=chart,
        applies=any_beyond,
        adds=_adds,
    ),
)
