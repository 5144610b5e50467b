"""Fields of results, explained by the words that stand on them (`rcdiag/results/doc.py`).

A field whose name something else has too is listed as `part.name`, e.g. `rule.value`, where the
part is its dataclass: Rule. To add a field: its `Doc`; nothing is needed here.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from rcdiag.glossary.entry import Entry, Kind, first_clause, folded, with_headings
from rcdiag.glossary.guides import range_of
from rcdiag.glossary.kinds import PLACES, kind_at
from rcdiag.results import KINDS, base, compare, replay, score, sweep
from rcdiag.results.doc import Doc, described_types, documented_fields
from rcdiag.results.guide import Guide

TITLE = "field of a result"
# In this order fields of one name are told.
_MODULES = (base, score, sweep, replay, compare)
_TABLES = {"compare": "scored.parquet"}
_SUFFIX = re.compile(r"(Result|Report|Replay|Summary)$")

ALIASES = {
    **dict.fromkeys(("lower", "upper", "rs_lower", "rs_upper", "is_upper"), "bounds"),
    "result.trainer": "correction.trainer",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One meaning of a field name: where it stands first, and its words."""

    dotted: str  # `rule.value`
    doc: Doc
    shown_by: str  # the command that shows it


@cache
def meanings() -> dict[str, tuple[Field, ...]]:
    """Field name -> its meanings; those with a formula come first."""
    places = _places()
    found: dict[str, dict[str, Field]] = {}
    for owner in _parts().values():
        command, path = places[owner]
        for each in documented_fields(owner):
            needs = f"{each.doc.needs} " if each.doc.needs else ""
            shown = f"{command} {needs}--json | jq '{path}.{each.name}'"
            field = Field(f"{part_of(owner)}.{each.name}", each.doc, shown)
            found.setdefault(each.name, {}).setdefault(each.doc.says, field)
    return {
        name: tuple(sorted(fields.values(), key=lambda field: field.doc.formula is None))
        for name, fields in found.items()
    }


@cache
def _parts() -> dict[str, type]:
    """Part of a result -> its dataclass or TypedDict, in the order of `_MODULES`."""
    return {
        part_of(owner): owner
        for module in _MODULES
        for name, owner in vars(module).items()
        if isinstance(owner, type) and owner.__module__ == module.__name__
        if not name.startswith("_") and any(described_types(owner))
    }


def part_of(owner: type) -> str:
    """`gradient` of GradientReport, `sweep_row` of SweepRow."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", _SUFFIX.sub("", owner.__name__)).lower()


def _places() -> dict[type, tuple[str, str]]:
    """Dataclasses and TypedDicts -> a command that makes one, and its path in the document."""
    found: dict[type, tuple[str, str]] = {}
    for kind, owner in KINDS.items():
        command = f"rcdiag {kind} {_TABLES.get(kind, 'rollouts.parquet')}"
        for part, place in _below(owner, command, ""):
            found.setdefault(part, place)
    return found


def _below(owner: type, command: str, path: str) -> Iterator[tuple[type, tuple[str, str]]]:
    yield owner, (command, path)
    for each in documented_fields(owner):
        needs = f" {each.doc.needs}" if each.doc.needs else ""
        where = f"{path}.{each.name}{_items(each.type)}"
        for part in described_types(each.doc.keys or each.type):
            yield from _below(part, command + needs, where)


def _items(kind: Any) -> str:
    """`[]` for each list or dictionary around a dataclass."""
    if not any(True for _ in described_types(kind)):
        return ""
    around = "[]" if typing.get_origin(kind) in (list, dict) else ""
    return around + "".join(_items(each) for each in typing.get_args(kind))


def _names() -> list[str]:
    """The names that mean nothing else; where the bare one does, those with a dot."""
    others = {
        folded(name)
        for kind in map(kind_at, PLACES)
        if kind is not KIND
        for name in (*kind.names(), *kind.aliases)
    }
    found: list[str] = []
    for name, fields in meanings().items():
        first = [] if folded(name) in others else [name]
        found += [*first, *(field.dotted for field in fields[len(first) :])]
    return [name for name in dict.fromkeys(found) if folded(name) not in others]


def _line(name: str) -> str:
    """What a field with a dot in its name says is read off its own part of a result alone."""
    part, _, bare = name.rpartition(".")
    if not part:
        return first_clause(meanings()[bare][0].doc.says)
    docs = {field.name: field.doc for field in documented_fields(_parts()[part])}
    return first_clause(docs[bare].says)


@cache
def _dotted() -> dict[str, Field]:
    """Every field under its name with a dot, in each part that it stands in."""
    found: dict[str, Field] = {}
    for owner in _places():
        for each in documented_fields(owner):
            fields = {field.doc.says: field for field in meanings()[each.name]}
            found[f"{part_of(owner)}.{each.name}"] = fields[each.doc.says]
    return found


def guides() -> dict[str, Guide | None]:
    """The guides of fields that are judged, or that have the guide of another number."""
    from rcdiag.diagnosis.correction_health import CORRECTION_RULES, LOST_MASS
    from rcdiag.statistics.metrics import METRICS

    return {
        **{name: rule.guide for name, rule in CORRECTION_RULES.items() if rule.see == (name,)},
        "lost_mass": LOST_MASS,
        "kl_token": METRICS["k3_kl"].guide,
    }


def _rules(name: str) -> tuple[str, ...]:
    """A field that says which rules fail is explained with the names of all of them."""
    if name != "refused":
        return ()
    from rcdiag.diagnosis.constraints import CONSTRAINTS

    return tuple(f"constraint.{rule}" for rule in CONSTRAINTS)


def _headings() -> dict[str, str]:
    """Headings of the terminal's tables -> the field in the column, where that has another name."""
    return {
        field.doc.heading: field.dotted
        for name, fields in meanings().items()
        for field in fields
        if field.doc.heading and folded(field.doc.heading) != folded(name)
    }


def entry(name: str) -> Entry:
    field = _dotted()[name] if "." in name else meanings()[name][0]
    doc = field.doc
    bare = name.rpartition(".")[2]
    healthy = [doc.healthy, range_of(None, guides().get(bare))]
    return Entry(
        name=name,
        kind=TITLE,
        what=doc.says,
        formula=doc.formula,
        direction=doc.direction,
        units=doc.unit or None,
        healthy="; ".join(filter(None, healthy)) or None,
        generations=doc.trainers,
        example=doc.example or field.shown_by,
        see=(*doc.see, *_rules(bare)),
    )


KIND: Kind = Kind(
    title=TITLE,
    plural="Fields of results",
    names=_names,
    line=_line,
    entry=entry,
    find=lambda name: name if name in _dotted() else None,
    aliases={**with_headings(_headings()), **ALIASES},
)
