"""Draw a replayed update on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.fitted_tables import COLOURS, ScreenColumn, fitted
from cli.terminal.headline import draw_against_weights
from rcdiag.diagnosis.rules import RULES
from rcdiag.formats import measured, number, plural, with_interval
from rcdiag.pages.replay.words import (
    TAGS,
    EqualUpdates,
    batch_size,
    decided_by,
    equal_updates,
    factor_name,
    relative_norm,
)
from rcdiag.results import (
    AfterStep,
    Factor,
    GradientReport,
    Health,
    MetricValue,
    PresetReplay,
    ReplayResult,
    Rule,
    Shares,
    SplitReport,
)
from rcdiag.results.doc import heading_of

# Marks a cosine that includes noise shared by both gradients.
UNSURE = heading_of(GradientReport, "cosine_whole")

SHOWN = 6  # groups of presets without -v
SIZE = "|c| / none"  # heading of the size of an update beside that without a correction
# Heading of a column of presets -> what it stands for.
LEGEND = {
    SIZE: "|c|: d loss / d log-prob over tokens",
    heading_of(Shares, "top_sequences"): "top 1%: share of 1% of the sequences",
}


def draw_replay(out: Console, result: ReplayResult, verbose: bool) -> None:
    step = "" if result.step is None else f"step {result.step}: "
    out.print(
        f"{step}{batch_size(result)}, {result.policy_loss} loss, "
        f"{result.aggregation}, advantages: {result.advantage}\n"
    )
    out.print(_factors(out, result, verbose))
    out.print()
    groups = equal_updates(result)
    shown = groups if verbose else groups[:SHOWN]
    presets = _presets(out, result, shown)
    out.print(presets)
    headings = {str(column.header).strip() for column in presets.columns}
    if legend := [words for heading, words in LEGEND.items() if heading in headings]:
        out.print(f"[dim]{'; '.join(legend)}[/]")
    if not verbose:
        more = sum(len(group.names) for group in groups[SHOWN:])
        notes = [f"and {plural(more, 'more preset')} (-v)"] if more else []
        if any("(+" in group.title for group in shown):
            notes.append("(+N): N more presets with the same update")
        if notes:
            out.print(f"[dim]{'; '.join(notes)}[/]")
    draw_against_weights(out, result.diagnosis, {one.preset.health.verdict for one in shown})
    if any(preset.split for preset in result.presets.values()):
        out.print("\n[dim]the same batch as one step and as several: KL, nats per token[/]")
        out.print(_splits(out, result))
    for name, preset in result.presets.items():
        after = preset.after_step
        if after is not None and after.reward_before is not None and after.reward_after is not None:
            before, now = with_interval(after.reward_before), with_interval(after.reward_after)
            out.print(f"reward of fresh samples, {name}: {before} before, {now} after")
    if result.steps:
        out.print("\n[dim]KL(rollout || new) after each step, nats per token[/]")
        out.print(_steps(out, result))
    if verbose:
        for group in groups:
            failed = [rule for rule in group.preset.health.rules if rule.level != "ok"]
            rest = len(group.preset.health.rules) - len(failed)
            passed = f"{plural(rest, 'other rule' if failed else 'rule')} ok"
            out.print(f"\n[bold]{', '.join(group.names)}[/]  [dim]{passed}[/]")
            if failed:
                out.print(_rules(out, failed))


def _factors(out: Console, result: ReplayResult, verbose: bool) -> Table:
    """Draw the factors of the ratio; without `verbose` not those that are still 1."""
    columns = [
        ScreenColumn(heading=heading_of(ReplayResult, "factors"), align="left"),
        ScreenColumn(heading=heading_of(Factor, "k3_kl")),
        ScreenColumn(heading=heading_of(MetricValue, "low"), dispensable=1),
        ScreenColumn(heading=heading_of(Factor, "ess_seq"), dispensable=2),
    ]
    moved = result.factors.get("staleness") is None or result.factors["staleness"].k3_kl.value
    rows = [
        [factor_name(name, factor), *measured(factor.k3_kl), measured(factor.ess_seq)[0]]
        for name, factor in result.factors.items()
        if verbose or moved or name == "mismatch"
    ]
    return fitted(out, columns, rows)


def _presets(out: Console, result: ReplayResult, groups: Sequence[EqualUpdates]) -> Table:
    """Draw a row for each group of presets with the same update, no correction first."""
    with_model = result.model is not None
    more = (
        [
            (GradientReport, "grad_norm", 1),
            (GradientReport, "cosine", 4),
            (AfterStep, "kl_old_new", 5),
        ]
        if with_model
        else [(Shares, "top_sequences", 5)]
    )
    columns = [
        ScreenColumn(heading=heading_of(ReplayResult, "presets"), align="left"),
        ScreenColumn(heading=" loss", dispensable=9),
        ScreenColumn(heading=" kept", dispensable=2),
        ScreenColumn(heading=f" {RULES['health.clip_fraction'].heading}", dispensable=8),
        *([] if with_model else [ScreenColumn(heading=SIZE, dispensable=1)]),
        *(
            ScreenColumn(heading=heading_of(owner, name).rjust(4), dispensable=dispensable)
            for owner, name, dispensable in more
        ),
        ScreenColumn(heading="health", align="left"),
        ScreenColumn(heading=heading_of(Health, "rules"), align="left", dispensable=3, style="dim"),
    ]
    rows = []
    for group in groups:
        preset = group.preset
        clip = preset.metrics.get("actor/pg_clipfrac")
        verdict = preset.health.verdict
        beside = relative_norm(result, preset)
        top = "" if preset.shares is None else f"{100 * preset.shares.top_sequences:.0f}%"
        rows.append(
            [
                group.title,
                "none" if preset.loss is None else f"{preset.loss:.3g}",
                f"{100 * preset.kept_tokens / max(result.num_tokens, 1):.0f}%",
                "" if clip is None else f"{100 * clip:.1f}%",
                *([] if with_model else ["" if beside is None else f"{beside:.2f}"]),
                *(_gradient(preset) if with_model else [top]),
                f"[{COLOURS[TAGS[verdict]]}]{verdict}[/]",
                decided_by(preset.health),
            ]
        )
    return fitted(out, columns, rows)


def _gradient(preset: PresetReplay) -> list[str]:
    """Return the cells of a model's step: norm and cosine of its gradient, KL after it."""
    if preset.gradient is None:
        return ["", "", ""]
    unbiased, whole = preset.gradient.cosine.value, preset.gradient.cosine_whole
    cosine = f"{unbiased:.2f}" if unbiased is not None else f"{UNSURE}{whole:.2f}" if whole else ""
    after = preset.after_step
    kl = None if after is None else after.kl_old_new.value
    return [
        f"{preset.gradient.grad_norm:.2g}",
        cosine,
        "" if kl is None else f"{kl:.1g}",
    ]


