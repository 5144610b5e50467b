"""A replayed update on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cli.terminal.cells import COLOURS
from rcdiag.pages.formats import interval, number
from rcdiag.pages.replay.words import TAGS
from rcdiag.results import AfterStep, PresetReplay, ReplayResult


def draw_replay(out: Console, found: ReplayResult, verbose: bool) -> None:
    step = "" if found.step is None else f"step {found.step}: "
    out.print(
        f"{step}{found.num_sequences:,} sequences, {found.num_tokens:,} response tokens; "
        f"{found.loss} loss, {found.aggregation}, advantages: {found.advantage}\n"
    )
    out.print(_factors(found))
    out.print()
    out.print(_presets(found))
    if any(each.split for each in found.presets.values()):
        out.print("\n[dim]the same batch as one step and as several: KL, nats per token[/]")
        out.print(_splits(found))
    for name, each in found.presets.items():
        if each.after_step is not None and each.after_step.reward_after is not None:
            out.print(_rewards(name, each.after_step))
    if found.steps:
        out.print("\n[dim]KL(rollout || new) after each step, nats per token[/]")
        out.print(_steps(found))
    if verbose:
        for name, each in found.presets.items():
            out.print(f"\n[bold]{name}[/]")
            out.print(_rules(each))


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < left else "right", no_wrap=True)
    return table


def _factors(found: ReplayResult) -> Table:
    table = _table("factor", "KL, nats per token", "95% interval", "ESS seq")
    for name, each in found.factors.items():
        who = f"{name} [dim]{each.behavior} → {each.target}[/]"
        kl = (number(each.k3_kl.value), interval(each.k3_kl))
        table.add_row(who, *kl, number(each.ess_seq.value))
    return table


def _presets(found: ReplayResult) -> Table:
    with_model = found.model is not None
    more = (" |g|", " cos", "KL step") if with_model else (" |c|", "top 1%")
    table = _table("preset", " loss", " kept", " clip", *more)
    table.add_column("health")
    for name, each in found.presets.items():
        clip = each.metrics.get("actor/pg_clipfrac")
        cells = [
            "none" if each.loss is None else f"{each.loss:.3g}",
            f"{100 * each.kept_tokens / max(found.num_tokens, 1):.0f}%",
            "" if clip is None else f"{100 * clip:.1f}%",
        ]
        verdict = each.health.verdict
        colour = COLOURS[TAGS[verdict]]
        extra = _gradient(each) if with_model else _top(each)
        table.add_row(name, *cells, *extra, f"[{colour}]{verdict}[/]")
    return table


def _top(each: PresetReplay) -> list[str]:
    share = "" if each.shares is None else f"{100 * each.shares.top_sequences:.0f}%"
    return [f"{each.coefficients.norm:.2g}", share]


def _gradient(each: PresetReplay) -> list[str]:
    if each.gradient is None:
        return ["", "", ""]
    unbiased, whole = each.gradient.cosine.value, each.gradient.cosine_whole
    cosine = f"{unbiased:.2f}" if unbiased is not None else f"~{whole:.2f}" if whole else ""
    after = each.after_step
    kl = None if after is None else after.kl_old_new.value
    return [
        f"{each.gradient.norm:.2g}",
        cosine,
        "" if kl is None else f"{kl:.1g}",
    ]


def _rewards(name: str, after: AfterStep) -> str:
    """Of fresh samples, before and after the step."""
    assert after.reward_before is not None
    assert after.reward_after is not None
    ends = [
        f"{number(each.value)} ({interval(each)})"
        for each in (after.reward_before, after.reward_after)
    ]
    return f"reward of fresh samples, {name}: {ends[0]} before, {ends[1]} after"


def _splits(found: ReplayResult) -> Table:
    table = _table("preset", "mini-batches", "old to one", "old to several", "between")
    for name, each in found.presets.items():
        if each.split is not None:
            ends = (each.split.kl_whole, each.split.kl_split, each.split.kl_between)
            numbers = [number(end.value) for end in ends]
            table.add_row(name, str(each.split.minibatches), *numbers)
    return table


def _steps(found: ReplayResult) -> Table:
    table = _table("preset", *(f"step {step.step}" for step in found.steps))
    for name in found.steps[0].presets:
        after = [step.presets[name].after_step for step in found.steps]
        table.add_row(name, *("" if a is None else number(a.kl_rollout_new.value) for a in after))
    return table


def _rules(each: PresetReplay) -> Table:
    table = _table("rule", "level", left=2)
    table.add_column("what it found", style="dim")
    for rule in each.health.rules:
        table.add_row(rule.name, f"[{COLOURS[rule.level]}]{rule.level}[/]", rule.said)
    return table
