"""The tab Update: what each preset's step does, beside that of the recommended one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    metric,
    share,
    term,
    text,
)
from rcdiag.pages.drawn import figures_of
from rcdiag.pages.formats import interval, number
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.replay.words import TAGS, answer, decided_by, divided
from rcdiag.pages.tabs.corrections import NONE, recommended
from rcdiag.results import MetricValue, PresetReplay, ReplayResult

NAIVE = "naive"  # the update without correction


@dataclass(frozen=True, slots=True)
class Update:
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
    """Return the numbers by which updates are told apart."""
    pull = preset.coefficients
    after = preset.after_step
    moved = None if after is None else after.kl_old_new.value
    sizes = (preset.loss, pull.norm, pull.sum, pull.abs_sum, moved)
    same = tuple(None if size is None else f"{size:.7g}" for size in sizes)
    return (*same, preset.kept_tokens, preset.health.verdict)


def reference(results: DumpResults) -> str:
    """Return the preset that others are held against: the recommended, or none at all.

    Presets that leave the weights alone may still have another loss than the update without any.
    """
    assert results.replay is not None
    chosen = recommended(results)
    names = () if chosen is None or NONE in chosen.names else chosen.names
    return next((name for name in names if name in results.replay.presets), NAIVE)


def _presets(result: ReplayResult, against: str) -> Section:
    held = result.presets.get(against)
    with_model = result.model is not None
    columns = [
        Column(head="Preset"),
        Column(head="Mode"),
        Column(head="Health", term="health"),
        Column(head="Loss", numbers=True, term="loss"),
        Column(head="Δ loss", numbers=True),
        Column(head="|c|", numbers=True, term="coefficients.norm"),
        Column(head="|c| / reference's", numbers=True),
        Column(head="Kept tokens", numbers=True, term="kept_tokens"),
        Column(head="Clipped", numbers=True, term="actor/pg_clipfrac"),
        Column(head="Top 1% of sequences", numbers=True, term="top_sequences"),
        Column(head="Divided by", numbers=True, term="denominator"),
        *(
            [
                Column(head="Gradient norm", numbers=True, term="grad_norm"),
                Column(head="Δ gradient norm", numbers=True),
                Column(head="Cosine", numbers=True, term="cosine"),
                Column(head="KL(old || new)", numbers=True, term="kl_old_new"),
                Column(head="Δ KL(rollout || new)", numbers=True),
            ]
            if with_model
            else []
        ),
    ]
    rows = [
        _row(update, result, held, against, with_model=with_model) for update in grouped(result)
    ]
    table = Table(
        name="updates",
        label="Presets",
        columns=columns,
        rows=rows,
        search=True,
        opens="update",
    )
    what = "the update without correction" if against == NAIVE else "which the sweep recommends"
    how = (
        f"Δ and ratios are against `{against}`, {what}, on the same batch: what both share is "
        "not in them. Below a Δ stands its 95% interval, made by leaving out the same prompt group "
        "of both in turn, with weights and advantages of the whole batch. "
        "Presets with equal updates share a row; a row opens to the rules of its health. "
        f"Loss `{result.policy_loss}`, aggregation {result.aggregation}, advantages: "
        f"{result.advantage}; rollout is `{result.rollout}`, old `{result.old}`, current "
        f"`{result.current}`; {result.num_sequences:,} sequences, {result.num_groups:,} prompt "
        "groups."
    )
    blocks: list[Block] = [Words(text=f"{answer(result)}."), table, Words(text=how, soft=True)]
    return Section(title="What each preset would have done", blocks=blocks)


def _row(
    update: Update,
    result: ReplayResult,
    held: PresetReplay | None,
    against: str,
    *,
    with_model: bool,
) -> Row:
    preset = update.preset
    verdict = preset.health.verdict
    clipped = preset.metrics.get("actor/pg_clipfrac")
    cells: list[Cell] = [
        equals(update.names),
        text(preset.mode),
        text(verdict, level=TAGS[verdict], note=decided_by(preset.health)),
        amount(preset.loss, note=preset.undefined or ""),
        _against(result, update, against, "loss"),
        amount(preset.coefficients.norm),
        _ratio(preset.coefficients.norm, None if held is None else held.coefficients.norm),
        share(preset.kept_tokens / max(result.num_tokens, 1)),
        share(clipped),
        share(None if preset.shares is None else preset.shares.top_sequences),
        text(divided(preset.denominator), order=preset.denominator.divisor),
    ]
    if with_model:
        cells += _model_cells(result, update, against)
    return Row(
        cells=cells,
        key=update.names[0],
        names=update.names,
        tag="reference" if against in update.names else "",
    )


def _model_cells(result: ReplayResult, update: Update, against: str) -> list[Cell]:
    gradient, after = update.preset.gradient, update.preset.after_step
    return [
        amount(None if gradient is None else gradient.grad_norm),
        _against(result, update, against, "grad_norm"),
        metric(None if gradient is None else gradient.cosine),
        metric(None if after is None else after.kl_old_new),
        _against(result, update, against, "kl_rollout_new"),
    ]


def difference(
    result: ReplayResult, names: Sequence[str], others: Sequence[str], number: str
) -> MetricValue | None:
    """Return a number of one group of equal presets less that of another, with its interval."""
    for one in names:
        for other in others:
            if (pair := result.paired.get(one, {}).get(other)) is not None:
                return getattr(pair, number)
            if (pair := result.paired.get(other, {}).get(one)) is not None:
                value = getattr(pair, number)
                return None if value is None else _negative(value)
    return None


def _negative(value: MetricValue) -> MetricValue:
    def minus(end: float | None) -> float | None:
        return None if end is None else -end

    return MetricValue(value=minus(value.value), low=minus(value.high), high=minus(value.low))


def _against(result: ReplayResult, update: Update, against: str, number_name: str) -> Cell:
    """Write a difference to the reference; pale words say where an interval holds 0."""
    if against in update.names:
        return text("")
    held = next((group.names for group in grouped(result) if against in group.names), ())
    value = difference(result, update.names, held, number_name)
    if value is None or value.value is None:
        return amount(None)
    sign = "+" if value.value > 0 else ""
    ends = interval(value) if value.low != value.high else ""
    same = value.low is not None and value.high is not None and value.low <= 0.0 <= value.high
    note = f"{ends}{'; may be 0' if same and ends else ''}"
    return amount(value.value, f"{sign}{number(value.value)}", note=note)


def _ratio(value: float | None, held: float | None) -> Cell:
    return amount(None) if value is None or not held else amount(value / held)


def _factors(result: ReplayResult) -> Section:
    names = {"mismatch": "sampler to trainer", "staleness": "drift within the update"}
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
                        names.get(name, name),
                        note=f"{name}: {factor.behavior} → {factor.target}",
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
    return Section(title="Who gets the gradient", blocks=[Figures(items=figures)])


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
