"""The tab Update: what each preset's step does, compared with the recommended preset."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from rcdiag.formats import as_sentence, measured
from rcdiag.pages.blocks import (
    Block,
    Cell,
    ColumnOf,
    Figures,
    Paragraph,
    Section,
    Tab,
    amount,
    count,
    equal_names,
    metric,
    numbers,
    share,
    tab_of,
    table,
    term,
    text,
    words,
)
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.page_figures import figures_of
from rcdiag.pages.replay.words import (
    FACTORS,
    TAGS,
    EqualUpdates,
    answer,
    by_health,
    decided_by,
    divided,
    equal_updates,
)
from rcdiag.pages.tabs.corrections.treatments import NONE, recommended
from rcdiag.results import MetricValue, PresetReplay, ReplayResult

NAIVE = "naive"  # the update without correction


def tab(results: DumpResults) -> Tab | None:
    """Make the tab; None if no update was replayed."""
    replay = results.replay
    if replay is None:
        return None
    step = "" if replay.step is None else f", step {replay.step}"
    inside = Figures(items=figures_of(replay))
    return tab_of(
        "update",
        "Update",
        f"One update{step}",
        _presets(replay, reference(results)),
        _factors(replay),
        Section(title="Inside the update", blocks=[inside]) if inside.items else None,
        _splits(replay),
        _model(replay),
    )


def reference(results: DumpResults) -> str:
    """Return the preset that others are compared with: the recommended one, or no correction.

    A preset without weights may still differ from no correction by its loss.
    """
    assert results.replay is not None
    chosen = recommended(results)
    names = () if chosen is None or NONE in chosen.names else chosen.names
    return next((name for name in names if name in results.replay.presets), NAIVE)


def _presets(result: ReplayResult, against: str) -> Section:
    presets = table(
        "updates",
        "Presets",
        _columns(result, against),
        # The reference first, then by health, the safest first.
        sorted(by_health(result), key=lambda update: against not in update.names),
        lambda update: {
            "key": update.names[0],
            "names": update.names,
            "tag": "reference" if against in update.names else "",
        },
        search=True,
        opens="update",
    )
    what = "the update without correction" if against == NAIVE else "which the sweep recommends"
    how = (
        f"Δ and × compare with `{against}`, {what}, on the same batch, so that common noise "
        "cancels. Below a Δ is its 95% interval, made by leaving out the same prompt group of both "
        "in turn, with weights and advantages of the whole batch: if it contains 0, "
        "the batch cannot tell the two updates apart. Below the kept tokens is the number that the "
        "loss is divided by. "
        "The reference comes first, then the updates by their health. Presets with equal updates "
        "share a row; a row opens to the rules of its health. "
        f"Advantages: {result.advantage}. `{result.rollout}` sampled, `{result.old}` "
        f"is the policy before the update, and `{result.current}` the one being updated. "
        f"The batch has {result.num_sequences:,} sequences of {result.num_groups:,} prompt groups."
    )
    blocks: list[Block] = [
        Paragraph(text=as_sentence(answer(result))),
        presets,
        Paragraph(text=how, soft=True),
    ]
    return Section(title="What each preset would have done", blocks=blocks)


def _columns(result: ReplayResult, against: str) -> list[ColumnOf]:
    """Return all columns with the functions for their cells; a Δ is a cell's second line."""
    reference = result.presets.get(against)
    norm = None if reference is None else reference.coefficients.norm
    delta = partial(_delta, result, against)
    # A preset without a gradient, a step or shares has empty cells there.
    return [
        words("Preset", _names),
        words(
            "Health",
            lambda one: text(
                one.preset.health.verdict,
                level=TAGS[one.preset.health.verdict],
                note=decided_by(one.preset.health),
            ),
            "health",
        ),
        numbers(
            "Loss",
            lambda one: amount(one.preset.loss, note=one.preset.undefined or delta(one, "loss")),
            "loss",
        ),
        numbers("|c|", lambda one: _coefficient_norm(one.preset, norm), "coefficients.norm"),
        numbers("Kept tokens", lambda one: _kept_share(one.preset, result), "kept_tokens"),
        numbers(
            "Clipped",
            lambda one: share(one.preset.metrics.get("actor/pg_clipfrac")),
            "actor/pg_clipfrac",
        ),
        numbers(
            "Top 1% of sequences",
            lambda one: share(one.preset.shares and one.preset.shares.top_sequences),
            "top_sequences",
        ),
        numbers(
            "Gradient norm",
            lambda one: amount(
                one.preset.gradient and one.preset.gradient.grad_norm, note=delta(one, "grad_norm")
            ),
            "grad_norm",
        ),
        numbers(
            "Cosine",
            lambda one: metric(one.preset.gradient and one.preset.gradient.cosine),
            "cosine",
        ),
        numbers(
            "KL(old || new)",
            lambda one: amount(one.preset.after_step and one.preset.after_step.kl_old_new.value),
            "kl_old_new",
        ),
        numbers(
            "KL(rollout || new)",
            lambda one: amount(
                one.preset.after_step and one.preset.after_step.kl_rollout_new.value,
                note=delta(one, "kl_rollout_new"),
            ),
            "kl_rollout_new",
        ),
    ]


