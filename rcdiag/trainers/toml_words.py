"""TOML files beside a trainer's code say what its keys and settings mean.

A trainer's package holds these files, with one table for each thing that has a name:

- `generations.toml`: a table for each generation of the trainer, the oldest first, with
  `released`, `place` (where its settings stand in its own config), `says` and `source`.
  `[header]` may list `renamed_presets`: the names that one preset had, the oldest first.
- `keys.toml`: a table for each number that the trainer logs, by its name without prefix. Only
  `says` must be there. `logged_by` names the generations that log the key (without it, all),
  `detail` what holds in each of them, the sub-table `generations` what differs between them, and
  `losses` what each policy loss computes. `example` says on what the key is computed, `numbers`
  what comes out, as one number or as a sub-table by generation. `result` says where rcdiag has
  the number if not among the trainer's metrics. `[header]` has the `families` of keys: their
  prefix by generation, and what holds for each key of the family. A key that names no `family`
  is of the first one. `loggers` are what the trainer's logger may put before any key.
- `settings.toml`: a table for each setting, with `says` and, where they differ, `generations`.
- `terms.toml`: a table for what the trainer calls a name that rcdiag explains: a policy loss, an
  aggregation, a setting of a loss, a word of the glossary. `says` is a text, or a sub-table by
  generation; `numbers` is what comes out on the example of the name. A table may be of several
  names, separated by commas. The file may be missing.

- `findings.toml`: a table for each finding that the trainer's code makes of its settings, by slug,
  with `severity` (error, warning, note), `asks`, `says`, `fix`, and possibly `example`, `source`
  and `see`. The file may be missing.

Where two trainers share code, `[header.also]` of `keys.toml` names the other's `package` and the
`families` of its keys that this one logs as well, and that of `settings.toml` the `names` of its
settings; the other trainer has one generation then.

A trainer that is one module has no files beside it. Its module then has `WORDS`, one TOML text
with the tables `generations`, `keys`, `settings`, `terms` and `findings`; each holds what the file
would.

Generations are written as `a`, `a to c`, `c on` (c and all later ones), or several of these,
separated by commas. A text may hold `{name}` for a text of `[header.texts]`. A key's name may
hold it for each value of `[header.placeholders.name]`; the texts of that table may then hold what
the value's own table says, and `numbers` is a sub-table by value.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Any

import msgspec

from rcdiag.errors import RcdiagError
from rcdiag.frozen import dataclass
from rcdiag.trainers.claims import ClaimRule
from rcdiag.trainers.conditions import Conditions


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationWords:
    """One generation of a trainer: when it came out and where its settings stand."""

    name: str
    says: str
    released: str
    place: str
    source: str
    claims: tuple[ClaimRule, ...] = ()  # which files are its own
    written: bool = True  # whether rcdiag writes settings for it
    on_sweep_page: bool = False  # beside the newest generation of each trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyWords:
    """The words on one key that a trainer logs, by generation in the trainer's order."""

    name: str  # without prefix
    says: str
    family: str
    names: Mapping[str, str]  # generation -> the key as it is logged; only those that log it
    generations: Mapping[str, str]  # generation -> what holds there, "" for nothing in particular
    note: str | None = None  # what holds for each key of the family
    formula: str | None = None
    direction: str | None = None
    unit: str | None = None
    healthy: str | None = None
    example: str | None = None  # what the numbers are computed on, or a command
    numbers: Mapping[str, float]  # generation -> the key's value on the example
    losses: Mapping[str, str]  # policy loss -> its formula
    result: str | None = None  # where rcdiag has the number if not in the trainer's metrics
    see: tuple[str, ...] = ()
    pattern: str | None = None  # the name of the table if that holds a placeholder
    loggers: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """Return the key without prefix and with every prefix that it is seen with."""
        plain = (self.name, *self.names.values())
        return tuple(
            dict.fromkeys([*plain, *(logger + key for logger in self.loggers for key in plain)])
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingWords:
    """The meaning of a trainer's setting. `generations` are in the trainer's order."""

    name: str
    says: str
    generations: Mapping[str, str]  # generation -> what differs there
    unit: str | None = None
    healthy: str | None = None
    example: str | None = None
    see: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TermWords:
    """A trainer's own word for a name that rcdiag explains, by generation, in order."""

    name: str
    says: Mapping[str, str]
    numbers: Mapping[str, float]  # generation -> what comes out on the example of the name


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingWords:
    """A finding on the settings of a trainer: what it means, and when it is made."""

    slug: str
    severity: str  # error, warning or note
    asks: str  # the question that it answers
    says: str
    fix: str
    example: str = ""
    source: str = ""
    see: tuple[str, ...] = ()
    # Without a message the trainer's code makes it, else it is made where these conditions hold.
    message: str = ""  # with settings in braces
    when: Conditions  # on settings, defaults filled in
    where: Conditions | None = None  # on keys of the configuration file, by their full dotted name
    remedy: str = ""  # what this finding advises, if it is more than `fix`
    evidence: tuple[str, ...] = ()  # settings


@cache
def read_generations(package: str) -> dict[str, GenerationWords]:
    """Return the generations of the trainer in `package`, the oldest first."""
    file = TomlFile.read(package, "generations.toml")
    file.table("header").allows("renamed_presets")
    generations = {}
    for table in file.tables():
        texts = {field: table.needed(field) for field in ("says", "released", "place", "source")}
        table.allows(*texts, "claims", "written", "on_sweep_page")
        generations[table.name] = GenerationWords(
            name=table.name,
            **texts,
            claims=table.converted("claims", tuple[ClaimRule, ...], ()),
            written=table.converted("written", bool, True),
            on_sweep_page=table.converted("on_sweep_page", bool, False),
        )
    return generations


@cache
def read_renamed_presets(package: str) -> dict[str, tuple[str, ...]]:
    """Return the other names that a preset has in other generations, by each name."""
    header = TomlFile.read(package, "generations.toml").table("header")
    chains = header.fields.get("renamed_presets", [])
    if not isinstance(chains, list) or not all(map(_is_names, chains)):
        raise header.error("`renamed_presets` is not a list of lists of names")
    return {
        name: tuple(other for other in chain if other != name) for chain in chains for name in chain
    }


@cache
def read_settings(package: str) -> dict[str, SettingWords]:
    """Return what the settings of the trainer in `package` mean, by their names."""
    file, order = TomlFile.read(package, "settings.toml"), list(read_generations(package))
    header = file.table("header")
    texts = header.sub("texts").texts() if "texts" in header.fields else {}
    settings = {}
    if "also" in header.fields:
        also = header.sub("also")
        also.allows("package", "names", "header")
        others = read_settings(also.needed("package"))
        settings = {
            name: replace(others[name], generations=dict.fromkeys(order, ""))
            for name in also.names("names")
        }
    for table in file.tables():
        table.allows(*SETTING_WORDS, *SETTING_COLUMNS)
        table = table.only(SETTING_WORDS).filled(texts)
        settings[table.name] = SettingWords(
            name=table.name,
            says=table.needed("says"),
            unit=table.text("unit"),
            healthy=table.text("healthy"),
            example=table.text("example"),
            see=table.names("see"),
            generations=table.by_generation("generations", order),
        )
    return settings


SETTING_WORDS = ("says", "unit", "healthy", "example", "see", "generations")
# What else a setting has: see `rcdiag.trainers.settings_table`, which reads it.
SETTING_COLUMNS = (
    *("default", "since", "until", "type", "choices", "null", "hint", "at", "write"),
)


@cache
def read_terms(package: str) -> dict[str, TermWords]:
    """Return what the trainer in `package` calls the names that rcdiag explains."""
    file, order = (
        TomlFile.read(package, "terms.toml", needed=False),
        list(read_generations(package)),
    )
    terms = {}
    for table in file.tables():
        table.allows("says", "numbers")
        says = table.by_generation("says", order)
        numbers = table.by_generation("numbers", order, (int, float))
        for name in table.name.split(","):
            terms[name.strip()] = TermWords(name=name.strip(), says=says, numbers=numbers)
    return terms


@cache
def read_findings(package: str) -> dict[str, FindingWords]:
    """Return what the findings of the trainer in `package` on its settings mean, by slug."""
    fields = ("severity", "asks", "says", "fix", "example", "source", "message", "remedy")
    findings = {}
    for table in TomlFile.read(package, "findings.toml", needed=False).tables():
        table.allows(*fields, "see", "when", "where", "evidence")
        texts = {field: table.text(field) or "" for field in fields}
        for field in ("severity", "asks", "says", "fix"):
            table.needed(field)
        findings[table.name] = FindingWords(
            slug=table.name,
            see=table.names("see"),
            evidence=table.names("evidence"),
            when=table.converted("when", dict[str, Any], {}),
            where=table.converted("where", dict[str, Any]),
            **texts,
        )
    return findings


@cache
def read_keys(package: str) -> dict[str, KeyWords]:
    """Return what the trainer in `package` logs, by key without prefix; placeholders are filled."""
    file, order = TomlFile.read(package, "keys.toml"), list(read_generations(package))
    header = file.table("header")
    header.allows("families", "loggers", "placeholders", "texts", "also")
    families = {family.name: family for family in header.sub("families").subs()}
    for family in families.values():
        family.allows("prefix", "logged_by", "direction", "note")
    own = {
        words.name: words
        for table in file.tables()
        for filled, pattern in _fillings(table, header)
        for words in [_key(filled, pattern, header, families, order)]
    }
    return {**_keys_of_another(header, order), **own}


def _keys_of_another(header: Table, order: Sequence[str]) -> dict[str, KeyWords]:
    """Return the keys of families that another trainer logs under the same names."""
    if "also" not in header.fields:
        return {}
    also = header.sub("also")
    also.allows("package", "families")
    chosen, loggers = also.names("families"), header.names("loggers")
    keys = {}
    for words in read_keys(also.needed("package")).values():
        if words.family in chosen:
            (name,) = set(words.names.values())
            (detail,) = set(words.generations.values())
            numbers = dict.fromkeys(order, *words.numbers.values()) if words.numbers else {}
            keys[words.name] = replace(
                words,
                names=dict.fromkeys(order, name),
                generations=dict.fromkeys(order, detail),
                numbers=numbers,
                loggers=loggers,
            )
    return keys


_KEY_FIELDS = (
    *("says", "formula", "direction", "unit", "healthy", "example", "numbers", "see"),
    *("family", "logged_by", "detail", "generations", "losses", "result"),
)


def _fillings(table: Table, header: Table) -> Iterator[tuple[Table, str | None]]:
    """Yield a table with its placeholders filled, once for each value, and its name before."""
    table.allows(*_KEY_FIELDS)
    texts = header.sub("texts").texts()
    for placeholder in header.sub("placeholders").subs():
        if f"{{{placeholder.name}}}" not in table.name:
            continue
        numbers = table.sub("numbers").fields
        if strange := numbers.keys() - placeholder.fields.keys():
            raise table.error(f"`numbers` has {min(strange)!r}, no value of {placeholder.name}")
        rest = {field: content for field, content in table.fields.items() if field != "numbers"}
        for value in placeholder.subs():
            own = {"numbers": numbers[value.name]} if value.name in numbers else {}
            filled = {**texts, **value.texts(), placeholder.name: value.name}
            yield Table(table.file, table.name, rest | own).filled(filled), table.name
        return
    yield table.filled(texts), None


def _key(
    table: Table,
    pattern: str | None,
    header: Table,
    families: Mapping[str, Table],
    order: Sequence[str],
) -> KeyWords:
    name = table.text("family") or next(iter(families), "")
    if name not in families:
        raise table.error(f"`family` is {name!r}", f"one of {', '.join(families)}")
    family = families[name]
    named = table.text("logged_by") or family.text("logged_by")
    logged_by = expand(named, order, table) if named else list(order)
    prefixes = family.by_generation("prefix", order)
    own, detail = table.by_generation("generations", order), table.text("detail")
    if strange := [generation for generation in own if generation not in logged_by]:
        raise table.error(f"`generations` has {strange[0]}, which does not log the key")
    return KeyWords(
        name=table.name,
        says=table.needed("says"),
        family=family.name,
        names={generation: prefixes.get(generation, "") + table.name for generation in logged_by},
        generations={
            generation: "; ".join(filter(None, [detail, own.get(generation)]))
            for generation in logged_by
        },
        note=family.text("note"),
        formula=table.text("formula"),
        direction=table.text("direction") or family.text("direction"),
        unit=table.text("unit"),
        healthy=table.text("healthy"),
        example=table.text("example"),
        numbers=table.by_generation("numbers", logged_by, (int, float)),
        losses=_by_loss(table),
        result=table.text("result"),
        see=table.names("see"),
        pattern=pattern,
        loggers=header.names("loggers"),
    )


def _by_loss(table: Table) -> dict[str, str]:
    losses = table.sub("losses").texts() if "losses" in table.fields else {}
    return {loss.strip(): text for group, text in losses.items() for loss in group.split(",")}


def expand(text: str, order: Sequence[str], table: Table | None = None) -> list[str]:
    """Return the generations that `a, b to d, f on` names, each one of `order`."""
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
    """Write generations for a reader: three or more in a row are `first to last`."""
    runs: list[list[str]] = [[]]
    for name in order:
        if name in names:
            runs[-1].append(name)
        elif runs[-1]:
            runs.append([])
    short = [[f"{run[0]} to {run[-1]}"] if len(run) > 2 else run for run in runs]
    return ", ".join(text for run in short for text in run)


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A TOML file of a package, or the part of a module's `WORDS` that stands for it."""

    path: str  # as errors name it
    content: Mapping[str, Any]

    @staticmethod
    def read(package: str, name: str, *, needed: bool = True) -> TomlFile:
        module = importlib.import_module(package)
        if not hasattr(module, "__path__"):
            return TomlFile._of_module(module, name.removesuffix(".toml"))
        path = f"{package}/{name}"
        try:
            text = files(package).joinpath(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            if not needed:
                return TomlFile(path, {})
            raise RcdiagError(f"{path}: not there", "a trainer's package has this file") from None
        return TomlFile(path, _parsed(path, text))

    @staticmethod
    def _of_module(module: ModuleType, part: str) -> TomlFile:
        path = f"{module.__name__}.WORDS"
        text = getattr(module, "WORDS", None)
        if not isinstance(text, str):
            raise RcdiagError(f"{path}: not there", "a trainer's module has this TOML text")
        return TomlFile(f"{path}: {part}", _checked(path, part, _parsed(path, text).get(part, {})))

    def table(self, name: str) -> Table:
        """Return a table by its name; empty if the file lacks it."""
        return Table(self.path, name, _checked(self.path, name, self.content.get(name, {})))

    def tables(self) -> list[Table]:
        """Return all tables but the header."""
        return [self.table(name) for name in self.content if name != "header"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a file; an error about it names file, table and field."""

    file: str
    name: str
    fields: Mapping[str, Any]

    def error(self, message: str, hint: str = "") -> RcdiagError:
        return RcdiagError(f"{self.file}: [{self.name}]: {message}", hint)

    def allows(self, *fields: str) -> None:
        for field in self.fields:
            if field not in fields:
                raise self.error(f"unknown field `{field}`", f"one of {', '.join(fields)}")

    def needed(self, field: str) -> str:
        text = self.text(field)
        if not text:
            raise self.error(f"`{field}` is missing", f'write {field} = "..."')
        return text

    def converted(self, field: str, kind: Any, default: Any = None) -> Any:
        """Return a field as a type that msgspec knows, or the default where it is missing."""
        if field not in self.fields:
            return default
        try:
            return msgspec.convert(self.fields[field], kind)
        except msgspec.ValidationError as error:
            raise self.error(f"`{field}`: {error}") from error

    def text(self, field: str) -> str | None:
        value = self.fields.get(field)
        if value is not None and not isinstance(value, str):
            raise self.error(f"`{field}` is {value!r}, not a text")
        return value

    def names(self, field: str) -> tuple[str, ...]:
        value = self.fields.get(field, [])
        if not _is_names(value):
            raise self.error(f"`{field}` is {value!r}, not a list of names")
        return tuple(value)

    def sub(self, field: str) -> Table:
        """Return the sub-table under a field; empty if there is none."""
        fields = _checked(self.file, f"{self.name}.{field}", self.fields.get(field, {}))
        return Table(self.file, field, fields)

    def subs(self) -> list[Table]:
        return [self.sub(field) for field in self.fields]

    def texts(self) -> dict[str, str]:
        """Return all fields, each of them a text."""
        return {field: self.needed(field) for field in self.fields}

    def by_generation(
        self, field: str, order: Sequence[str], kinds: tuple[type, ...] = (str,)
    ) -> dict[str, Any]:
        """Return a value for each generation: one for all, or a sub-table with some."""
        value = self.fields.get(field, {})
        if isinstance(value, kinds):
            return dict.fromkeys(order, value)
        values = {}
        for group, entry in self.sub(field).fields.items():
            if not isinstance(entry, kinds):
                raise self.error(f"`{field}` has {entry!r} for {group}")
            for generation in expand(group, order, self):
                if generation in values:
                    raise self.error(f"`{field}` names {generation} twice")
                values[generation] = entry
        return {generation: values[generation] for generation in order if generation in values}

    def only(self, fields: Collection[str]) -> Table:
        """Return the table with some of its fields."""
        chosen = {field: value for field, value in self.fields.items() if field in fields}
        return Table(self.file, self.name, chosen)

    def filled(self, texts: Mapping[str, str]) -> Table:
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
            return Table(self.file, fill(self.name), fill(self.fields))
        except (KeyError, ValueError, IndexError) as error:
            raise self.error(
                f"a text holds braces with {error}", f"they may hold {', '.join(texts)}"
            ) from None


def _parsed(path: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RcdiagError(f"{path}: not valid TOML: {error}") from error


def _checked(file: str, name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RcdiagError(f"{file}: {name}: {value!r} is not a table")
    return value


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
