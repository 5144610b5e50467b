"""A sweep is drawn on the terminal: what to take and why, and each family's best setting."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rcdiag.pages.formats import interval, number, percent
from rcdiag.results import SweepFamily, SweepResult, SweepRow
from rcdiag.results.sweep import Candidate


def draw_sweep(out: Console, result: SweepResult, verbose: bool) -> None:
    settings = sum(len(family.rows) for family in result.families.values())
    out.print(
        f"{result.num_sequences:,} sequences, {result.num_tokens:,} response tokens; {settings:,} "
        f"settings of {len(result.families)} families\n"
        f"behavior: [bold]{result.behavior}[/]   target: [bold]{result.target}[/]\n"
    )
    out.print(_families(result))
    out.print()
    shown = _shown(result, verbose)
    out.print(_candidates(result, shown))
    for candidate in shown:  # below the table: beside it there is no room for words
        if candidate.refused:
            out.print(f"[dim]{candidate.name}: {escape('; '.join(candidate.refused))}[/]")
    out.print()
    for reason in result.recommendation.reasons:
        out.print(f"- {escape(reason)}")
    out.print(f"\n{escape(result.forecast.about)}")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    return table


def _families(result: SweepResult) -> Table:
    table = _table("family", "best setting", "kept", "ESS seq", "ESS tok", "bias")
    for name, family in result.families.items():
        row = _best(family, result.num_sequences)
        if row is None:
            table.add_row(name, "[dim]keeps nothing[/]", "", "", "", "")
            continue
        bounds = " ".join(f"{value:.9g}" for value in row.bounds.values())
        ess = [
            f"{value or 0.0:.3f}" for value in (row.ess_seq_applied.value, row.ess_token_applied)
        ]
        numbers = (*ess, f"{row.weight_distance or 0.0:.3f}")
        table.add_row(name, bounds, percent(row.kept_token_share), *numbers)
    return table


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


def _candidates(result: SweepResult, shown: list[Candidate]) -> Table:
    table = _table("candidate", "rank", "efficiency", "95% interval")
    for candidate in shown:
        chosen = candidate.name == result.recommendation.choice
        name = f"[green bold]{candidate.name}[/]" if chosen else candidate.name
        rank = "" if candidate.rank is None else str(candidate.rank)
        table.add_row(
            name, rank, number(candidate.efficiency.value), interval(candidate.efficiency)
        )
    return table