def _splits(out: Console, result: ReplayResult) -> Table:
    ends = ("kl_whole", "kl_split", "kl_between")
    columns = [
        ScreenColumn(heading=heading_of(ReplayResult, "presets"), align="left"),
        ScreenColumn(heading=heading_of(SplitReport, "minibatches"), dispensable=1),
        *(ScreenColumn(heading=heading_of(SplitReport, end)) for end in ends),
    ]
    rows = [
        [
            name,
            str(preset.split.minibatches),
            *(number(getattr(preset.split, end).value) for end in ends),
        ]
        for name, preset in result.presets.items()
        if preset.split is not None
    ]
    return fitted(out, columns, rows)


def _steps(out: Console, result: ReplayResult) -> Table:
    last = len(result.steps)
    columns = [
        ScreenColumn(heading=heading_of(ReplayResult, "presets"), align="left"),
        *(  # the later the step, the more it says
            ScreenColumn(
                heading=f"step {step.step}", dispensable=last - index if index < last else 0
            )
            for index, step in enumerate(result.steps, 1)
        ),
    ]
    rows = []
    for name in result.steps[0].presets:
        after = [step.presets[name].after_step for step in result.steps]
        rows.append([name, *("" if a is None else number(a.kl_rollout_new.value) for a in after)])
    return fitted(out, columns, rows)


def _rules(out: Console, rules: Sequence[Rule]) -> Table:
    columns = [
        ScreenColumn(heading=heading_of(Health, "rules"), align="left"),
        ScreenColumn(heading="level", align="left"),
        ScreenColumn(heading=heading_of(Rule, "message"), align="left", words=True, style="dim"),
    ]
    rows = [
        [rule.name, f"[{COLOURS[rule.level]}]{rule.level}[/]", escape(rule.message)]
        for rule in rules
    ]
    return fitted(out, columns, rows)
