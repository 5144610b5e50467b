"""What the terminal shows: results on stdout, conversation and progress on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cli.options import FailOn
from rcdiag.report.words import clusters, correction_rows, interval, number, verdict
from rcdiag.results import SEVERITIES, Finding, MetricValue, ScoreResult, worst_severity
from rcdiag.statistics.metrics import FAMILIES, METRICS

COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}
BLOCKS = " ▁▂▃▄▅▆▇█"


class _Console(Console):
    """A reader that has seen enough (`| head`) is no failure, nor a finding."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        drop(self.file)


def drop(stream: IO[str]) -> None:
    """Let what is still to come go nowhere: the reader at the other end has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Screen:
    """stdout for the result, stderr for all else; `json` makes stdout one document."""

    def __init__(self, *, quiet: bool, verbose: bool, json: bool) -> None:
        self.quiet, self.verbose, self.json = quiet, verbose, json
        self.out = _Console(highlight=False)
        self.err = _Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        if not self.quiet:
            self.err.print(escape(text), soft_wrap=True)

    @contextlib.contextmanager
    def tokens(self) -> Iterator[Callable[[str, int, int], None]]:
        """A bar per policy: tokens done, tokens per second, time left; silent off a terminal."""
        bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=self.err,
            transient=True,
            disable=self.quiet or not self.err.is_terminal,
        )
        tasks: dict[str, tuple] = {}

        def on_tokens(policy: str, done: int, total: int) -> None:
            if policy not in tasks:
                task = bars.add_task(policy, total=total, completed=done, speed="starting")
                tasks[policy] = (task, time.monotonic(), done)
                return
            task, start, first = tasks[policy]
            speed = (done - first) / max(time.monotonic() - start, 1e-9)
            bars.update(task, completed=done, speed=f"{speed:,.0f} tokens/s")

        with bars:
            yield on_tokens

    def show(self, found: ScoreResult, to_json: Callable[[ScoreResult], str]) -> None:
        if self.json:
            try:
                sys.stdout.write(to_json(found))
                sys.stdout.flush()
            except BrokenPipeError:
                drop(sys.stdout)
        elif not self.quiet:
            self._draw(found)

    def exit(self, found: ScoreResult, fail_on: FailOn) -> None:
        """Exit 1 when there are findings at or above the level."""
        worst = worst_severity(found.findings)
        if fail_on is FailOn.never or worst is None:
            return
        if SEVERITIES.index(worst) >= SEVERITIES.index(fail_on.value):
            raise typer.Exit(1)

    def _draw(self, found: ScoreResult) -> None:
        steps = f", {len(found.steps)} steps" if found.steps else ""
        self.out.print(
            f"{found.num_sequences:,} sequences, {found.num_tokens:,} response tokens{steps}\n"
            f"behavior: [bold]{found.behavior}[/]   target: [bold]{found.target}[/]   "
            f"[dim]intervals over {clusters(found)}[/]\n"
        )
        self.out.print(_metric_table(found.mismatch, self.verbose))
        self.out.print(_histogram_line(found.figures["log_ratio"]))
        if found.corrections:
            self.out.print()
            self.out.print(_correction_table(found))
        for finding in found.findings:
            _print_finding(self.out, finding)
        self.out.print(f"\n{_verdict(found)}")


def _metric_table(values: dict[str, MetricValue], verbose: bool) -> Table:
    """The numbers that decide; with `verbose` all of them and their meaning, family by family."""
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
    return [*cells, _level(value.level)]


def _correction_table(found: ScoreResult) -> Table:
    """What each preset would have kept, in numbers that no clamp hides anything from."""
    trainer = next(iter(found.corrections.values())).trainer
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(f"preset of {trainer}", no_wrap=True)
    for name in (" tokens", " seqs", " ESS tok", " ESS seq", " k-hat", " lost"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("level")
    for row in correction_rows(found):
        numbers = (row.kept_tokens, row.kept_sequences, row.ess_tokens, row.ess_sequences)
        table.add_row(escape(row.name), *numbers, row.k_hat, row.lost_mass, _level(row.level))
    return table


def _level(level: str | None) -> str:
    return f"[{COLOURS[level]}]{level}[/]" if level else ""


def _histogram_line(histogram: dict) -> str:
    """The log-ratio histogram in one line of blocks, log-scaled counts, four bins to a block."""
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


def _print_finding(console: Console, finding: Finding) -> None:
    colour = COLOURS[finding.severity]
    console.print(
        f"\n[{colour}]{finding.severity}[/]  [bold]{finding.slug}[/]  {escape(finding.message)}"
    )
    console.print(f"  [dim]fix[/]  {escape(finding.fix)}")


def _verdict(found: ScoreResult) -> str:
    answer = verdict(found)
    return f"[{COLOURS[answer.level]} bold]{answer.word}[/]: {escape(answer.sentence)}"
