"""Read a trainer's `settings.toml`: what each setting is, where it is set, how it is written.

Beside its words (see `rcdiag.trainers.toml_words`) a setting has the columns of `Setting`. Some of
them may differ between generations:

- `default`, `type` and `choices` are one value, or a sub-table by generation; without a default it
  is null.
- `since` and `until` name the first and the last generation that has the setting.

`[header]` has what holds for all settings together: the fields of `Header`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import field
from msgspec.structs import replace

from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.formats import yaml_value
from rcdiag.losses.settings import LossSetting
from rcdiag.trainers.conditions import Conditions
from rcdiag.trainers.settings_text import Form
from rcdiag.trainers.toml_file import TomlFile, TomlTable, TomlWords, expand, spread
from rcdiag.trainers.toml_words import Also, SettingWords, read_generations

Config = Mapping[str, Any]
Names = str | tuple[str, ...]
Type = Literal["any", "number", "not negative", "positive", "positive or text", "switch", "choice"]


class Refused(RcdiagError):
    """Settings on which the trainer itself would stop."""


class NotComputed(Refused):
    """Settings that the trainer takes, and that need what no table has."""


class UnknownValue(Refused):
    """A word that a setting did not have at the version that rcdiag knows: newer, or misspelt.

    `assumed` is the setting's default, which plans take in its place.
    """

    def __init__(
        self, message: str, hint: str = "", setting: str = "", assumed: Any = None
    ) -> None:
        super().__init__(message, hint)
        self.setting, self.assumed = setting, assumed


class Write(TomlWords, frozen=True, kw_only=True):
    """How a setting is written where some conditions hold."""

    # On the facts of a correction: see `rcdiag.trainers.writing`.
    when: Conditions = field(default_factory=dict)
    value: Any = msgspec.UNSET  # it is written as this value,
    null: bool = False  # as null,
    text: str = ""  # as this text with facts in braces,
    fact: str = ""  # or as the value of a fact; it is left out where there is no such fact
    unbounded: float | None = None  # in place of a bound that bounds nothing
    comment: str = ""  # above the setting


class Setting(TomlWords, frozen=True, kw_only=True):
    """A setting of one generation of a trainer."""

    name: str
    default: Any = None
    type: Type = "any"
    choices: tuple[Any, ...] = ()
    null: bool = False  # null is a value of it as well
    hint: str = ""  # what an error advises, if not the default
    # Dotted names under which it is looked for at any depth of a configuration file, each of which
    # may hold {name}. It is written under the first. Without any it stands in the header's `path`.
    at: tuple[str, ...] = ()
    write: Write | tuple[Write, ...] = ()  # of several the first whose conditions hold

    @property
    def ways(self) -> tuple[Write, ...]:
        """Return the ways in which it is written."""
        return (self.write,) if isinstance(self.write, Write) else self.write

    def checked(self, value: Any) -> Any:
        """Return a value as the trainer takes it; Refused where the trainer stops on it."""
        if self.type == "any" or (self.null and value is None):
            return value
        if self.type == "choice":
            if value in self.choices:
                return value
            allowed = [*(["null"] if self.null else []), *map(str, self.choices)]
            guess = did_you_mean(str(value), list(map(str, self.choices)))
            raise UnknownValue(
                f"{self.name}: {value!r} is none of its values",
                f"{guess}one of {', '.join(allowed)}",
                self.name,
                self.default,
            )
        if self.type == "switch":
            return self._wanted(isinstance(value, bool), value, "true or false")
        if self.type == "positive or text" and isinstance(value, str):
            return value
        number = isinstance(value, (int, float))
        if self.type == "number":  # true is 1, as it is to the trainers
            return float(self._wanted(number, value, "a number" + " or null" * self.null))
        number = number and not isinstance(value, bool)
        if self.type.startswith("positive"):
            return float(self._wanted(number and value > 0, value, "a number above 0"))
        return float(self._wanted(number and value >= 0, value, "a number, 0 or above"))

    def _wanted(self, holds: bool, value: Any, expected: str) -> Any:
        if holds:
            return value
        shown = "null" if value is None and self.type == "number" else repr(value)
        hint = f"give {'true or false' if self.type == 'switch' else 'a number'}"
        if self.default is not None:
            hint = f"its default is {yaml_value(self.default)}"
        raise Refused(f"{self.name}: wanted {expected}, got {shown}", self.hint or hint)


class Settings(Mapping[str, Any]):
    """The settings of a run, defaults filled in, each of which is checked when it is read.

    A trainer stops on a wrong value of a setting that it reads; one that is switched off it does
    not look at.
    """

    def __init__(self, table: Mapping[str, Setting], values: Config) -> None:
        self._table, self._values = table, values

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        return self._table[name].checked(value) if name in self._table else value

    def unchecked(self, name: str) -> Any:
        """Return a setting as it was given, whatever its type."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Ignored(TomlWords, frozen=True, kw_only=True):
    """Settings that the trainer takes and does nothing with, under conditions on its settings."""

    says: str  # one sentence, or one for each of `settings`, as {name}, that is not the default
    when: Conditions = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    since: str = ""
    until: str = ""


class Lack(TomlWords, frozen=True, kw_only=True):
    """Corrections that the trainer has no settings for, by conditions on their facts."""

    says: str  # what it lacks, after "TRAINER has no"; may hold facts in braces, and {odd}
    when: Conditions
    since: str = ""
    until: str = ""


