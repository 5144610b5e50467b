"""A replayed update is drawn on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cli.terminal.cells import COLOURS
from rcdiag.pages.formats import interval, number
from rcdiag.pages.replay.words import TAGS
from rcdiag.results import AfterStep, PresetReplay, ReplayResult


def draw_replay(out: Console, result: ReplayResult, verbose: bool) -> None:
    step = "" if result.step is None else f"step {result.step}: "
    out.print(
        f"{step}{result.num_sequences:,} sequences, {result.num_tokens:,} response tokens; "
        f"{result.policy_loss} loss, {result.aggregation}, advantages: {result.advantage}\n"
    )
    out.print(_factors(result))
    out.print()
    out.print(_presets(result))
    if any(preset.split for preset in result.presets.values()):
        out.print("\n[dim]the same batch as one step and as several: KL, nats per token[/]")
        out.print(_splits(result))
    for name, preset in result.presets.items():
        if preset.after_step is not None and preset.after_step.reward_after is not None:
            out.print(_rewards(name, preset.after_step))
    if result.steps:
        out.print("\n[dim]KL(rollout || new) after each step, nats per token[/]")
        out.print(_steps(result))
    if verbose:
        for name, preset in result.presets.items():
            out.print(f"\n[bold]{name}[/]")
            out.print(_rules(preset))


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < left else "right", no_wrap=True)
    return table


def _factors(result: ReplayResult) -> Table:
    table = _table("factor", "KL, nats per token", "95% interval", "ESS seq")
    for name, factor in result.factors.items():
        who = f"{name} [dim]{factor.behavior} → {factor.target}[/]"
        kl = (number(factor.k3_kl.value), interval(factor.k3_kl))
        table.add_row(who, *kl, number(factor.ess_seq.value))
    return table


def _presets(result: ReplayResult) -> Table:
    with_model = result.model is not None
    more = (" |g|", " cos", "KL step") if with_model else (" |c|", "top 1%")
    table = _table("preset", " loss", " kept", " clip", *more)
    table.add_column("health")
    for name, preset in result.presets.items():
        clip = preset.metrics.get("actor/pg_clipfrac")
        cells = [
            "none" if preset.loss is None else f"{preset.loss:.3g}",
            f"{100 * preset.kept_tokens / max(result.num_tokens, 1):.0f}%",
            "" if clip is None else f"{100 * clip:.1f}%",
        ]
        verdict = preset.health.verdict
        colour = COLOURS[TAGS[verdict]]
        extra = _gradient(preset) if with_model else _top(preset)
        table.add_row(name, *cells, *extra, f"[{colour}]{verdict}[/]")
    return table


def _top(preset: PresetReplay) -> list[str]:
    share = "" if preset.shares is None else f"{100 * preset.shares.top_sequences:.0f}%"
    return [f"{preset.coefficients.norm:.2g}", share]


def _gradient(preset: PresetReplay) -> list[str]:
    if preset.gradient is None:
        return ["", "", ""]
    unbiased, whole = preset.gradient.cosine.value, preset.gradient.cosine_whole
    cosine = f"{unbiased:.2f}" if unbiased is not None else f"~{whole:.2f}" if whole else ""
    after = preset.after_step
    kl = None if after is None else after.kl_old_new.value
    return [
        f"{preset.gradient.grad_norm:.2g}",
        cosine,
        "" if kl is None else f"{kl:.1g}",
    ]


def _rewards(name: str, after: AfterStep) -> str:
    """Write the rewards of fresh samples before and after the step."""
    assert after.reward_before is not None
    assert after.reward_after is not None
    ends = [
        f"{number(reward.value)} ({interval(reward)})"
        for reward in (after.reward_before, after.reward_after)
    ]
    return f"reward of fresh samples, {name}: {ends[0]} before, {ends[1]} after"


def _splits(result: ReplayResult) -> Table:
    table = _table("preset", "mini-batches", "old to one", "old to several", "between")
    for name, preset in result.presets.items():
        if preset.split is not None:
            ends = (preset.split.kl_whole, preset.split.kl_split, preset.split.kl_between)
            numbers = [number(end.value) for end in ends]
            table.add_row(name, str(preset.split.minibatches), *numbers)
    return table


def _steps(result: ReplayResult) -> Table:
    table = _table("preset", *(f"step {step.step}" for step in result.steps))
    for name in result.steps[0].presets:
        after = [step.presets[name].after_step for step in result.steps]
        table.add_row(name, *("" if a is None else number(a.kl_rollout_new.value) for a in after))
    return table


def _rules(preset: PresetReplay) -> Table:
    table = _table("rule", "level", left=2)
    table.add_column("what it found", style="dim")
    for rule in preset.health.rules:
        table.add_row(rule.name, f"[{COLOURS[rule.level]}]{rule.level}[/]", rule.message)
    return table
