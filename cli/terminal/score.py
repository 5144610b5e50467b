"""Draw a score on the terminal: the numbers of the pair, by family."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.fitted_tables import BLOCKS, ScreenColumn, fitted, level
from cli.terminal.headline import draw_against_weights, draw_lines
from rcdiag.errors import RcdiagError
from rcdiag.formats import fraction, measured, part_of, plural
from rcdiag.pages.score.words import (
    FEW_PRESETS,
    clusters,
    expected,
    limits,
    lowered_levels,
    means,
    not_sampler,
    preset_lines,
    raw_ess,
    verl_check_line,
)
from rcdiag.results import CorrectionResult, MetricValue, ScoreResult
from rcdiag.results.base import counted_rows
from rcdiag.results.correction import CorrectionNumbers
from rcdiag.results.doc import heading_of
from rcdiag.statistics.metrics import FAMILIES, METRICS

# The end of the first clause of a definition.
CLAUSE = re.compile(r"[.:] |,")


def draw_score(out: Console, result: ScoreResult, verbose: bool) -> None:
    """Draw eight numbers and three lines on presets; with `verbose` all numbers and presets."""
    if not result.target:
        return  # the headline says that there is only one policy
    if verbose:
        _draw_all(out, result)
    else:
        if any(value.value is not None for value in result.mismatch.values()):
            _draw_metrics(out, result, verbose=False)
            out.print()
        lines = preset_lines(result, _default_preset(result))
        if result.pair_reason:
            lines.append(("pair", result.pair_reason))
        draw_lines(out, lines)
    presets = result.corrections.values()
    with_levels = verbose or len(presets) <= FEW_PRESETS
    draw_against_weights(out, result.diagnosis, {one.level for one in presets if with_levels})
    if result.logged is not None:
        out.print()  # the comparison with the log follows


def _draw_all(out: Console, result: ScoreResult) -> None:
    steps = f", {plural(len(result.steps), 'step')}" if result.steps else ""
    out.print(
        f"{counted_rows(result.num_sequences, result.rows_left_out)}, "
        f"{plural(result.num_tokens, 'response token')}{steps}\n"
        f"behavior: [bold]{result.behavior}[/]   target: [bold]{result.target}[/]   "
        f"[dim]95% intervals over {clusters(result)}[/]\n"
    )
    _draw_metrics(out, result, verbose=True)
    out.print(_histogram_line(result.figures["log_ratio_histogram"], out.width))
    if not result.corrections:
        return
    out.print()
    out.print(_correction_table(out, result))
    raw = raw_ess(result)
    if unchanged := _without_correction(result):
        out.print(f"[dim]no correction: {', '.join(unchanged)}[/]")
    out.print(f"[dim]ESS of the weights as applied{f'; {raw}' if raw else ''}[/]")
    if check := verl_check_line(result):
        out.print(f"[dim]{check}[/]")


def _draw_metrics(out: Console, result: ScoreResult, *, verbose: bool) -> None:
    """Draw the metrics, and why some are estimates or have milder levels than their limits."""
    out.print(_metric_table(out, result.mismatch, verbose=verbose))
    if how := means(result, "the sampler"):  # the behavior policy did not sample
        out.print(f"[dim]{not_sampler(result)}; {how}[/]")
    if why := lowered_levels(result.mismatch, result.diagnosis):
        out.print(f"[dim]{why}[/]")


def _default_preset(result: ScoreResult) -> str | None:
    """Return the default preset of the result's trainer; None if it has several trainers."""
    trainers = {correction.trainer for correction in result.corrections.values()}
    if len(trainers) != 1:
        return None
    from rcdiag.trainers import find_trainer

    try:
        return find_trainer(trainers.pop()).default_preset
    except RcdiagError:  # the trainer is a plugin that is not installed here
        return None


def _metric_table(out: Console, values: dict[str, MetricValue], *, verbose: bool) -> Table:
    """Draw the headline metrics; with `verbose` all metrics, by family, with limits and formulas.

    If there is room, a column says what each is; `explain` says it in full.
    """
    columns = [
        ScreenColumn(heading=heading_of(ScoreResult, "mismatch"), align="left"),
        ScreenColumn(heading=heading_of(MetricValue, "value")),
        ScreenColumn(heading=heading_of(MetricValue, "low"), dispensable=1),
        ScreenColumn(heading="expected", dispensable=4 if verbose else 2),
        ScreenColumn(heading=heading_of(MetricValue, "level"), align="left"),
        *([ScreenColumn(heading="limits", align="left", dispensable=2)] if verbose else []),
        ScreenColumn(
            heading="what it is",
            align="left",
            dispensable=3,
            words=verbose,
            extra=not verbose,
            style="dim",
        ),
    ]
    metrics = {name: one for family in FAMILIES.values() for name, one in family.metrics.items()}
    rows = [
        _cells(name, values[name], verbose)
        for name, metric in metrics.items()
        if name in values and (verbose or metric.headline)
    ]
    return fitted(out, columns, rows, gap=1 if verbose else 2)


