"""Figures with one panel for each pair of policies."""

from __future__ import annotations

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.score.profiles import with_ends
from rcdiag.pages.score.tokens import COLUMNS, density_panel, density_rows
from rcdiag.results import CompareResult

MOST_PAIRS = 6
ACROSS = 3  # panels in a row
LINEAR = 1e-4  # nats: smaller log-ratios are rounding


def densities(result: CompareResult) -> Chart:
    """Return log-prob against log-prob, one panel for every pair."""
    rows, panels = [], []
    for name, pair in result.figures.items():
        rows += density_rows(name, pair.edges, pair.cells)
        lowest = min((min(across, up) for across, up, _ in pair.cells), default=0)
        labels = (
            f"log-prob under {result.pairs[name].behavior}",
            f"log-prob under {result.pairs[name].target}",
        )
        panels.append(density_panel(name, labels, pair.edges, pair.edges[max(lowest - 1, 0)]))
    return Chart(columns=COLUMNS, rows=rows, panels=panels, across=min(ACROSS, len(panels)))


def by_probability(result: CompareResult) -> Chart:
    """Return the size of the log-ratio by token probability, one panel for every pair."""
    rows, panels = [], []
    for name, pair in result.figures.items():
        bins = pair.by_probability.bins
        rows += [(name, bin_.label, *with_ends(bin_.log_ratio_rms)) for bin_ in bins]
        size = Mark(
            shape="line", x="probability", y="rms log-ratio", low="low", high="high", points=True
        )
        panels.append(
            Panel(
                title=f"{result.pairs[name].behavior} → {result.pairs[name].target}",
                x=ChartAxis(
                    label="geometric mean of both probabilities",
                    scale="names",
                    names=[bin_.label for bin_ in bins],
                ),
                y=ChartAxis(label="rms log-ratio (nats)", scale="symlog", threshold=LINEAR),
                marks=[size],
                where=("pair", name),
            )
        )
    return Chart(
        columns=("pair", "probability", "rms log-ratio", "low", "high"),
        rows=rows,
        panels=panels,
        across=min(ACROSS, len(panels)),
    )


def _size(result: CompareResult) -> tuple[float, float]:
    """Return a figure size with room for all panels."""
    count = len(result.figures)
    columns = min(ACROSS, count)
    return (5.4, 4.4) if columns == 1 else (11.0, 0.4 + 11.0 / columns * 0.9 * -(-count // columns))


def _few_pairs(result: CompareResult) -> bool:
    """Tell whether there are few enough pairs for readable panels."""
    return 0 < len(result.figures) <= MOST_PAIRS


FIGURES = (
    FigureSpec(
        name="log-prob-density-by-pair",
        kind="compare",
        title="Log-prob of the same tokens under two policies",
        says="A panel is a pair. On the diagonal both policies agree; the stronger the colour of "
        "a cell, the more tokens it holds (logarithmic).",
        chart=densities,
        on_page=False,
        applies=_few_pairs,
        size=_size,
    ),
    FigureSpec(
        name="mismatch-by-probability-by-pair",
        kind="compare",
        title="Mismatch by probability",
        says="rms log-ratio (nats) in bins of the geometric mean of both probabilities, with 95% "
        "intervals by cluster. Rounding grows towards rare tokens; a level that does not grow has "
        "another cause.",
        chart=by_probability,
        on_page=False,
        applies=_few_pairs,
        size=_size,
    ),
)
