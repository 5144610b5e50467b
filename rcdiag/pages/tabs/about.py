"""The tab About: provenance of the numbers, the result documents, and the glossary."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rcdiag.pages.blocks import Block, Section, Slot, Snippet, Tab, tab_of
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.tabs.diagnosis import scoring_of
from rcdiag.results import Result
from rcdiag.results.base import drawn_sentence


def tab(dumps: Sequence[DumpResults]) -> Tab:
    """Make the tab; a page of two dumps has the provenance of both."""
    sides = ("",) if len(dumps) == 1 else ("Before: ", "After: ")
    blocks: list[Block] = [
        Snippet(label=f"{side}rcdiag {result.kind} on {dump.dump}", text=provenance(result))
        for side, dump in zip(sides, dumps, strict=True)
        for result in dump.results
    ]
    for side, dump in zip(sides, dumps, strict=True):
        for name, facts in scoring_of(dump).items():
            blocks.append(
                Snippet(
                    label=f"{side}{'how' if side else 'How'} {name} was scored",
                    text=json.dumps(facts, indent=1, ensure_ascii=False),
                    opened=False,
                )
            )
    return tab_of(
        "about",
        "About",
        "About this page",
        Section(title="Where the numbers come from", blocks=blocks, name="provenance"),
        Section(
            title="The result documents",
            blocks=[Slot(name="documents", data=None)],
            name="documents",
            screen=True,
        ),
        Section(
            title="Glossary",
            blocks=[Slot(name="glossary", data=None)],
            name="glossary",
            screen=True,
        ),
    )


def provenance(result: Result) -> str:
    """Return the provenance of a result as text, one fact on each line."""
    facts = dict(result.provenance)
    lines = [
        f"command      {facts.pop('command', '')}",
        f"table        {', '.join(map(str, facts.pop('dump', [])))}",
        f"rows         {facts.pop('rows', 0):,}",
    ]
    drawn = drawn_sentence(result.provenance)
    if drawn:
        lines.append(f"read         {drawn}")
    facts.pop("rows_drawn", None)
    versions = facts.pop("versions", {})
    for name, value in facts.items():
        lines.append(
            f"{name:<12} {json.dumps(value) if isinstance(value, (dict, list)) else value}"
        )
    lines.append(f"{'versions':<12} {', '.join(f'{n} {v}' for n, v in versions.items())}")
    return "\n".join(lines)