def _cells(name: str, value: MetricValue, verbose: bool) -> list[str]:
    """Return the cells of a metric; the last is the first clause of its definition."""
    metric = METRICS[name]
    unit = f" ({metric.unit})" if metric.unit else ""
    what = CLAUSE.split(metric.says)[0].rstrip(".")
    return [
        f"{name}[dim]{unit}[/]",
        *measured(value),
        expected(name, value),
        level(value.level),
        *([limits(name, value)] if verbose else []),
        escape(f"{what}: {metric.formula}" if verbose else what),
    ]


def _without_correction(result: ScoreResult) -> list[str]:
    """Return the trainers, if several, that leave every token unchanged; they share a row."""
    if len({correction.trainer for correction in result.corrections.values()}) < 2:
        return []
    names = [
        name
        for name, correction in result.corrections.items()
        if correction.weight_sum is None and correction.kept_tokens == result.num_tokens
    ]
    return names if len(names) > 1 else []


def _correction_table(out: Console, result: ScoreResult) -> Table:
    """Draw what each preset would keep, and the ESS of the weights that it applies."""
    trainers = {correction.trainer for correction in result.corrections.values()}
    several = len(trainers) > 1
    numbers = [
        (CorrectionResult, "kept_tokens", 3),
        (CorrectionResult, "kept_sequences", 2),
        (CorrectionNumbers, "ess_token_applied", 5),
        (CorrectionNumbers, "ess_seq_applied", 1),
        (CorrectionNumbers, "khat", 6),
        (CorrectionNumbers, "lost_target_mass_token", 4),
    ]
    columns = [
        ScreenColumn(heading="trainer" if several else f"preset of {trainers.pop()}", align="left"),
        ScreenColumn(heading=" mean weight"),
        ScreenColumn(heading=" bias bound"),
        *(
            ScreenColumn(heading=f" {heading_of(owner, name)}", dispensable=dispensable)
            for owner, name, dispensable in numbers
        ),
        ScreenColumn(heading=heading_of(CorrectionResult, "level"), align="left"),
    ]
    unchanged = _without_correction(result)
    rows = []
    for name, correction in result.corrections.items():
        if name in unchanged[1:]:
            continue
        actual = correction.actual
        mean, bound = correction.mean_weight(result.num_tokens), actual["bias_bound"]
        rows.append(
            [
                "no correction" if name in unchanged else escape(name),
                f"{mean:.4g}" if several and mean is not None else "",
                f"{bound:.2g}" if several and bound is not None else "",
                part_of(correction.kept_tokens, result.num_tokens),
                part_of(correction.kept_sequences, result.num_sequences),
                fraction(actual["ess_token_applied"]),
                fraction(actual["ess_seq_applied"]),
                "" if actual["khat"] is None else f"{actual['khat']:.2f}",
                fraction(correction.lost_mass),
                level(correction.level),
            ]
        )
    return fitted(out, columns, rows)


def _histogram_line(histogram: dict[str, Any], width: int) -> str:
    """Return the log-ratio histogram as a line of at most 40 blocks, both scales logarithmic."""
    edges, counts = histogram["edges"], histogram["counts"]
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        return ""
    first, last = filled[0], filled[-1] + 1
    blocks = max(
        8, min(40, width - 38)
    )  # leaves room for the label and for the numbers at both ends
    step = -(-(last - first) // blocks)
    sums = [sum(counts[i : min(i + step, last)]) for i in range(first, last, step)]
    top = max(total.bit_length() for total in sums)
    bars = "".join(BLOCKS[-(-total.bit_length() * 8 // top)] for total in sums)
    left = f"log-ratio (log scales)  {edges[first]:+.2g} "
    line = f"\n{left}{bars} {edges[last]:+.2g}"
    if not edges[first] < 0.0 < edges[last]:
        return line
    zero = (bisect_right(edges, 0.0) - 1 - first) // step
    return f"{line}\n{' ' * (len(left) + zero)}0"
