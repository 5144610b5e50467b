"""The tab Corrections: presets and swept settings in one table, and which one to use."""

from __future__ import annotations

from rcdiag.formats import as_sentence
from rcdiag.pages.blocks import (
    Block,
    Fold,
    Lines,
    Paragraph,
    Section,
    Slot,
    Snippet,
    Tab,
    tab_of,
)
from rcdiag.pages.command_again import sweep_command
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.sweep.words import recommended
from rcdiag.pages.tabs.corrections.all_corrections import all_corrections
from rcdiag.pages.tabs.corrections.bounds import sliders
from rcdiag.pages.tabs.corrections.forecast import forecast
from rcdiag.pages.tabs.corrections.logged import own_log
from rcdiag.pages.tabs.corrections.treatments import treatments_of
from rcdiag.results import Action


def tab(results: DumpResults) -> Tab | None:
    """Make the tab; None if there are neither presets nor a sweep."""
    treatments = treatments_of(results)
    if not treatments:
        return None
    table, families = all_corrections(results, treatments), _families(results)
    return tab_of(
        "corrections",
        "Corrections",
        _heading(results),
        _advice(results),
        # If weights help, first say that there are more settings than the presets.
        *((families, table) if results.verdict == "correctable" else (table, families)),
        own_log(results.score),
        sliders(results),
        forecast(results.sweep),
    )


def _heading(results: DumpResults) -> str:
    if not results.weights_help:
        return "No correction repairs this: fix the cause first"
    if results.sweep is None:
        return "What each preset would have done"
    return as_sentence(recommended(results.sweep)).removesuffix(".")


def _advice(results: DumpResults) -> Section | None:
    scored = {} if results.score is None else results.score.corrections
    levels = {correction.level for correction in scored.values()}
    against = None if results.diagnosis is None else results.diagnosis.against_weights(levels)
    if against is not None:
        why = f"{against} The table shows what each correction would do, without a ranking."
        return Section(title="", blocks=[Paragraph(text=why, level="error")])
    if results.sweep is None:
        return None
    advice = results.sweep.recommendation
    guide = [] if advice.guide is None else [advice.guide]
    reasons = [as_sentence(reason) for reason in (*advice.reasons, *guide)]
    blocks: list[Block] = [Lines(items=reasons)]
    if results.verdict == "correctable" and advice.answer == "no-correction":
        why = (
            "Importance weights are valid here, but on a batch of this size they add more variance "
            "than they remove bias. Remove the cause instead."
        )
        blocks.append(Paragraph(text=why))
    snippets = [
        Snippet(label=f"To paste into {trainer}", text=written, opened=place == 0)
        for place, (trainer, written) in enumerate(advice.choice_yaml.items())
    ]
    blocks += snippets[:1]
    if others := snippets[1:]:
        blocks.append(Fold(label=f"{len(others)} other trainers", blocks=list(others)))
    stored = any(family.configurations for family in results.sweep.families.values())
    if not advice.choice_yaml and not stored:
        older = (
            "This result holds no configuration to paste: an older rcdiag made it. `rcdiag sweep` "
            "on the same table makes one that does."
        )
        blocks.append(Paragraph(text=older))
    return Section(title="Why", blocks=blocks)


def _families(results: DumpResults) -> Section | None:
    """Say how to get settings beyond presets, if weights may help and there is no sweep."""
    if results.sweep is not None or results.score is None or not results.weights_help:
        return None
    command = sweep_command(results.score)
    why = (
        "A preset is one setting. `rcdiag sweep` tries every threshold of all families on this "
        "table, ranks them by the error of the update and writes the configuration of the best; "
        "`rcdiag report` puts its result on this page."
    )
    if results.verdict == "healthy":
        why = f"This table needs no correction. {why}"
    steps = [Action(text="Sweep all families", command=f"{command} --html sweep.html")]
    return Section(
        title="Beyond presets: other thresholds",
        blocks=[Paragraph(text=why), Slot(name="actions", data=steps)],
        name="families",
    )
