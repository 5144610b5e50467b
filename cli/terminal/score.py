"""A score is drawn on the terminal: one screen, the verdict last."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.cells import BLOCKS, level
from rcdiag.pages.formats import interval, number
from rcdiag.pages.score.words import clusters, correction_rows
from rcdiag.results import MetricValue, ScoreResult
from rcdiag.statistics.metrics import FAMILIES, METRICS


def draw_score(out: Console, result: ScoreResult, verbose: bool) -> None:
    steps = f", {len(result.steps)} steps" if result.steps else ""
    out.print(
        f"{result.num_sequences:,} sequences, {result.num_tokens:,} response tokens{steps}\n"
        f"behavior: [bold]{result.behavior}[/]   target: [bold]{result.target}[/]   "
        f"[dim]intervals over {clusters(result)}[/]\n"
    )
    out.print(_metric_table(result.mismatch, verbose))
    out.print(_histogram_line(result.figures["log_ratio_histogram"]))
    if result.corrections:
        out.print()
        out.print(_correction_table(result))


def _metric_table(values: dict[str, MetricValue], verbose: bool) -> Table:
    """Draw the numbers that decide; `verbose` draws all, with their meaning, by family."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("metric", no_wrap=True)
    for name in ("value", "95% interval", "ideal"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("level")
    if verbose:
        table.add_column("what it is", style="dim", overflow="fold")
    for family in FAMILIES.values():
        for name, metric in family.metrics.items():
            if name in values and (verbose or metric.headline):
                table.add_row(
                    *_cells(name, values[name]), *([escape(metric.about)] if verbose else [])
                )
        table.add_section()
    return table


def _cells(name: str, value: MetricValue) -> list[str]:
    metric = METRICS[name]
    unit = f" ({metric.unit})" if metric.unit else ""
    ideal = "" if metric.ideal is None else f"{metric.ideal:g}"
    cells = [f"{name}[dim]{unit}[/]", number(value.value), interval(value), ideal]
    return [*cells, level(value.level)]


def _correction_table(result: ScoreResult) -> Table:
    """Draw what each preset would have kept, in numbers that no clamp distorts."""
    trainer = next(iter(result.corrections.values())).trainer
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(f"preset of {trainer}", no_wrap=True)
    for name in (" tokens", " seqs", " ESS tok", " ESS seq", " k-hat", " lost"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("level")
    for row in correction_rows(result):
        numbers = (row.kept_tokens, row.kept_sequences, row.ess_tokens, row.ess_sequences)
        table.add_row(escape(row.name), *numbers, row.k_hat, row.lost_mass, level(row.level))
    return table


def _histogram_line(histogram: dict[str, Any]) -> str:
    """Draw the log-ratio histogram in one line of blocks, log-scaled, four bins to a block."""
    edges, counts = histogram["edges"], histogram["counts"]
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        return ""
    first, last = filled[0], filled[-1] + 1
    step = -(-(last - first) // 40)
    sums = [sum(counts[i : min(i + step, last)]) for i in range(first, last, step)]
    top = max(total.bit_length() for total in sums)
    bars = "".join(BLOCKS[-(-total.bit_length() * 8 // top)] for total in sums)
    return f"\nlog-ratio (log scales)  {edges[first]:+.2g} {bars} {edges[last]:+.2g}"
