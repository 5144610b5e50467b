"""Draw a sweep on the terminal: the choice, the reasons, the nearest candidates, with -v all."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.fitted_tables import ScreenColumn, fitted
from cli.terminal.headline import draw_lines, labelled, shortened_to
from rcdiag.formats import measured, percent
from rcdiag.pages.sweep.words import (
    by_default,
    chosen,
    error,
    forecast_test,
    nearest,
    term,
    to_paste,
    unranked,
)
from rcdiag.results import MetricValue, SweepResult, SweepRow
from rcdiag.results.doc import heading_of
from rcdiag.results.sweep import Candidate, Recommendation

WHY = 2  # lines of a reason before the last without -v


def draw_sweep(out: Console, result: SweepResult, verbose: bool) -> None:
    """Draw the choice with its reasons, the candidates nearest to it, and the forecast."""
    advice = result.recommendation
    # Until the cause is fixed no choice matters, so verl's guide is left out.
    reasons, guide = advice.reasons, "" if unranked(advice) else advice.guide or ""
    if not verbose:
        guide = guide.partition(";")[0]
        # The last reason is that of the choice, and is not cut.
        earlier = [shortened_to(reason, out.width - 12, WHY) for reason in reasons[-2:-1]]
        reasons = [*earlier, *reasons[-1:]]
    lines = [("choice", chosen(result.recommendation))]
    lines += labelled("why", reasons)
    lines += [
        (label, text) for label, text in (("default", by_default(result)), ("guide", guide)) if text
    ]
    draw_lines(out, lines)
    if command := to_paste(result):  # on a line of its own, so that a long path is not broken
        what = (
            "its configuration" if advice.choice is not None else "the configuration of a candidate"
        )
        out.print(f"[dim]write {what}:[/]\n{escape(command)}", soft_wrap=True)
    if shown := nearest(advice):
        out.print()
        out.print(_nearest(out, result, shown))
        out.print(
            "[dim]error of a batch's gradient = bias² + variance; no correction has variance 1[/]"
        )
    if verbose:
        _draw_all(out, result)


def _nearest(out: Console, result: SweepResult, shown: list[Candidate]) -> Table:
    """Draw the nearest candidates: the parts of their error, relative to no correction."""
    advice = result.recommendation
    (none,) = [error(one) for one in advice.candidates if one.name == "none"]
    columns = [
        ScreenColumn(heading=heading_of(Recommendation, "candidates"), align="left"),
        ScreenColumn(heading=heading_of(Candidate, "gradient_bias")),
        ScreenColumn(heading=heading_of(Candidate, "gradient_bias_high")),
        ScreenColumn(heading=heading_of(Candidate, "gradient_noise")),
        ScreenColumn(heading="error / none"),
        ScreenColumn(heading="vs best", align="left", dispensable=1),
    ]
    rows = []
    for one in shown:
        known = one.gradient_bias is not None and none
        against = f"{(error(one) or 0.0) / (none or 1.0):.2f}" if known else ""
        chosen = one.name == advice.choice
        close = "same" if one.name in advice.indistinguishable else "worse"
        rows.append(
            [
                f"[green bold]{one.name}[/]" if chosen else one.name,
                "unknown" if one.gradient_bias is None else term(one.gradient_bias),
                "" if one.gradient_bias_high is None else term(one.gradient_bias_high),
                term(one.gradient_noise),
                against,
                f"[dim]{'chosen' if chosen else 'refused' if one.refused else close}[/]",
            ]
        )
    return fitted(out, columns, rows, gap=2)


def _draw_all(out: Console, result: SweepResult) -> None:
    """Draw all candidates with reasons for refusal, the best setting of each family, the method."""
    settings = sum(len(family.rows) for family in result.families.values())
    candidates = sorted(
        result.recommendation.candidates, key=lambda one: (one.rank or 99, one.name)
    )
    if any(candidate.efficiency.value is not None for candidate in candidates):
        out.print()
        out.print(_candidates(out, result, candidates))
    refused = [(one.name, "; ".join(one.refused)) for one in candidates if one.refused]
    if refused:
        out.print("\n[dim]refused, and why[/]")
        draw_lines(out, refused)
    swept = f"{settings:,} settings of {len(result.families)} families"
    if unranked(result.recommendation):
        out.print(f"\n[dim]{swept}: their numbers are on the page, in --json and --csv[/]")
    else:
        out.print(
            f"\n[dim]best of {swept}: smallest "
            "squared distance of its weights from the ratios + variance of their mean[/]"
        )
        out.print(_families(out, result))
        out.print(f"\n{escape(result.recommendation.method)}")
    if result.forecast.points:
        forecast = forecast_test(result.forecast)
        out.print()
        draw_lines(out, [("forecast", f"{forecast.word}: {forecast.sentence}")])
    out.print(f"\n{escape(result.forecast.about)}")


def _families(out: Console, result: SweepResult) -> Table:
    columns = [
        ScreenColumn(heading="family", align="left"),
        ScreenColumn(heading=heading_of(SweepRow, "bounds")),
        ScreenColumn(heading=heading_of(SweepRow, "kept_token_share"), dispensable=1),
        ScreenColumn(heading=heading_of(SweepRow, "ess_seq_applied"), dispensable=2),
        ScreenColumn(heading=heading_of(SweepRow, "ess_token_applied"), dispensable=3),
        ScreenColumn(heading=heading_of(SweepRow, "weight_distance"), dispensable=1),
    ]
    rows = []
    for name, family in result.families.items():
        # The smallest squared bias plus variance of the mean, by which rcdiag chooses.
        row = min(
            (row for row in family.rows if row.kept_tokens),
            key=lambda row: (
                (row.weight_distance or 0.0) ** 2
                + (row.weight_variance or 0.0) / result.num_sequences
            ),
            default=None,
        )
        if row is None:
            rows.append([name, "[dim]keeps nothing[/]", "", "", "", ""])
            continue
        bounds = " ".join(f"{value:.9g}" for value in row.bounds.values())
        sizes = (row.ess_seq_applied.value, row.ess_token_applied, row.weight_distance)
        numbers = [f"{size or 0.0:.3f}" for size in sizes]
        rows.append([name, bounds, percent(row.kept_token_share), *numbers])
    return fitted(out, columns, rows, gap=2)


def _candidates(out: Console, result: SweepResult, shown: list[Candidate]) -> Table:
    columns = [
        ScreenColumn(heading=heading_of(Recommendation, "candidates"), align="left"),
        ScreenColumn(heading="rank"),
        ScreenColumn(heading="efficiency"),
        ScreenColumn(heading=heading_of(MetricValue, "low"), dispensable=1),
    ]
    rows = []
    for candidate in shown:
        chosen = candidate.name == result.recommendation.choice
        name = f"[green bold]{candidate.name}[/]" if chosen else candidate.name
        rank = "" if candidate.rank is None else str(candidate.rank)
        rows.append([name, rank, *measured(candidate.efficiency)])
    return fitted(out, columns, rows, gap=2)
