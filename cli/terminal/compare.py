"""A comparison on the terminal; policies have numbers, so that a matrix of ten fits 80 columns."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from rcdiag.pages.formats import interval, number, percent
from rcdiag.results import CompareResult, MetricValue
from rcdiag.statistics.metrics import METRICS


def draw_compare(out: Console, result: CompareResult, verbose: bool) -> None:
    out.print(
        f"{result.num_sequences:,} sequences, {result.num_tokens:,} response tokens, "
        f"{len(result.policies)} policies\n"
    )
    out.print(_policies(result, verbose))
    out.print("\n[dim]KL(row || column) by k3, nats per token[/]")
    out.print(_matrix(result, "k3_kl"))
    if verbose:
        for metric in _headlines(result):
            out.print(f"\n[dim]{metric}[/]")
            out.print(_matrix(result, metric))
    out.print("\n[dim]from the sampler to the trainer, E\\[log-ratio²] / 2, nats per token[/]")
    out.print(_ladder(result))


def _headlines(result: CompareResult) -> list[str]:
    """Return the metrics of `score`'s first screen that the result has, but for k3_kl."""
    stored = next(iter(result.pairs.values())).mismatch
    return [
        name
        for name, metric in METRICS.items()
        if metric.headline and name in stored and name != "k3_kl"
    ]


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < left else "right", no_wrap=True)
    return table


def _policies(result: CompareResult, verbose: bool) -> Table:
    more = ("95% interval",) if verbose else ()
    table = _table("", "policy", "log-prob", "behind", *more, "sampler", left=2)
    table.add_column("what it is", style="dim")
    for index, (name, policy) in enumerate(result.policies.items(), 1):
        near = "[green]nearest[/]" if policy.may_be_nearest else ""
        cells = [f"{policy.log_prob_mean.value:.5f}", number(policy.behind.value)]
        cells += [interval(policy.behind)] if verbose else []
        table.add_row(str(index), name, *cells, near, policy.setup)
    return table


def _matrix(result: CompareResult, metric: str) -> Table:
    names = list(result.policies)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("", *(str(index) for index in range(1, len(names) + 1))):
        table.add_column(name, justify="right", no_wrap=True)
    for index, one in enumerate(names, 1):
        cells = ["·" if one == other else _cell(result, one, other, metric) for other in names]
        table.add_row(str(index), *cells)
    return table


def _cell(result: CompareResult, one: str, other: str, metric: str) -> str:
    """Write two digits, dim where the number is noise."""
    pair = result.pairs[f"{one}->{other}"]
    value = pair.mismatch[metric].value
    text = (
        "n/a" if value is None else f"{value:.1g}" if len(result.policies) > 7 else f"{value:.2g}"
    )
    return f"[dim]{text}[/]" if pair.at_floor else text


def _ladder(result: CompareResult) -> Table:
    table = _table("step", "adds", "95% interval", "share", "own k2", "")
    table.add_row(result.ladder.policies[0])
    for rung in result.ladder.rungs:
        note = "[dim]noise[/]" if rung.at_floor else ""
        part = (_short(rung.contribution.value), _interval(rung.contribution))
        table.add_row(f"→ {rung.end}", *part, percent(rung.share), _short(rung.k2.value), note)
    whole = result.ladder.whole
    table.add_row("[bold]whole[/]", _short(whole.value), _interval(whole), "100%", "", "")
    return table


def _short(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2g}"


def _interval(value: MetricValue) -> str:
    return "" if value.low is None else f"{_short(value.low)} … {_short(value.high)}"
