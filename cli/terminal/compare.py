"""Draw a comparison on the terminal; policies are numbered, so a matrix of ten fits 80 columns.

On a narrower terminal the matrix is split into groups of columns, one below the other.
"""

from __future__ import annotations

import math

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from cli.terminal.fitted_tables import ScreenColumn, fitted, full_width
from rcdiag.formats import measured, plural, share
from rcdiag.pages.compare.words import how_rows_are_made, nearness
from rcdiag.results import CompareResult, MetricValue
from rcdiag.results.base import counted_rows
from rcdiag.results.compare import PolicySummary, Rung
from rcdiag.results.doc import heading_of
from rcdiag.statistics.metrics import METRICS

# Without -v: the largest number of policies with a matrix, and of steps of the ladder.
MATRIX, STEPS = 4, 4


def draw_compare(out: Console, result: CompareResult, verbose: bool) -> None:
    if not result.pairs:
        return  # the headline says that there is only one policy
    if verbose:
        out.print(
            f"{counted_rows(result.num_sequences, result.rows_left_out)}, "
            f"{plural(result.num_tokens, 'response token')}, "
            f"{plural(len(result.policies), 'policy', 'policies')}\n"
        )
    out.print(_policies(out, result, verbose))
    count = len(result.policies)
    if verbose or count <= MATRIX:
        made = how_rows_are_made(result)
        what = f"KL(row || column) by k3, nats per token{f'; {made}' if made else ''}"
        out.print(f"\n[dim]{what}[/]")
        out.print(_matrix(out, result, "k3_kl"))
    if verbose:
        stored = next(iter(result.pairs.values())).mismatch
        for name, metric in METRICS.items():
            if metric.headline and name in stored and name != "k3_kl":
                out.print(f"\n[dim]{name}[/]")
                out.print(_matrix(out, result, name))
    if verbose or count > 2:  # with two policies the ladder has only one step
        ends = result.ladder.policies[0], result.ladder.policies[-1]
        way = escape(f"from {ends[0]} to {ends[1]}")
        out.print(f"\n[dim]{way}: E\\[log-ratio²] / 2, nats per token[/]")
        out.print(_ladder(out, result, verbose))


def _policies(out: Console, result: CompareResult, verbose: bool) -> Table:
    columns = [
        ScreenColumn(heading="", align="left"),
        ScreenColumn(heading="policy", align="left"),
        ScreenColumn(heading=heading_of(PolicySummary, "log_prob_mean"), dispensable=1),
        ScreenColumn(heading=heading_of(PolicySummary, "behind")),
        *([ScreenColumn(heading=heading_of(MetricValue, "low"), dispensable=3)] if verbose else []),
        ScreenColumn(heading="sampler"),
        ScreenColumn(
            heading=heading_of(PolicySummary, "setup"),
            align="left",
            dispensable=2,
            words=True,
            style="dim",
        ),
    ]
    rows = []
    for index, (name, policy) in enumerate(result.policies.items(), 1):
        near = nearness(result, name)
        near = near and f"[{'default' if policy.may_be_nearest else 'yellow'}]{near}[/]"
        behind, interval = measured(policy.behind)
        mean_text = measured(policy.log_prob_mean)[0]
        cells = [mean_text, behind, *([interval] if verbose else [])]
        rows.append([str(index), name, *cells, near, policy.setup])
    return fitted(out, columns, rows, gap=2)


def _matrix(out: Console, result: CompareResult, metric: str) -> Group:
    """Return the matrix of a metric, split into as few equal parts as fit the terminal."""
    count = len(result.policies)
    parts: list[Table] = []
    for number in range(1, count + 1):
        size = math.ceil(count / number)
        parts = [_columns(result, metric, start, start + size) for start in range(0, count, size)]
        if max(full_width(out, part) for part in parts) <= out.width:
            break
    return Group(*parts)


def _columns(result: CompareResult, metric: str, start: int, stop: int) -> Table:
    """Return the columns of the matrix for policies `start` up to, not including, `stop`.

    Numbers that are noise are dim.
    """
    names = list(result.policies)
    digits = 1 if len(names) > 7 else 2
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", justify="right", no_wrap=True)
    for index in range(len(names))[start:stop]:
        table.add_column(str(index + 1), justify="right", no_wrap=True)
    for index, one in enumerate(names, 1):
        cells = []
        for other in names[start:stop]:
            if one == other:
                cells.append("·")
                continue
            pair = result.pairs[f"{one}->{other}"]
            value = pair.mismatch[metric].value
            text = "n/a" if value is None else f"{value:.{digits}g}"
            cells.append(f"[dim]{text}[/]" if pair.at_floor else text)
        table.add_row(str(index), *cells)
    return table


def _ladder(out: Console, result: CompareResult, verbose: bool) -> Table:
    """Draw the steps from sampler to trainer; without `verbose` the largest ones."""
    columns = [
        ScreenColumn(heading="step", align="left"),
        ScreenColumn(heading=heading_of(Rung, "contribution")),
        ScreenColumn(heading=heading_of(MetricValue, "low"), dispensable=2),
        ScreenColumn(heading="share"),
        ScreenColumn(heading=heading_of(Rung, "k2"), dispensable=1),
        ScreenColumn(heading=""),
    ]
    rungs = result.ladder.rungs
    if not verbose:
        largest = sorted(rungs, key=lambda rung: -abs(rung.contribution.value or 0.0))[:STEPS]
        rungs = [rung for rung in rungs if rung in largest]
    rows = [[result.ladder.policies[0], *[""] * 5]] if verbose else []
    for rung in rungs:
        note = "[dim]noise[/]" if rung.at_floor else ""
        step = f"{'' if verbose else rung.start} → {rung.end}".strip()
        part = measured(rung.contribution)
        rows.append(
            [step, *part, share(rung.share), measured(rung.k2)[0], note],
        )
    if left := len(result.ladder.rungs) - len(rungs):
        rows.append([f"[dim]{plural(left, 'smaller step')} (-v)[/]", *[""] * 5])
    rows.append(["[bold]whole[/]", *measured(result.ladder.whole), "100%", "", ""])
    return fitted(out, columns, rows, gap=2)
