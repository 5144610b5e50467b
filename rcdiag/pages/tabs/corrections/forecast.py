"""What longer responses would leave, and how far the forecast held on responses left out."""

from __future__ import annotations

from rcdiag.pages.blocks import (
    Block,
    Column,
    Figures,
    Row,
    Section,
    Table,
    Words,
    amount,
    metric,
    text,
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
        Words(text=f"Forecast: {test.word}; {test.sentence}.{missed}", level=test.level)
    ]
    figures = figures_of(sweep, ("length-forecast",))
    if figures:
        blocks.append(Figures(items=figures))
    if sweep.forecast.held_out:
        blocks.append(_held_out(sweep))
    blocks.append(Words(text=sweep.forecast.about, soft=True))
    return Section(title="Longer responses", blocks=blocks, name="forecast", screen=True)


def _held_out(sweep: SweepResult) -> Table:
    heads = ("Geometric window", "Sequence window", "Spread of sums")
    return Table(
        name="held-out",
        label="Held-out lengths",
        columns=[
            Column(head="Held-out lengths"),
            Column(head="Sequences", numbers=True),
            *(
                Column(head=f"{head}: {what}", numbers=True)
                for head in heads
                for what in ("expected", "seen")
            ),
        ],
        rows=[
            Row(
                cells=[
                    text(bin_.label),
                    amount(float(bin_.num_sequences), f"{bin_.num_sequences:,}"),
                    amount(bin_.expected_geo),
                    metric(bin_.seen_geo),
                    amount(bin_.expected_seq),
                    metric(bin_.seen_seq),
                    amount(bin_.expected_std),
                    metric(bin_.seen_std),
                ]
            )
            for bin_ in sweep.forecast.held_out
        ],
    )