class Chosen(TomlWords, frozen=True, kw_only=True):
    """Where a file chooses one word of several, and what rcdiag calls each of them."""

    at: Names
    words: dict[str, str] = field(default_factory=dict)  # the trainer's word -> rcdiag's name
    same: tuple[str, ...] = ()  # words that are rcdiag's names; "*" is every policy loss
    what: str = ""  # in the error on another word: "a policy loss"; "": another word says nothing


class LossColumns(TomlWords, frozen=True, kw_only=True):
    """Where a file says which policy loss an update takes: dotted names, found at any depth."""

    loss: Chosen | None = None
    aggregation: Chosen | None = None
    scale_factor: Names = ()
    # By rcdiag's names of a loss's settings. Of several names the first counts that is set.
    numbers: dict[str, Names] = field(default_factory=dict)
    values: dict[str, Names] = field(default_factory=dict)  # words and switches


class Header(TomlWords, frozen=True, kw_only=True):
    """What holds for all settings of a trainer together."""

    path: str = ""  # the dotted name of the block in which settings without `at` stand
    at: tuple[str, ...] = ()  # of every setting that has no `at` of its own
    beside: tuple[str, ...] = ()  # keys of the trainer that resemble settings and are none
    blocks: tuple[str, ...] = ()  # settings that a block of others sets by being there
    # Dotted names of blocks that hold nothing but settings and `beside`, so that another key in
    # them is one that rcdiag does not know.
    closed: tuple[str, ...] = ()
    form: Form = "yaml"  # in which settings are written
    needs: tuple[str, ...] = ()  # what a user has to set as well, in words
    hydra: bool = False  # the command line takes settings as `path.name=value`
    ignored: tuple[Ignored, ...] = ()
    lacks: tuple[Lack, ...] = ()
    loss: LossColumns = LossColumns()
    # Settings of policy losses that the trainer alone has: the fields of a `LossSetting`.
    loss_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    # For words: see `rcdiag.trainers.toml_words`.
    texts: dict[str, str] = field(default_factory=dict)
    also: Also | None = None  # settings that another trainer has as well


class SettingsTable(msgspec.Struct, frozen=True):
    """The settings of one generation, and what holds for all of them together."""

    header: Header
    settings: Mapping[str, Setting]

    def defaults(self) -> dict[str, Any]:
        return {name: setting.default for name, setting in self.settings.items()}

    def places(self) -> dict[str, tuple[str, ...]]:
        """Return the dotted names of the settings that do not stand in the header's `path`."""
        return {name: setting.at for name, setting in self.settings.items() if setting.at}


@cache
def read_tables(package: str) -> dict[str, SettingsTable]:
    """Return the table of each generation of the trainer in `package`, the oldest first."""
    file, order = TomlFile.read(package, "settings.toml"), list(read_generations(package))
    top = file.table("header")
    header = top.as_a(Header)
    settings: dict[str, dict[str, Setting]] = {generation: {} for generation in order}
    if (also := header.also) is not None:
        ((_, other),) = read_tables(also.package).items()
        header = replace(header, **{name: getattr(other.header, name) for name in also.header})
        for name in also.names:
            settings[order[-1]][name] = _placed(other.settings[name], header)
    for table in file.tables():
        for generation, setting in _by_generation(table, header, order).items():
            settings[generation][table.name] = setting

    def of(generation: str, rules: Iterable[Any]) -> tuple[Any, ...]:
        """Return the rules that hold for a generation."""
        return tuple(
            rule for rule in rules if generation in _from_to(top, order, rule.since, rule.until)
        )

    return {
        generation: SettingsTable(
            replace(
                header,
                ignored=of(generation, header.ignored),
                lacks=of(generation, header.lacks),
            ),
            settings[generation],
        )
        for generation in order
    }


def _by_generation(table: TomlTable, header: Header, order: Sequence[str]) -> dict[str, Setting]:
    """Read the columns of a setting for each generation that has it."""
    having = _from_to(table, order, table.part("since", str, ""), table.part("until", str, ""))
    columns = table.without((*SettingWords.__struct_fields__, "since", "until"))
    differ = {
        name: spread(value, order, table)
        for name, value in columns.fields.items()
        if name in ("default", "type", "choices")
    }
    columns = columns.without(differ)

    def of(generation: str) -> Setting:
        own = {name: each[generation] for name, each in differ.items() if generation in each}
        return _placed(columns.as_a(Setting, name=table.name, **own), header)

    return {generation: of(generation) for generation in having}


def _from_to(table: TomlTable, order: Sequence[str], since: str, until: str) -> list[str]:
    """Return the generations from one to another, both included; all of them without names."""
    return expand(f"{since or order[0]} to {until or order[-1]}", order, table)


def _placed(setting: Setting, header: Header) -> Setting:
    """Return a setting with its name in the place of {name} in the dotted names."""
    at = tuple(place.format(name=setting.name) for place in setting.at or header.at)
    return replace(setting, at=at)


def read_loss_settings(package: str) -> dict[str, LossSetting]:
    """Return the settings of policy losses that the trainer alone has, by their names."""
    file = TomlFile.read(package, "settings.toml")
    rows = file.table("header").as_a(Header).loss_settings
    return {
        name: TomlTable(file.path, f"header.loss_settings.{name}", row).as_a(LossSetting, name=name)
        for name, row in rows.items()
    }
