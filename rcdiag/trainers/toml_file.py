"""The TOML files of a trainer's package as tables, with errors that name file, table and field.

A trainer that is a single module has no files. Its module has `WORDS` instead: one TOML text with
the tables `generations`, `keys`, `settings`, `terms` and `findings`, which stand for the files.

Generations are written as `a`, `a to c`, `c on` (c and all later ones), or several of these,
separated by commas.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from rcdiag.errors import RcdiagError

T = TypeVar("T")


class TomlWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a table; an unknown field or a field of a wrong type is an error."""


class TomlFile(msgspec.Struct, frozen=True):
    """A TOML file of a package, or the part of a module's `WORDS` that replaces it."""

    path: str  # as errors name it
    content: Mapping[str, Any]

    @staticmethod
    def read(package: str, name: str, may_be_missing: bool = False) -> TomlFile:
        """Read a file of a package, or the part of `WORDS` if the package is a module."""
        module = importlib.import_module(package)
        path = f"{package}/{name}"
        if not hasattr(module, "__path__"):
            path, part = f"{package}.WORDS", name.removesuffix(".toml")
            text = getattr(module, "WORDS", None)
            if not isinstance(text, str):
                raise RcdiagError(
                    f"{path}: missing",
                    hint="a trainer in a single module has its tables in a TOML text `WORDS`",
                )
            content = TomlFile(path, _parsed(path, text)).table(part).fields
            return TomlFile(f"{path}: {part}", content)
        try:
            text = files(package).joinpath(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            if may_be_missing:
                return TomlFile(path, {})
            raise RcdiagError(f"{path}: missing", "a trainer's package has this file") from None
        return TomlFile(path, _parsed(path, text))

    def table(self, name: str) -> TomlTable:
        """Return a table by its name; empty if the file lacks it."""
        return self.as_table(name, self.content.get(name, {}))

    def as_table(self, name: str, value: Any) -> TomlTable:
        """Return a value of the file as the table of that name; an error if it is not a table."""
        if not isinstance(value, dict):
            raise RcdiagError(f"{self.path}: {name}: {value!r} is not a table")
        return TomlTable(self.path, name, value)

    def tables(self) -> list[TomlTable]:
        """Return all tables except the header."""
        return [self.table(name) for name in self.content if name != "header"]


class TomlTable(msgspec.Struct, frozen=True):
    """A table of a file; an error about it names file, table and field."""

    file: str
    name: str
    fields: Mapping[str, Any]

    def error(self, message: str, hint: str = "") -> RcdiagError:
        return RcdiagError(f"{self.file}: [{self.name}]: {message}", hint)

    def as_a(self, kind: type[T], **given: Any) -> T:
        """Return the fields, and the given ones, as an object of a type that msgspec converts."""
        try:
            return msgspec.convert({**given, **self.fields}, kind)
        except msgspec.ValidationError as error:
            said, _, place = str(error).partition(" - at `$")
            said = said.removeprefix("Object ").removeprefix("contains ")
            where = f"`{place.strip('.`')}`: " if place else ""
            raise self.error(where + said) from error

    def part(self, field: str, kind: Any, default: Any = None) -> Any:
        """Return one field converted to a type, or the default if it is missing."""
        if field not in self.fields:
            return default
        try:
            return msgspec.convert(self.fields[field], kind)
        except msgspec.ValidationError as error:
            raise self.error(f"`{field}`: {error}") from error

    def without(self, fields: Collection[str]) -> TomlTable:
        """Return the table without some of its fields."""
        rest = {field: value for field, value in self.fields.items() if field not in fields}
        return TomlTable(self.file, self.name, rest)

    def only(self, fields: Collection[str]) -> TomlTable:
        """Return the table with some of its fields."""
        return self.without(self.fields.keys() - set(fields))

    def filled(self, texts: Mapping[str, str]) -> TomlTable:
        """Return the table with `{name}` replaced in its name and in its texts."""

        def fill(value: Any) -> Any:
            if isinstance(value, str):
                return value.format_map(texts)
            if isinstance(value, list):
                return [fill(item) for item in value]
            if isinstance(value, dict):
                return {field: fill(item) for field, item in value.items()}
            return value

        try:
            return TomlTable(self.file, fill(self.name), fill(self.fields))
        except (KeyError, ValueError, IndexError) as error:
            raise self.error(
                f"a text holds braces with {error}", f"they may hold {', '.join(texts)}"
            ) from None


def _parsed(path: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RcdiagError(f"{path}: not valid TOML: {error}") from error


def expand(text: str, order: Sequence[str], table: TomlTable | None = None) -> list[str]:
    """Return the generations that text like `a, b to d, f on` means; all must be in `order`."""
    generations: set[str] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition(" to ")
        if first.endswith(" on"):
            first, last = first.removesuffix(" on"), order[-1]
        last = last or first
        if first not in order or last not in order:
            message = f"{part.strip()!r} names no generation"
            hint = f"generations are {', '.join(order)}"
            raise table.error(message, hint) if table else RcdiagError(message, hint)
        generations |= set(order[order.index(first) : order.index(last) + 1])
    return [name for name in order if name in generations]


def label(names: Collection[str], order: Iterable[str]) -> str:
    """Write generations for a reader: three or more consecutive ones as `first to last`."""
    runs: list[list[str]] = [[]]
    for name in order:
        if name in names:
            runs[-1].append(name)
        elif runs[-1]:
            runs.append([])
    short = [[f"{run[0]} to {run[-1]}"] if len(run) > 2 else run for run in runs]
    return ", ".join(text for run in short for text in run)


def spread(value: Any, order: Sequence[str], table: TomlTable) -> dict[str, Any]:
    """Return a value for each generation, from one value for all or a sub-table by generation."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(order, value)
    values = {}
    for group, entry in value.items():
        for generation in expand(group, order, table):
            if generation in values:
                raise table.error(f"{generation} is named twice")
            values[generation] = entry
    return {generation: values[generation] for generation in order if generation in values}
