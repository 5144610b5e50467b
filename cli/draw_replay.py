"""A replayed update on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cli.cells import COLOURS
from rcdiag.report.words import interval, number
from rcdiag.results import PresetReplay, ReplayResult

TAGS = {"cannot judge": "note"}


def draw_replay(out: Console, found: ReplayResult, verbose: bool) -> None:
    step = "" if found.step is None else f"step {found.step}: "
    out.print(
        f"{step}{found.num_sequences:,} sequences, {found.num_tokens:,} response tokens; "
        f"{found.loss} loss, {found.aggregation}, advantages: {found.advantage}\n"
    )
    out.print(_factors(found))
    out.print()
    out.print(_presets(found))
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
    table = _table("factor", "KL, nats per token", "95% interval", "ESS of sequences")
    for name, each in found.factors.items():
        who = f"{name} [dim]{each.behavior} → {each.target}[/]"
        kl = (number(each.k3_kl.value), interval(each.k3_kl))
        table.add_row(who, *kl, number(each.ess_seq.value))
    return table


def _presets(found: ReplayResult) -> Table:
    with_model = found.model is not None
    more = ("|g|", "cos", "KL step") if with_model else ("top 1%",)
    table = _table("preset", "mode", " loss", " kept", " clip", " |c|", *more, left=2)
    table.add_column("health")
    for name, each in found.presets.items():
        clip = each.metrics.get("actor/pg_clipfrac")
        cells = [
            "none" if each.loss is None else f"{each.loss:.4g}",
            f"{100 * each.kept_tokens / max(found.num_tokens, 1):.0f}%",
            "" if clip is None else f"{100 * clip:.1f}%",
            f"{each.coefficients.norm:.2g}",
        ]
        verdict = each.health.verdict
        colour = COLOURS[TAGS.get(verdict, verdict)]
        extra = _gradient(each) if with_model else _top(each)
        table.add_row(name, each.mode, *cells, *extra, f"[{colour}]{verdict}[/]")
    return table


def _top(each: PresetReplay) -> list[str]:
    return ["" if each.shares is None else f"{100 * each.shares.top_sequences:.0f}%"]


def _gradient(each: PresetReplay) -> list[str]:
    if each.gradient is None:
        return ["", "", ""]
    cosine = each.gradient.cosine.value
    after = each.after_step
    kl = None if after is None else after.kl_old_new.value
    return [
        f"{each.gradient.norm:.2g}",
        "" if cosine is None else f"{cosine:.2f}",
        "" if kl is None else f"{kl:.1g}",
    ]


def _rules(each: PresetReplay) -> Table:
    table = _table("rule", "level", left=2)
    table.add_column("what it found", style="dim")
    for rule in each.health.rules:
        table.add_row(rule.name, f"[{COLOURS[rule.level]}]{rule.level}[/]", rule.said)
    return table
