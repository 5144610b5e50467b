"""Read the TOML files of a trainer: the keys that it logs, the meaning of its settings, its terms.

A trainer's package holds the following files, with one table for each named thing:

- `generations.toml`: a table for each generation of the trainer, oldest first, with `released`,
  `place` (where its settings are in its own config), `says`, `source`, and `claims`: rules by which
  a configuration file is recognised as its own (`ClaimRule`). `[header]` may list
  `renamed_presets`: the successive names of one preset, oldest first; and `former_presets`: names
  that occur only in documents or unreleased code, with the preset that each stands for.
- `keys.toml`: a table `[FAMILY.KEY]` for each number that the trainer logs, by its name without
  prefix; `[KEY]` if all keys are of one family. Only `says` is required. `logged_by` names the
  generations that log the key (default: all), `detail` holds for each of them, the sub-table
  `generations` describes differences between them, and `losses` the formula of each policy loss.
  `example` describes the data on which the key is computed, `numbers` the result, as one number or
  as a sub-table by generation. `result` says where rcdiag has the number if it is not among the
  trainer's metrics; or that it is `not observable`, because it needs more than a table holds, or
  `a constant`. `[header]` has the `families` of keys: their prefix by generation, and defaults for
  the keys of the family. `loggers` are prefixes that the trainer's logger may add to any key.
- `settings.toml`: a table for each setting, with `says` and, if they differ, `generations`; and the
  columns that `rcdiag.trainers.settings_table` reads.
- `terms.toml`: what a name that rcdiag explains means in this trainer: a policy loss, an
  aggregation, a setting of a loss, a word of the glossary. Either a text, or a table of `says` (a
  text or a sub-table by generation) and `numbers` (the results on the example of the name). A table
  may have several names, separated by commas. The file is optional.
- `findings.toml`: a table for each finding on settings of the trainer, by slug, with the fields of
  `FindingWords`. The file is optional.

If two trainers share code, `[header.also]` of `keys.toml` names the other's `package` and the
`families` of its keys that this one logs too; that of `settings.toml` names the shared settings
(`names`) and the fields of its `header` that hold here too. The other trainer has one generation.

A key or setting may have `also_called`: names that only documents use, each with its place there. A
threshold may have `typical`: the ranges that the document `typical_by` recommends. A text may
contain `{name}` for a text from `[header.texts]`. If the name of a key contains a placeholder of
`[header.placeholders.name]`, the table stands for one key per value; its texts may then contain
texts from the value's own table, and `numbers` is a sub-table by value.
`rcdiag.trainers.toml_file` describes how groups of generations are written, and where the tables of
a single-module trainer are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import field
from msgspec.structs import replace

from rcdiag.entry import Entry
from rcdiag.trainers.conditions import ClaimRule, Conditions
from rcdiag.trainers.toml_file import TomlFile, TomlTable, TomlWords, expand, spread

Texts = Mapping[str, str]


class GenerationWords(TomlWords, frozen=True, kw_only=True):
    """One generation of a trainer: when it was released and where its settings are."""

    name: str
    says: str
    released: str
    place: str
    source: str
    claims: tuple[ClaimRule, ...] = ()  # by which files are recognised as its own
    written: bool = True  # whether rcdiag writes settings for it
    on_sweep_page: bool = False  # shown there in addition to the newest generation of each trainer
    # Forks of the trainer that use its correction code -> what was read of them, and until when.
    also_called: Texts = field(default_factory=dict)

    @property
    def until(self) -> str:
        """The version and date of the trainer up to which the generation is known, as a phrase."""
        return f"released {self.released}" if self.released[:1].isdigit() else self.released


class _KeyTexts(TomlWords, frozen=True, kw_only=True):
    """The texts on a key that hold in every generation."""

    says: str
    formula: str | None = None
    direction: str | None = None
    unit: str | None = None
    healthy: str | None = None
    example: str | None = None  # the data on which the numbers are computed, or a command
    result: str | None = None  # where rcdiag has the number if not in the trainer's metrics
    see: tuple[str, ...] = ()
    also_called: Texts = field(default_factory=dict)  # full keys that only documents use -> place


class KeyWords(_KeyTexts, frozen=True, kw_only=True):
    """The texts on one key that a trainer logs; generations are in the trainer's order."""

    name: str  # without prefix
    family: str
    names: Texts  # generation -> the key as it is logged; only generations that log it
    generations: Texts  # generation -> what differs there; "" if nothing does
    note: str | None = None  # holds for each key of the family
    numbers: Mapping[str, float]  # generation -> the key's value on the example
    losses: Texts  # policy loss -> its formula
    pattern: str | None = None  # the table's name, if it contains a placeholder
    loggers: tuple[str, ...] = ()

    def entry(self) -> Entry:
        """Describe what the key means in this trainer."""
        return Entry(
            what=" ".join(filter(None, [self.says, self.note])),
            formula=self.formula_of_losses or self.formula,
            direction=self.direction,
            units=self.unit or "none",
            healthy=self.healthy,
            example=self.example,
            see=self.see,
            also_called=self.also_called,
        )

    @property
    def formula_of_losses(self) -> str:
        """The formulas of the policy losses that log the key, if each has its own."""
        losses_by_formula: dict[str, list[str]] = {}
        for loss, formula in self.losses.items():
            losses_by_formula.setdefault(formula, []).append(loss)
        return "; ".join(f"{', '.join(of)}: {text}" for text, of in losses_by_formula.items())

    @property
    def spellings(self) -> tuple[str, ...]:
        """Return the key without prefix, and with every prefix under which it is logged."""
        plain = (self.name, *self.names.values())
        return tuple(
            dict.fromkeys([*plain, *(logger + key for logger in self.loggers for key in plain)])
        )


