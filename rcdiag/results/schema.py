"""JSON Schemas (draft 2020-12) of results are made from the dataclasses and their words.

`python -m rcdiag.results.schema` writes the shipped files anew; a test holds them against the code.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

from rcdiag.results import FORMAT_VERSION, KINDS
from rcdiag.results.doc import Doc, DocumentedField, documented_fields

FOLDER = Path(__file__).with_name("schemas")
DRAFT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN = {str: {"type": "string"}, int: {"type": "integer"}, bool: {"type": "boolean"}}
_FLOAT = {
    "description": "A number; NaN and infinities are strings, so that any JSON reader takes them.",
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
}


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of the result documents of one kind: a key of `KINDS`."""
    definitions: dict[str, Any] = {"float": _FLOAT}
    document = _object(KINDS[kind], definitions)
    document["properties"]["kind"]["const"] = kind
    document["properties"]["format_version"]["const"] = FORMAT_VERSION
    title = f"Result of rcdiag {kind}"
    head = {"$schema": DRAFT, "title": title, "description": document.pop("description")}
    return {**head, **document, "$defs": dict(sorted(definitions.items()))}


def description(doc: Doc) -> str:
    """Say everything about a field that helps a reader of its schema, in one paragraph."""
    parts = {"Formula": doc.formula, "Unit": doc.unit, "Direction": doc.direction}
    facts = [f"{name}: {text}." for name, text in parts.items() if text not in (None, "", "none")]
    return " ".join([doc.says, *facts])


def write_schemas(folder: Path = FOLDER) -> None:
    """Write the schema of every kind of result into a folder."""
    for kind in KINDS:
        text = json.dumps(json_schema(kind), indent=1) + "\n"
        (folder / f"{kind}.schema.json").write_text(text)


def _object(owner: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """Describe a dataclass, which is closed, or a TypedDict, which may have other keys."""
    fields = documented_fields(owner)
    schema: dict[str, Any] = {
        "type": "object",
        "description": (owner.__doc__ or "").partition("\n")[0],
        "properties": {field.name: _property(field, definitions) for field in fields},
        "required": [field.name for field in fields if field.required],
    }
    if dataclasses.is_dataclass(owner):
        schema["additionalProperties"] = False
    return schema


def _property(field: DocumentedField, definitions: dict[str, Any]) -> dict[str, Any]:
    words = {"description": description(field.doc)}
    if field.doc.keys is not None:
        may_be_null = type(None) in typing.get_args(field.type)
        keys: Any = field.doc.keys | None if may_be_null else field.doc.keys
        return {**words, **_of_type(keys, definitions)}
    if field.doc.one_of:
        null = [None] if type(None) in typing.get_args(field.type) else []
        return {**words, "enum": [*field.doc.one_of, *null]}
    return {**words, **_of_type(field.type, definitions)}


def _of_type(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Describe the values of a type; dataclasses and TypedDicts go into `definitions`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if kind is float:
        return {"$ref": "#/$defs/float"}
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if origin in (types.UnionType, typing.Union):
        kinds = [argument for argument in arguments if argument is not type(None)]
        null = [{"type": "null"}] if len(kinds) < len(arguments) else []
        return {"anyOf": [*(_of_type(member, definitions) for member in kinds), *null]}
    if origin is list:
        return {"type": "array", "items": _of_type(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of_type(arguments[1], definitions)}
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # holds the place where a type holds itself
        definitions[kind.__name__] = _object(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


if __name__ == "__main__":
    write_schemas()
