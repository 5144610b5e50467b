"""The figure of the log-probs of the same tokens under both policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, Value
from rcdiag.pages.definitions import FigureSpec
from rcdiag.results import ScoreResult

SHADE = ChartAxis(label="tokens", scale="log", start=0.5)
COLUMNS = ("pair", "behavior log-prob", "target log-prob", "tokens")


def density_rows(
    name: str, edges: Sequence[float], cells: Sequence[Sequence[int]]
) -> list[tuple[Value, ...]]:
    """Return a row for each cell that holds tokens: its centre on both axes, and their number."""
    middles = (np.array(edges[:-1]) + np.array(edges[1:])) / 2.0
    return [
        (name, float(middles[across]), float(middles[up]), int(tokens))
        for across, up, tokens in np.array(cells, np.int64).reshape(-1, 3)
    ]


def density_panel(
    name: str, labels: tuple[str, str], edges: Sequence[float], low: float, *more: Mark
) -> Panel:
    """Return a panel of log-prob against log-prob from `low` to 0, with the diagonal."""
    behavior, target = labels
    width = float(edges[1]) - float(edges[0])
    return Panel(
        x=ChartAxis(label=behavior, start=low, end=0.0),
        y=ChartAxis(label=target, start=low, end=0.0),
        marks=[
            Mark(shape="cell", x="behavior log-prob", y="target log-prob", value="tokens"),
            *more,
        ],
        where=("pair", name) if name else None,
        shade=SHADE,
        cell=(width, width),
        square=True,
    )


def density(result: ScoreResult) -> Chart:
    """Return cells of tokens by both log-probs, and rings for the largest |log-ratio|."""
    data = result.figures["log_probs"]
    low = float(data["edges"][0])
    pairs = [(one["behavior_log_prob"], one["target_log_prob"]) for one in result.worst_tokens]
    finite = [
        pair for pair in pairs if all(isinstance(at, float) and np.isfinite(at) for at in pair)
    ]
    # Tokens below the lowest cell get rings at its edge.
    rings = [(max(x, low), max(y, low)) for x, y in finite]
    label = f"{len(rings)} largest |log-ratio|"
    ring = Mark(shape="dot", x="ring x", y="ring y", label=label, tone="second", hollow=True)
    labels = (
        f"log-prob under {result.behavior} (nats)",
        f"log-prob under {result.target} (nats)",
    )
    cells = density_rows("tokens", data["edges"], data["cells"])
    return Chart(
        columns=(*COLUMNS, "ring x", "ring y"),
        rows=[
            *((*row, None, None) for row in cells),
            *(("largest", None, None, None, x, y) for x, y in rings),
        ],
        panels=[density_panel("", labels, data["edges"], low, ring)],
    )


FIGURES = (
    FigureSpec(
        name="log-prob-density",
        kind="score",
        title="Log-prob of the same tokens under both policies",
        says="On the diagonal the policies agree; the stronger the colour of a cell, the more "
        "tokens it holds (logarithmic). Rings are the tokens with the largest |log-ratio|.",
        chart=density,
        on_page=False,
        applies=lambda result: bool(result.figures),
    ),
)