class SettingWords(TomlWords, frozen=True, kw_only=True):
    """The meaning of a trainer's setting; `generations` are in the trainer's order."""

    name: str
    says: str
    generations: Texts = field(default_factory=dict)  # generation -> what differs there
    unit: str | None = None
    healthy: str | None = None
    example: str | None = None
    see: tuple[str, ...] = ()
    also_called: Texts = field(default_factory=dict)  # names that only documents use -> place
    # For a threshold: what it bounds (a level, or an option of rejection) -> the recommended range,
    # according to `typical_by`.
    typical: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    typical_by: str = ""

    def entry(self) -> Entry:
        """Describe what the setting means, for all generations."""
        ranges = [f"{low:g} to {high:g} for {of}" for of, (low, high) in self.typical.items()]
        typical = f"{self.typical_by} names {', '.join(ranges)}" if ranges else None
        return Entry(
            what=self.says,
            units=self.unit,
            healthy="; ".join(filter(None, [self.healthy, typical])) or None,
            example=self.example,
            see=self.see,
            also_called=self.also_called,
        )


class TermWords(TomlWords, frozen=True, kw_only=True):
    """What a name that rcdiag explains means in a trainer, by generation, in order."""

    name: str
    says: Texts
    numbers: Mapping[str, float]  # generation -> the result on the example of the name


class FindingWords(TomlWords, frozen=True, kw_only=True):
    """A finding on the settings of a trainer: its meaning, and its conditions."""

    slug: str
    severity: str  # error, warning or note
    asks: str  # the question that it answers
    says: str
    fix: str
    example: str = ""
    source: str = ""
    see: tuple[str, ...] = ()
    # If `message` is empty, the trainer's code makes the finding; otherwise the conditions decide.
    message: str = ""  # settings in braces are filled in
    when: Conditions = field(default_factory=dict)  # on settings, including defaults
    where: Conditions | None = None  # on keys of the configuration file, by their full dotted name
    remedy: str = ""  # the advice of this finding, if it is more specific than `fix`
    evidence: tuple[str, ...] = ()  # names of settings


class _KeyRow(_KeyTexts, frozen=True, kw_only=True):
    """The table of a key as it is written in the file."""

    numbers: float | dict[str, float] = field(default_factory=dict)
    logged_by: str = ""
    detail: str = ""
    generations: dict[str, str] = field(default_factory=dict)
    losses: dict[str, str] = field(default_factory=dict)


