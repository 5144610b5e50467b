"""Sections on training logs: keys over the steps, when each moved, which relations hold."""

from __future__ import annotations

from rcdiag.pages.blocks import (
    Block,
    Figures,
    Fold,
    Paragraph,
    Section,
    amount,
    code,
    numbers,
    table,
    term,
    text,
    words,
)
from rcdiag.pages.diagnose.logs import in_order, names_of
from rcdiag.pages.page_figures import figures_of
from rcdiag.results import DiagnoseResult
from rcdiag.results.log_summary import LogSummary


def training_log(result: DiagnoseResult | None) -> list[Section]:
    """Show the logs that were diagnosed; of several, each in a section of its own."""
    if result is None or not result.logs:
        return []
    figures = Figures(items=figures_of(result, ["log-over-steps"]))
    names = names_of(result.logs)
    if len(result.logs) == 1:
        blocks: list[Block] = [figures, *_of_log(result.logs[0], names[0], 0)]
        return [Section(title="The log over the steps", blocks=blocks, name="log")]
    runs = [
        Section(
            title=f"{name}: {log.log_verdict}",
            blocks=[Paragraph(text=log.summary), *_of_log(log, name, place)],
        )
        for place, (name, log) in enumerate(zip(names, result.logs, strict=True))
    ]
    return [Section(title="The logs over the steps", blocks=[figures], name="log"), *runs]


def _of_log(log: LogSummary, name: str, place: int) -> list[Block]:
    moved = table(
        f"moved-{place}",
        f"Keys that moved, {name}",
        [
            words("Key that moved", lambda one: code(one.key)),
            numbers("Step", lambda one: amount(one.step_moved, str(one.step_moved))),
            words(
                "95% interval",
                lambda one: text(
                    f"{one.earliest} to {one.latest}"
                    if one.earliest < one.latest
                    else str(one.earliest)
                ),
            ),
            numbers("Median before", lambda one: amount(one.key_before)),
            numbers("Median after", lambda one: amount(one.key_after)),
            words("How", lambda one: text(one.shape)),
        ],
        in_order(log.keys_moved),
        lambda one: {"key": f"{one.key} {one.step_moved}"},
    )
    relations = table(
        f"relations-{place}",
        f"Relations between keys of {name}, in the steps that the diagnosis is of",
        [
            words("Relation", lambda one: term(one.relation)),
            words("Level", lambda one: text(one.relation_level, level=one.relation_level)),
            words("Says", lambda one: text(one.relation_says.replace("`", ""))),
        ],
        log.relations,
        lambda one: {"key": one.relation},
    )
    known = table(
        f"keys-{place}",
        "Known keys",
        [
            words("Key", lambda one: code(one.key)),
            words("Quantity", lambda one: text(one.quantity)),
            words(
                "Means",
                lambda one: text(
                    f"{one.means} ({one.quantity_unit})" if one.quantity_unit else one.means
                ),
            ),
            words("Taken", lambda one: text(one.key_note)),
        ],
        log.quantities,
        lambda one: {"key": one.key},
    )
    blocks: list[Block] = []
    if log.generations_of_log is not None:
        correction = f": {log.correction_of_log}" if log.correction_of_log else ""
        blocks.append(Paragraph(text=f"Written by {log.generations_of_log}{correction}."))
    blocks += [Paragraph(text=note) for note in log.file_notes]
    blocks += [moved] if log.keys_moved else []
    blocks += [relations] if log.relations else []
    return [*blocks, Fold(label=f"{len(log.quantities)} known keys", blocks=[known])]