def _names(update: EqualUpdates) -> Cell:
    """Return the cell with the presets of a row, and their mode if the name does not say it."""
    cell = equal_names(update.names)
    mode = update.preset.mode
    if mode in update.names[0]:
        return cell
    return replace(cell, note="; ".join(filter(None, (cell.note, f"mode {mode}"))))


def _coefficient_norm(preset: PresetReplay, reference: float | None) -> Cell:
    """Return the cell of the coefficients' norm, and its ratio to that of the reference."""
    norm = preset.coefficients.norm
    return amount(norm, note=f"× {norm / reference:.3g}" if reference and norm is not None else "")


def _kept_share(preset: PresetReplay, result: ReplayResult) -> Cell:
    """Return the cell of the share of kept tokens, and what the loss is divided by."""
    kept = preset.kept_tokens / max(result.num_tokens, 1)
    return replace(
        share(kept), note=f"÷ {divided(preset.denominator)}".replace(" tokens", "\ntokens")
    )


def difference(
    result: ReplayResult, names: Sequence[str], others: Sequence[str], number: str
) -> MetricValue | None:
    """Return the difference of a number between two groups of presets, with its interval."""
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
    """Return the difference seen from the other side: its ends change places."""
    ends = (value.value, value.high, value.low)
    middle, low, high = (None if end is None else -end for end in ends)
    return MetricValue(value=middle, low=low, high=high)


def _delta(result: ReplayResult, against: str, update: EqualUpdates, number: str) -> str:
    """Return a difference to the reference with its interval; "" for the reference itself."""
    if against in update.names:
        return ""
    held = next((group.names for group in equal_updates(result) if against in group.names), ())
    value = difference(result, update.names, held, number)
    if value is None or value.value is None:
        return ""
    sign = "+" if value.value > 0 else ""
    written, interval = measured(value)
    return "\n".join(filter(None, (f"Δ {sign}{written}", interval)))


def _factors(result: ReplayResult) -> Section:
    factors = table(
        "factors",
        "Factors of the ratio",
        [
            words(
                "Factor",
                lambda one: text(
                    FACTORS.get(one[0], one[0]), note=f"{one[1].behavior} → {one[1].target}"
                ),
            ),
            numbers("KL by k3 (nats per token)", lambda one: metric(one[1].k3_kl), "k3_kl"),
            numbers("ESS of sequences", lambda one: metric(one[1].ess_seq), "ess_seq"),
            numbers("Largest |log-ratio|", lambda one: amount(one[1].log_ratio_abs_max)),
        ],
        result.factors.items(),
    )
    return Section(title="The two factors of the ratio", blocks=[factors])


def _splits(result: ReplayResult) -> Section | None:
    splits = {name: p.split for name, p in result.presets.items() if p.split is not None}
    if not splits:
        return None
    batches = table(
        "splits",
        "Mini-batches",
        [
            words("Preset", lambda name: term(name)),
            words("Mode", lambda name: text(result.presets[name].mode)),
            numbers("Mini-batches", lambda name: count(splits[name].minibatches)),
            numbers("KL(old || one step)", lambda name: metric(splits[name].kl_whole)),
            numbers("KL(old || several)", lambda name: metric(splits[name].kl_split)),
            numbers("KL(one step || several)", lambda name: metric(splits[name].kl_between)),
        ],
        splits,
    )
    how = (
        "Several mini-batches make several optimizer steps from the same start. If the last column "
        "is far below the two before it, the mode ends where a single step ends."
    )
    return Section(
        title="The same batch in mini-batches", blocks=[batches, Paragraph(text=how, soft=True)]
    )


def _model(result: ReplayResult) -> Section | None:
    if result.model is None:
        return None
    settings = table(
        "model",
        "How the step was computed",
        [
            words("Setting", lambda one: text(one[0].replace("_", " "))),
            words("Value", lambda one: text("none" if one[1] is None else str(one[1]))),
        ],
        result.model.items(),
    )
    return Section(title="How the step was computed", blocks=[settings], screen=True)