class _Family(TomlWords, frozen=True, kw_only=True):
    """Fields shared by the keys of a family; a key may override all but `prefix` and `note`."""

    prefix: str | dict[str, str]
    logged_by: str = ""
    direction: str | None = None
    note: str | None = None
    example: str | None = None
    unit: str | None = None
    detail: str = ""


class Also(TomlWords, frozen=True, kw_only=True):
    """What this trainer shares with another trainer."""

    package: str
    families: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    header: tuple[str, ...] = ()


class _KeysHeader(TomlWords, frozen=True, kw_only=True):
    families: dict[str, _Family] = field(default_factory=dict)
    loggers: tuple[str, ...] = ()
    # Placeholder -> value -> the texts for that value.
    placeholders: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    also: Also | None = None


class _TermRow(TomlWords, frozen=True, kw_only=True):
    says: str | dict[str, str]
    numbers: float | dict[str, float] = field(default_factory=dict)


class FormerPreset(TomlWords, frozen=True, kw_only=True):
    """A preset under a name that no generation uses: which preset it is, and where it is named."""

    preset: str
    where: str
    settings: dict[str, Any] = field(default_factory=dict)  # differences from the preset


class _GenerationsHeader(TomlWords, frozen=True, kw_only=True):
    renamed_presets: tuple[tuple[str, ...], ...] = ()
    former_presets: dict[str, FormerPreset] = field(default_factory=dict)


@cache
def read_generations(package: str) -> dict[str, GenerationWords]:
    """Return the generations of the trainer in `package`, oldest first."""
    tables = TomlFile.read(package, "generations.toml").tables()
    return {table.name: table.as_a(GenerationWords, name=table.name) for table in tables}


@cache
def read_renamed_presets(package: str) -> dict[str, tuple[str, ...]]:
    """Return for each preset name the names of the same preset in other generations."""
    header = TomlFile.read(package, "generations.toml").table("header").as_a(_GenerationsHeader)
    return {
        name: tuple(other for other in chain if other != name)
        for chain in header.renamed_presets
        for name in chain
    }


@cache
def read_former_presets(package: str) -> dict[str, FormerPreset]:
    """Return presets under names that occur only in documents or unreleased code, by name."""
    return (
        TomlFile.read(package, "generations.toml")
        .table("header")
        .as_a(_GenerationsHeader)
        .former_presets
    )


def own_setting(package: str, name: str) -> tuple[str, str] | None:
    """Return the setting that documents call `name`, and the place where they do; else None."""
    return next(
        (
            (setting, words.also_called[name])
            for setting, words in read_settings(package).items()
            if name in words.also_called
        ),
        None,
    )


@cache
def read_settings(package: str) -> dict[str, SettingWords]:
    """Return the meaning of the settings of the trainer in `package`, by name."""
    file, order = TomlFile.read(package, "settings.toml"), list(read_generations(package))
    header = file.table("header")
    texts = header.part("texts", dict[str, str], {})
    settings = {}
    if (also := header.part("also", Also)) is not None:
        others = read_settings(also.package)
        settings = {
            name: replace(others[name], generations=dict.fromkeys(order, "")) for name in also.names
        }
    for table in file.tables():  # the other fields are read by `settings_table`
        row = table.only(SettingWords.__struct_fields__).filled(texts)
        words = row.as_a(SettingWords, name=table.name)
        settings[table.name] = replace(words, generations=spread(words.generations, order, table))
    return settings


@cache
def read_terms(package: str) -> dict[str, TermWords]:
    """Return what names that rcdiag explains mean in the trainer in `package`."""
    file, order = TomlFile.read(package, "terms.toml", True), list(read_generations(package))
    terms = {}
    for name, value in file.content.items():
        table = file.as_table(name, {"says": value} if isinstance(value, str) else value)
        row = table.as_a(_TermRow)
        says, numbers = spread(row.says, order, table), spread(row.numbers, order, table)
        for name in map(str.strip, table.name.split(",")):
            terms[name] = TermWords(name=name, says=says, numbers=numbers)
    return terms


@cache
def read_findings(package: str) -> dict[str, FindingWords]:
    """Return the findings on settings of the trainer in `package`, by slug."""
    tables = TomlFile.read(package, "findings.toml", True).tables()
    return {table.name: table.as_a(FindingWords, slug=table.name) for table in tables}


