"""JSON Schemas (draft 2020-12) of results: made from the types by msgspec, plus descriptions.

`python -m rcdiag.results.schema` writes the shipped files anew; a test compares them with the code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rcdiag.results import FORMAT_VERSION, KINDS
from rcdiag.results.doc import Doc, Number, described_types, documented_fields

FOLDER = Path(__file__).with_name("schemas")
DRAFT = "https://json-schema.org/draft/2020-12/schema"

_REFERENCE = "#/$defs/{name}"
_NUMBER = {
    "description": "A number; NaN and infinities are strings, so that any JSON reader takes them.",
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
}


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of the result documents of one kind: a key of `KINDS`."""
    owners = list(dict.fromkeys(_parts_of(KINDS[kind])))
    _, definitions = msgspec.json.schema_components(
        owners, schema_hook=_of_own_types, ref_template=_REFERENCE
    )
    for owner in owners:
        _add_words(owner, definitions[owner.__name__])
    document = definitions.pop(KINDS[kind].__name__)
    document["properties"]["kind"]["const"] = kind
    document["properties"]["format_version"]["const"] = FORMAT_VERSION
    definitions["float"] = _NUMBER
    head = {"$schema": DRAFT, "title": f"Result of rcdiag {kind}"}
    return {**head, **document, **head, "$defs": dict(sorted(definitions.items()))}


def description(doc: Doc) -> str:
    """Describe a field in one paragraph for a reader of its schema."""
    parts = {"Formula": doc.formula, "Unit": doc.unit, "Direction": doc.direction}
    facts = [f"{name}: {text}." for name, text in parts.items() if text not in (None, "", "none")]
    return " ".join([doc.says, *facts])


def write_schemas(folder: Path = FOLDER) -> None:
    """Write the schema of every kind of result into a folder."""
    for kind in KINDS:
        text = json.dumps(json_schema(kind), indent=1) + "\n"
        (folder / f"{kind}.schema.json").write_text(text)


def _parts_of(owner: type) -> Iterator[type]:
    """Yield a struct or TypedDict and all those inside its fields, at any depth."""
    yield owner
    for field in documented_fields(owner):
        for part in described_types(field.doc.keys or field.type):
            yield from _parts_of(part)


def _of_own_types(kind: Any) -> dict[str, Any]:
    """Return the schemas of the two types that msgspec does not know, number and anything."""
    if kind is Number:
        return {"$ref": _REFERENCE.format(name="float")}
    return {"description": "A value of any type."}


def _add_words(owner: type, schema: dict[str, Any]) -> None:
    """Add the documentation of a part's fields to its schema."""
    fields = documented_fields(owner)
    schema["description"] = (owner.__doc__ or "").partition("\n")[0]
    schema["required"] = [field.name for field in fields if field.required]
    for field in fields:
        of_type = schema["properties"][field.name]
        optional = {"type": "null"} in of_type.get("anyOf", ())
        if field.doc.one_of:
            of_type["enum"] = [*field.doc.one_of, *([None] if optional else [])]
        if field.doc.keys is not None:
            keys = {"$ref": _REFERENCE.format(name=field.doc.keys.__name__)}
            of_type = {"anyOf": [keys, {"type": "null"}]} if optional else keys
        schema["properties"][field.name] = {"description": description(field.doc), **of_type}


if __name__ == "__main__":
    write_schemas()
