"""The tab Update: what each preset's step does, beside that of the recommended one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.formats import measured
from rcdiag.pages.blocks import (
    Block,
    Cell,
    Column,
    Figures,
    Row,
    Section,
    Tab,
    Table,
    Words,
    amount,
    equals,
    filled,
    metric,
    share,
    term,
    text,
)
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.page_figures import figures_of
from rcdiag.pages.replay.words import FACTORS, TAGS, answer, decided_by, divided, health_order
from rcdiag.pages.tabs.corrections.treatments import NONE, recommended
from rcdiag.results import MetricValue, PresetReplay, ReplayResult

NAIVE = "naive"  # the update without correction


class Update(Struct, frozen=True):
    """The update of one preset, or of several that are equal."""

    names: tuple[str, ...]
    preset: PresetReplay


def tab(results: DumpResults) -> Tab | None:
    """Fill the tab; None where no update was replayed."""
    replay = results.replay
    if replay is None:
        return None
    sections = [
        _presets(replay, reference(results)),
        _factors(replay),
        _figures(replay),
        _splits(replay),
        _model(replay),
    ]
    step = "" if replay.step is None else f", step {replay.step}"
    return Tab(
        name="update",
        title="Update",
        heading=f"One update{step}",
        sections=[section for section in sections if section is not None],
    )


def grouped(result: ReplayResult) -> list[Update]:
    """Return the updates, presets with the same coefficients and step once, in their order."""
    groups: dict[tuple[Any, ...], Update] = {}
    for name, preset in result.presets.items():
        key = _key(preset)
        known = groups.get(key)
        groups[key] = (
            Update((name,), preset) if known is None else Update((*known.names, name), known.preset)
        )
    return list(groups.values())


def _key(preset: PresetReplay) -> tuple[Any, ...]:
    """Return the numbers by which updates are distinguished."""
    pull = preset.coefficients
    after = preset.after_step
    moved = None if after is None else after.kl_old_new.value
    sizes = (preset.loss, pull.norm, pull.sum, pull.abs_sum, moved)
    same = tuple(None if size is None else f"{size:.7g}" for size in sizes)
    return (*same, preset.kept_tokens, preset.health.verdict)


def reference(results: DumpResults) -> str:
    """Return the preset that the others are compared with: the recommended one, or no correction.

    A preset without weights may still differ from no correction by its loss.
    """
    assert results.replay is not None
    chosen = recommended(results)
    names = () if chosen is None or NONE in chosen.names else chosen.names
    return next((name for name in names if name in results.replay.presets), NAIVE)


def _presets(result: ReplayResult, against: str) -> Section:
    updates = sorted(grouped(result), key=lambda update: _order(update, against))
    columns = filled(_columns(result, against), updates)
    table = Table(
        name="updates",
        label="Presets",
        columns=[column for column, _ in columns],
        rows=[
            Row(
                cells=[cell(update) for _, cell in columns],
                key=update.names[0],
                names=update.names,
                tag="reference" if against in update.names else "",
            )
            for update in updates
        ],
        search=True,
        opens="update",
    )
    what = "the update without correction" if against == NAIVE else "which the sweep recommends"
    how = (
        f"Δ and × are against `{against}`, {what}, on the same batch: what both share is "
        "not in them. Below a Δ stands its 95% interval, made by leaving out the same prompt group "
        "of both in turn, with weights and advantages of the whole batch: where that holds 0, "
        "the batch cannot tell the two updates apart. Below the kept tokens stands what the loss "
        "is divided by. "
        "The reference stands first, then the updates by their health. Presets with equal updates "
        "share a row; a row opens to the rules of its health. "
        f"Loss `{result.policy_loss}`, aggregation {result.aggregation}, advantages: "
        f"{result.advantage}; rollout is `{result.rollout}`, old `{result.old}`, current "
        f"`{result.current}`; {result.num_sequences:,} sequences, {result.num_groups:,} prompt "
        "groups."
    )
    blocks: list[Block] = [
        Words(text=f"{answer(result)[0].upper()}{answer(result)[1:]}."),
        table,
        Words(text=how, soft=True),
    ]
    return Section(title="What each preset would have done", blocks=blocks)


def _order(update: Update, against: str) -> tuple[bool, int]:
    """Put the reference first, then the updates by their health, the safest first."""
    return (against not in update.names, health_order(update.preset.health))


def _columns(result: ReplayResult, against: str) -> list[tuple[Column, Callable[[Update], Cell]]]:
    """Return every column with what writes its cell; differences stand below their numbers."""
    held = result.presets.get(against)
    norm = None if held is None else held.coefficients.norm

    def delta(update: Update, name: str, value: float | None) -> Cell:
        return amount(value, note=_against(result, update, against, name))

    return [
        (Column(head="Preset"), _names),
        (Column(head="Health", term="health"), _health),
        (_numbers("Loss", "loss"), lambda one: _loss(delta(one, "loss", one.preset.loss), one)),
        (_numbers("|c|", "coefficients.norm"), lambda one: _pull(one.preset, norm)),
        (_numbers("Kept tokens", "kept_tokens"), lambda one: _kept(one.preset, result)),
        (
            _numbers("Clipped", "actor/pg_clipfrac"),
            lambda one: share(one.preset.metrics.get("actor/pg_clipfrac")),
        ),
        (
            _numbers("Top 1% of sequences", "top_sequences"),
            lambda one: share(
                None if one.preset.shares is None else one.preset.shares.top_sequences
            ),
        ),
        (
            _numbers("Gradient norm", "grad_norm"),
            lambda one: delta(one, "grad_norm", _norm(one.preset)),
        ),
        (
            _numbers("Cosine", "cosine"),
            lambda one: metric(None if one.preset.gradient is None else one.preset.gradient.cosine),
        ),
        (
            _numbers("KL(old || new)", "kl_old_new"),
            lambda one: amount(
                None if one.preset.after_step is None else one.preset.after_step.kl_old_new.value
            ),
        ),
        (
            _numbers("KL(rollout || new)", "kl_rollout_new"),
            lambda one: delta(one, "kl_rollout_new", _moved(one.preset)),
        ),
    ]


def _numbers(head: str, term: str) -> Column:
    return Column(head=head, numbers=True, term=term)


def _names(update: Update) -> Cell:
    """Write the presets of a row, and where their names do not say it, their mode."""
    cell = equals(update.names)
    mode = update.preset.mode
    if mode in update.names[0]:
        return cell
    return replace(cell, note="; ".join(filter(None, (cell.note, f"mode {mode}"))))


def _health(update: Update) -> Cell:
    health = update.preset.health
    return text(health.verdict, level=TAGS[health.verdict], note=decided_by(health))


def _loss(cell: Cell, update: Update) -> Cell:
    """Write the loss, or why it is not defined."""
    return replace(cell, note=update.preset.undefined) if update.preset.undefined else cell


def _pull(preset: PresetReplay, held: float | None) -> Cell:
    """Write the norm of the coefficients, and how many times that of the reference it is."""
    norm = preset.coefficients.norm
    return amount(norm, note=f"× {norm / held:.3g}" if held and norm is not None else "")


def _kept(preset: PresetReplay, result: ReplayResult) -> Cell:
    """Write the share of kept tokens, and what the sum over them is divided by."""
    kept = preset.kept_tokens / max(result.num_tokens, 1)
    return replace(
        share(kept), note=f"÷ {divided(preset.denominator)}".replace(" tokens", "\ntokens")
    )


def _norm(preset: PresetReplay) -> float | None:
    return None if preset.gradient is None else preset.gradient.grad_norm


def _moved(preset: PresetReplay) -> float | None:
    return None if preset.after_step is None else preset.after_step.kl_rollout_new.value


def difference(
    result: ReplayResult, names: Sequence[str], others: Sequence[str], number: str
) -> MetricValue | None:
    """Return a number of one group of equal presets less that of another, with its interval."""
    for one in names:
        for other in others:
            if (pair := result.paired.get(one, {}).get(other)) is not None:
                value: MetricValue | None = getattr(pair, number)
                return value
            if (pair := result.paired.get(other, {}).get(one)) is not None:
                value = getattr(pair, number)
                return None if value is None else _negative(value)
    return None


def _negative(value: MetricValue) -> MetricValue:
    def minus(end: float | None) -> float | None:
        return None if end is None else -end

    return MetricValue(value=minus(value.value), low=minus(value.high), high=minus(value.low))


def _against(result: ReplayResult, update: Update, against: str, number_name: str) -> str:
    """Write a difference to the reference with its interval; empty for the reference itself."""
    if against in update.names:
        return ""
    held = next((group.names for group in grouped(result) if against in group.names), ())
    value = difference(result, update.names, held, number_name)
    if value is None or value.value is None:
        return ""
    sign = "+" if value.value > 0 else ""
    written, interval = measured(value)
    return "\n".join(filter(None, (f"Δ {sign}{written}", interval)))


def _factors(result: ReplayResult) -> Section:
    table = Table(
        name="factors",
        label="Factors of the ratio",
        columns=[
            Column(head="Factor"),
            Column(head="KL by k3 (nats per token)", numbers=True, term="k3_kl"),
            Column(head="ESS of sequences", numbers=True, term="ess_seq"),
            Column(head="Largest |log-ratio|", numbers=True),
        ],
        rows=[
            Row(
                cells=[
                    text(
                        FACTORS.get(name, name),
                        note=f"{factor.behavior} → {factor.target}",
                    ),
                    metric(factor.k3_kl),
                    metric(factor.ess_seq),
                    amount(factor.log_ratio_abs_max),
                ]
            )
            for name, factor in result.factors.items()
        ],
    )
    blocks: list[Block] = [table]
    return Section(title="The two factors of the ratio", blocks=blocks)


def _figures(result: ReplayResult) -> Section | None:
    figures = figures_of(result)
    if not figures:
        return None
    return Section(title="Inside the update", blocks=[Figures(items=figures)])


def _splits(result: ReplayResult) -> Section | None:
    splits = {name: p.split for name, p in result.presets.items() if p.split is not None}
    if not splits:
        return None
    rows = [
        Row(
            cells=[
                term(name),
                text(result.presets[name].mode),
                amount(float(split.minibatches)),
                metric(split.kl_whole),
                metric(split.kl_split),
                metric(split.kl_between),
            ]
        )
        for name, split in splits.items()
    ]
    heads: Sequence[str] = (
        "Mini-batches",
        "KL(old || one step)",
        "KL(old || several)",
        "KL(one step || several)",
    )
    table = Table(
        name="splits",
        label="Mini-batches",
        columns=[
            Column(head="Preset"),
            Column(head="Mode"),
            *(Column(head=head, numbers=True) for head in heads),
        ],
        rows=rows,
    )
    how = (
        "Several mini-batches make several optimizer steps from the same start. A mode that stays "
        "put ends where one step ends: its last column is far below the two before it."
    )
    return Section(
        title="The same batch in mini-batches", blocks=[table, Words(text=how, soft=True)]
    )


def _model(result: ReplayResult) -> Section | None:
    if result.model is None:
        return None
    rows = [
        Row(cells=[text(name.replace("_", " ")), text("none" if value is None else str(value))])
        for name, value in result.model.items()
    ]
    table = Table(
        name="model",
        label="How the step was computed",
        columns=[Column(head="Setting"), Column(head="Value")],
        rows=rows,
    )
    return Section(title="How the step was computed", blocks=[table], screen=True)
