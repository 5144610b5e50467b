"""What longer responses would leave, and how well the forecast fits held-out responses."""

from __future__ import annotations

from rcdiag.pages.blocks import (
    Block,
    Figures,
    PageTable,
    Paragraph,
    Section,
    amount,
    count,
    metric,
    numbers,
    table,
    text,
    words,
)
from rcdiag.pages.page_figures import figures_of
from rcdiag.pages.sweep.words import forecast_test
from rcdiag.results import SweepResult


def forecast(sweep: SweepResult | None) -> Section | None:
    if sweep is None or not (sweep.forecast.points or sweep.forecast.held_out):
        return None
    test = forecast_test(sweep.forecast)
    fails = sweep.forecast.holds is False
    missed = " It is not drawn; the table shows what it missed." if fails else ""
    blocks: list[Block] = [
        Paragraph(text=f"Forecast: {test.word}; {test.sentence}.{missed}", level=test.level)
    ]
    figures = figures_of(sweep, ("length-forecast",))
    if figures:
        blocks.append(Figures(items=figures))
    if sweep.forecast.held_out:
        blocks.append(_held_out(sweep))
    blocks.append(Paragraph(text=sweep.forecast.about, soft=True))
    return Section(title="Longer responses", blocks=blocks, name="forecast", screen=True)


def _held_out(sweep: SweepResult) -> PageTable:
    return table(
        "held-out",
        "Held-out lengths",
        [
            words("Held-out lengths", lambda one: text(one.label)),
            numbers("Sequences", lambda one: count(one.num_sequences)),
            numbers("Geometric window: expected", lambda one: amount(one.expected_geo)),
            numbers("Geometric window: seen", lambda one: metric(one.seen_geo)),
            numbers("Sequence window: expected", lambda one: amount(one.expected_seq)),
            numbers("Sequence window: seen", lambda one: metric(one.seen_seq)),
            numbers("Spread of sums: expected", lambda one: amount(one.expected_std)),
            numbers("Spread of sums: seen", lambda one: metric(one.seen_std)),
        ],
        sweep.forecast.held_out,
    )
