"""A sweep is drawn on the terminal: what to take and why, and each family's best setting."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.cells import COLOURS
from cli.terminal.fitted_tables import Column, fitted
from rcdiag.formats import measured, percent
from rcdiag.pages.sweep.words import forecast_test
from rcdiag.results import MetricValue, SweepFamily, SweepResult, SweepRow
from rcdiag.results.doc import heading_of
from rcdiag.results.sweep import Candidate, Recommendation


def draw_sweep(out: Console, result: SweepResult, verbose: bool) -> None:
    settings = sum(len(family.rows) for family in result.families.values())
    out.print(
        f"{result.num_sequences:,} sequences, {result.num_tokens:,} response tokens; {settings:,} "
        f"settings of {len(result.families)} families\n"
        f"behavior: [bold]{result.behavior}[/]   target: [bold]{result.target}[/]\n"
    )
    out.print(_families(out, result))
    out.print()
    shown = _shown(result, verbose)
    if any(candidate.efficiency.value is not None for candidate in shown):
        out.print(_candidates(out, result, shown))
        for candidate in shown:  # below the table: beside it there is no room for words
            if candidate.refused:
                out.print(f"[dim]{candidate.name}: {escape('; '.join(candidate.refused))}[/]")
        out.print()
    for reason in result.recommendation.reasons:
        out.print(f"- {escape(reason)}")
    if result.forecast.points:
        forecast = forecast_test(result.forecast)
        out.print(
            f"\nforecast of longer responses: [{COLOURS[forecast.level]}]{forecast.word}[/], "
            f"{forecast.sentence}"
        )
    out.print(f"\n{escape(result.forecast.about)}")


def _families(out: Console, result: SweepResult) -> Table:
    columns = [
        Column(heading="family", align="left"),
        Column(heading=heading_of(SweepRow, "bounds")),
        Column(heading=heading_of(SweepRow, "kept_token_share"), leaves=1),
        Column(heading=heading_of(SweepRow, "ess_seq_applied"), leaves=2),
        Column(heading=heading_of(SweepRow, "ess_token_applied"), leaves=3),
        Column(heading=heading_of(SweepRow, "weight_distance"), leaves=1),
    ]
    rows = [
        _family_cells(name, _best(family, result.num_sequences))
        for name, family in result.families.items()
    ]
    return fitted(out, columns, rows, gap=2)


def _family_cells(name: str, row: SweepRow | None) -> list[str]:
    if row is None:
        return [name, "[dim]keeps nothing[/]", "", "", "", ""]
    bounds = " ".join(f"{value:.9g}" for value in row.bounds.values())
    ess = [f"{value or 0.0:.3f}" for value in (row.ess_seq_applied.value, row.ess_token_applied)]
    return [name, bounds, percent(row.kept_token_share), *ess, f"{row.weight_distance or 0.0:.3f}"]


def _best(family: SweepFamily, count: int) -> SweepRow | None:
    """Return the row with the least squared bias plus variance of the mean (rcdiag's proposal)."""

    def error(row: SweepRow) -> float:
        return (row.weight_distance or 0.0) ** 2 + (row.weight_variance or 0.0) / count

    return min((row for row in family.rows if row.kept_tokens), key=error, default=None)


def _shown(result: SweepResult, verbose: bool) -> list[Candidate]:
    """Return candidates by rank; refused ones only if `verbose`, but for no correction at all."""
    order = sorted(
        result.recommendation.candidates,
        key=lambda candidate: (candidate.rank or 99, candidate.name),
    )
    return [
        candidate
        for candidate in order
        if not candidate.refused or verbose or candidate.name == "none"
    ]


def _candidates(out: Console, result: SweepResult, shown: list[Candidate]) -> Table:
    columns = [
        Column(heading=heading_of(Recommendation, "candidates"), align="left"),
        Column(heading="rank"),
        Column(heading="efficiency"),
        Column(heading=heading_of(MetricValue, "low"), leaves=1),
    ]
    rows = []
    for candidate in shown:
        chosen = candidate.name == result.recommendation.choice
        name = f"[green bold]{candidate.name}[/]" if chosen else candidate.name
        rank = "" if candidate.rank is None else str(candidate.rank)
        rows.append([name, rank, *measured(candidate.efficiency)])
    return fitted(out, columns, rows, gap=2)