@cache
def read_keys(package: str) -> dict[str, KeyWords]:
    """Return the keys that the trainer in `package` logs, without prefix, placeholders filled."""
    file, order = TomlFile.read(package, "keys.toml"), list(read_generations(package))
    header = file.table("header").as_a(_KeysHeader)
    keys = {} if header.also is None else _keys_of_another(header.also, header.loggers, order)
    for family, table in _tables_of_keys(file, header):
        for filled, pattern in _fillings(table, header):
            keys[filled.name] = _key(filled, pattern, family, header, order)
    return keys


def _tables_of_keys(file: TomlFile, header: _KeysHeader) -> Iterator[tuple[str, TomlTable]]:
    """Yield each key's family and table: `[FAMILY.KEY]`, or `[KEY]`, which is of the first family.

    Fields that a key does not set are taken from the family.
    """
    for table in file.tables():
        if not header.families:
            raise table.error(
                "the keys have no family", "`[header.families.NAME]` sets their prefix"
            )
        is_family = table.name in header.families
        name = table.name if is_family else next(iter(header.families))
        family = header.families[name]
        shared = {
            field: text
            for field in ("logged_by", "direction", "example", "unit", "detail")
            if (text := getattr(family, field))
        }
        for key, fields in (table.fields if is_family else {table.name: table.fields}).items():
            own = file.as_table(key, fields).fields
            yield name, TomlTable(file.path, key, {**shared, **own})


def _keys_of_another(
    also: Also, loggers: tuple[str, ...], order: Sequence[str]
) -> dict[str, KeyWords]:
    """Return the keys of those families that another trainer logs under the same names."""
    keys = {}
    for words in read_keys(also.package).values():
        if words.family in also.families:
            (name,) = set(words.names.values())
            (detail,) = set(words.generations.values())
            keys[words.name] = replace(
                words,
                names=dict.fromkeys(order, name),
                generations=dict.fromkeys(order, detail),
                numbers=dict.fromkeys(order, *words.numbers.values()) if words.numbers else {},
                loggers=loggers,
            )
    return keys


def _fillings(table: TomlTable, header: _KeysHeader) -> Iterator[tuple[TomlTable, str | None]]:
    """Yield a table with its placeholder filled, once per value, and its original name."""
    for placeholder, values in header.placeholders.items():
        if f"{{{placeholder}}}" not in table.name:
            continue
        numbers = table.part("numbers", dict[str, Any], {})
        if strange := numbers.keys() - values.keys():
            raise table.error(
                f"`numbers` has {min(strange)!r}, which is not a value of {placeholder}"
            )
        for value, texts in values.items():
            own = {"numbers": numbers[value]} if value in numbers else {}
            of_value = TomlTable(
                table.file, table.name, {**table.without(["numbers"]).fields, **own}
            )
            yield of_value.filled({**header.texts, **texts, placeholder: value}), table.name
        return
    yield table.filled(header.texts), None


def _key(
    table: TomlTable, pattern: str | None, name: str, header: _KeysHeader, order: Sequence[str]
) -> KeyWords:
    """Return the texts on a key from its filled table; `name` is the name of its family."""
    row, family = table.as_a(_KeyRow), header.families[name]
    logged_by = expand(row.logged_by, order, table) if row.logged_by else list(order)
    prefixes, own = spread(family.prefix, order, table), spread(row.generations, order, table)
    if strange := [generation for generation in own if generation not in logged_by]:
        raise table.error(f"`generations` has {strange[0]}, which does not log the key")
    texts = {text: getattr(row, text) for text in _KeyTexts.__struct_fields__}
    return KeyWords(
        **texts,
        name=table.name,
        family=name,
        names={generation: prefixes.get(generation, "") + table.name for generation in logged_by},
        generations={
            generation: "; ".join(filter(None, [row.detail, own.get(generation)]))
            for generation in logged_by
        },
        note=family.note,
        numbers=spread(row.numbers, logged_by, table),
        losses={
            loss.strip(): text for group, text in row.losses.items() for loss in group.split(",")
        },
        pattern=pattern,
        loggers=header.loggers,
    )
