"""Entries of result fields, from the descriptions on the fields (`rcdiag/results/doc.py`).

If another kind also has the field's name, it is listed as `part.name`, e.g. `rule.value`, where
the part is its struct: Rule. To add a field, give it a `Doc`; nothing is needed here.
"""

from __future__ import annotations

import re
import typing
from functools import cache
from typing import Any

from msgspec import Struct

from rcdiag.entry import Entry, first_clause
from rcdiag.glossary.kinds import NameKind, folded, kinds, with_headings
from rcdiag.results import KINDS
from rcdiag.results.doc import Doc, described_types, documented_fields
from rcdiag.results.guide import Guide

TITLE = "field of a result"
_TABLES = {"compare": "scored.parquet", "convert": "dump.jsonl -o dump.parquet"}
_SUFFIX = re.compile(r"(Result|Report|Replay|Summary)$")

ALIASES = {
    **dict.fromkeys(("lower", "upper", "rs_lower", "rs_upper", "is_upper"), "bounds"),
    "result.trainer": "correction.trainer",
    "not observable": "low",
}


class Field(Struct, frozen=True):
    """One meaning of a field name: where it occurs first in a result, and its description."""

    dotted: str  # `rule.value`
    doc: Doc
    shown_by: str  # a command that shows it


@cache
def meanings() -> dict[str, tuple[Field, ...]]:
    """Return the meanings of every field name; those with a formula come first.

    Others are in the order of `KINDS`, each result before its parts.
    """
    meanings_of: dict[str, dict[str, Field]] = {}
    for owner, (command, path) in _places().items():
        for field in documented_fields(owner):
            needs = f"{field.doc.needs} " if field.doc.needs else ""
            shown = f"{command} {needs}--json | jq '{path}.{field.name}'"
            meaning = Field(f"{part_of(owner)}.{field.name}", field.doc, shown)
            meanings_of.setdefault(field.name, {}).setdefault(field.doc.says, meaning)
    return {
        name: tuple(sorted(by_words.values(), key=lambda meaning: meaning.doc.formula is None))
        for name, by_words in meanings_of.items()
    }


def part_of(owner: type) -> str:
    """Return the name of the part of a result that a type describes: GradientReport -> gradient."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", _SUFFIX.sub("", owner.__name__)).lower()


def _places() -> dict[type, tuple[str, str]]:
    """Return, for each type of a part, a command that has one and its path in the document."""
    places: dict[type, tuple[str, str]] = {}
    for kind, owner in KINDS.items():
        _place(owner, f"rcdiag {kind} {_TABLES.get(kind, 'rollouts.parquet')}", "", places)
    return places


def _place(owner: type, command: str, path: str, places: dict[type, tuple[str, str]]) -> None:
    """Record the first place of a part, and of the parts nested in it."""
    if owner in places:
        return
    places[owner] = command, path
    for field in documented_fields(owner):
        needs = f" {field.doc.needs}" if field.doc.needs else ""
        where = f"{path}.{field.name}{_items(field.type)}"
        for part in described_types(field.doc.keys or field.type):
            _place(part, command + needs, where, places)


def _items(kind: Any) -> str:
    """Return `[]` for each list or dictionary around a struct, as in a jq path."""
    if not any(True for _ in described_types(kind)):
        return ""
    around = "[]" if typing.get_origin(kind) in (list, dict) else ""
    return around + "".join(_items(argument) for argument in typing.get_args(kind))


def _listed() -> dict[str, Field]:
    """Return fields by name; one whose name another kind has gets a dotted name: `rule.value`."""
    other_names = {
        folded(name)
        for kind in kinds()
        if kind.title != TITLE
        for name in (*kind.names(), *kind.aliases)
    }
    listed: dict[str, Field] = {}
    for name, fields in meanings().items():
        first = {} if folded(name) in other_names else {name: fields[0]}
        listed |= first | {field.dotted: field for field in fields[len(first) :]}
    return {name: field for name, field in listed.items() if folded(name) not in other_names}


@cache
def _dotted() -> dict[str, Field]:
    """Return all fields by their dotted names, for each part of a result that has them."""
    dotted: dict[str, Field] = {}
    for owner in _places():
        for field in documented_fields(owner):
            by_words = {meaning.doc.says: meaning for meaning in meanings()[field.name]}
            dotted[f"{part_of(owner)}.{field.name}"] = by_words[field.doc.says]
    return dotted


def guides() -> dict[str, Guide | None]:
    """Return the guides of fields with a guide of their own, or that of another number."""
    from rcdiag.diagnosis.correction_health import LOST_MASS
    from rcdiag.diagnosis.rules import rules_of
    from rcdiag.statistics.metrics import METRICS

    return {
        **{
            rule.own_name: rule.guide
            for rule in rules_of("correction").values()
            if rule.see == (rule.own_name,)
        },
        "lost_mass": LOST_MASS,
        "kl_token": METRICS["k3_kl"].guide,
    }


def _entry(name: str, field: Field) -> Entry:
    doc = field.doc
    bare = name.rpartition(".")[2]
    guide = guides().get(bare)
    healthy = [doc.healthy, None if guide is None else guide.bounds]
    return Entry(
        what=doc.says,
        formula=doc.formula,
        direction=doc.direction,
        units=doc.unit or None,
        healthy="; ".join(filter(None, healthy)) or None,
        generations=doc.trainers,
        example=doc.example or field.shown_by,
        see=doc.see,
    )


# Headings of the terminal's tables that differ from the name of their field.
HEADINGS = {
    field.doc.heading: field.dotted
    for name, fields in meanings().items()
    for field in fields
    if field.doc.heading and folded(field.doc.heading) != folded(name)
}
FIELDS = NameKind(
    title=TITLE,
    plural="Fields of results",
    definitions=_listed,
    definition=lambda name: _dotted()[name] if "." in name else meanings()[name][0],
    line=lambda field: first_clause(field.doc.says),
    entry=_entry,
    find=lambda name: name if name in _dotted() else None,
    aliases={**with_headings(HEADINGS), **ALIASES},
)
