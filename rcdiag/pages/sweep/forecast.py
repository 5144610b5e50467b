"""The figure of acceptance and effective sample size of longer responses."""

from __future__ import annotations

from rcdiag.formats import as_sentence
from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, Shape, Tone
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.sweep.words import forecast_test
from rcdiag.results import SweepResult


def forecast(result: SweepResult) -> Chart:
    """Return the values expected at each length, and those observed in bins of length."""
    expected = [
        (point.response_length, point.ess_seq, point.accepted_seq, point.accepted_geo, None, None)
        for point in result.forecast.points
    ]
    seen = [
        (bin_.mean_length, None, None, None, bin_.seen_seq.value, bin_.seen_geo.value)
        for bin_ in result.forecast.held_out
    ]
    within = {
        "seq": " to ".join(f"{bound:g}" for bound in result.forecast.seq_bounds),
        "geo": " to ".join(f"{bound:g}" for bound in result.forecast.geo_bounds),
    }
    # Shape, column, label, tone, dashed.
    drawn: tuple[tuple[Shape, str, str, Tone, bool], ...] = (
        ("line", "ESS", "ESS of sequences", "first", False),
        ("line", "kept by sequence", f"kept, ratio within {within['seq']}", "second", False),
        ("line", "kept geometric", f"kept, geometric within {within['geo']}", "ink", True),
        ("dot", "seen", "kept by sequence, seen", "second", False),
        ("dot", "seen geometric", "kept geometric, seen", "ink", False),
    )
    return Chart(
        columns=("length", "ESS", "kept by sequence", "kept geometric", "seen", "seen geometric"),
        rows=[*expected, *seen],
        panels=[
            Panel(
                x=ChartAxis(label="response length (tokens)", scale="log"),
                y=ChartAxis(label="share", percent=True, start=0.0, end=1.0),
                marks=[
                    Mark(shape=shape, x="length", y=column, label=label, tone=tone, dashed=dashed)
                    for shape, column, label, tone, dashed in drawn
                ],
            )
        ],
    )


FIGURES = (
    FigureSpec(
        name="length-forecast",
        kind="sweep",
        title="Kept sequences and ESS by length",
        says="Expected from the distribution of single tokens' log-ratios, fitted on all "
        "sequences. Dots are observed in bins of length. A forecast that could not be tested ends "
        "at the longest response; one that failed the hold-out test is not drawn.",
        chart=forecast,
        applies=lambda result: bool(result.forecast.points) and result.forecast.holds is not False,
        adds=lambda result: as_sentence(forecast_test(result.forecast).sentence),
    ),
)
