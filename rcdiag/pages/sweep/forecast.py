"""The figure of acceptance and effective sample size of longer responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rcdiag.pages.charts import Axis, Chart, Series
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.style import FIRST, INK, SECOND
from rcdiag.pages.sweep.words import forecast_test
from rcdiag.results import SweepResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAN = float("nan")


def forecast(result: SweepResult, figure: Figure) -> None:
    """Draw acceptance and ESS against length."""
    axes = figure.add_subplot()
    points = result.forecast.points
    at = [point.response_length for point in points]
    seq, geo = (
        " to ".join(f"{bound:g}" for bound in bounds)
        for bounds in (result.forecast.seq_bounds, result.forecast.geo_bounds)
    )
    axes.plot(at, [p.ess_seq for p in points], color=FIRST, label="ESS of sequences")
    axes.plot(at, [p.accepted_seq for p in points], color=SECOND, label=f"kept, ratio within {seq}")
    axes.plot(
        at,
        [p.accepted_geo for p in points],
        color=INK,
        linestyle="--",
        label=f"kept, geometric within {geo}",
    )
    for bin_ in result.forecast.held_out:
        for value, colour, fill in ((bin_.seen_seq, SECOND, "full"), (bin_.seen_geo, INK, "none")):
            seen = NAN if value.value is None else value.value
            axes.plot(bin_.mean_length, seen, "o", color=colour, markersize=4, fillstyle=fill)
    axes.set_xscale("log", base=2)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("response length (tokens)")
    axes.set_ylabel("share")
    axes.legend(fontsize=8, frameon=False)


def forecast_chart(result: SweepResult) -> Chart:
    """Return what is expected at each length, and what was seen in bins of length."""
    expected = [
        (point.response_length, point.ess_seq, point.accepted_seq, point.accepted_geo, None, None)
        for point in result.forecast.points
    ]
    seen = [
        (bin_.mean_length, None, None, None, bin_.seen_seq.value, bin_.seen_geo.value)
        for bin_ in result.forecast.held_out
    ]
    return Chart(
        form="curves",
        columns=("length", "ESS", "kept by sequence", "kept geometric", "seen", "seen geometric"),
        rows=[*expected, *seen],
        x=Axis(label="response length (tokens)", scale="log"),
        y=Axis(label="share", percent=True, start=0.0, end=1.0),
        series=(
            Series(label="ESS of sequences", y="ESS", tone="first"),
            Series(label="kept by sequence", y="kept by sequence", tone="second"),
            Series(label="kept geometric", y="kept geometric", tone="ink", dashed=True),
            Series(label="kept by sequence, seen", y="seen", tone="second", dots=True),
            Series(label="kept geometric, seen", y="seen geometric", tone="ink", dots=True),
        ),
    )


def _tested(result: SweepResult) -> str:
    """Say whether the forecast that is drawn was tested on longer sequences."""
    sentence = forecast_test(result.forecast).sentence
    return f"{sentence[0].upper()}{sentence[1:]}."


FIGURES = (
    FigureSpec(
        name="length-forecast",
        kind="sweep",
        title="Kept sequences and ESS by length",
        says="Expected from the distribution of single tokens' log-ratios, fitted on all "
        "sequences. Dots are observed in bins of length. A forecast that could not be tested ends "
        "at the longest response; one whose hold-out check failed is not drawn.",
        draw=forecast,
        chart=forecast_chart,
        applies=lambda result: bool(result.forecast.points) and result.forecast.holds is not False,
        adds=_tested,
    ),
)
