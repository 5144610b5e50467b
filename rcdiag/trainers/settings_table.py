"""Read a trainer's `settings.toml`: the type, place and written form of each setting.

Besides its texts (see `rcdiag.trainers.toml_words`) a setting has the columns of `Setting`. Some of
them may differ between generations:

- `default`, `type` and `choices` are one value, or a sub-table by generation; the default of
  `default` is null.
- `since` and `until` name the first and the last generation that has the setting.

`[header]` has the fields of `Header`, which concern all settings together.
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
    """Settings with which the trainer itself stops with an error."""


class NotComputed(Refused):
    """Settings that the trainer accepts, but that need data which no table has."""


class UnknownValue(Refused):
    """A value that a setting does not have in the version known to rcdiag: newer, or misspelt.

    `assumed` is the setting's default, which plans use instead.
    """

    def __init__(
        self, message: str, hint: str = "", setting: str = "", assumed: Any = None
    ) -> None:
        super().__init__(message, hint)
        self.setting, self.assumed = setting, assumed


class Write(TomlWords, frozen=True, kw_only=True):
    """How a setting is written under some conditions."""

    # On the facts of a correction: see `rcdiag.trainers.writing`.
    when: Conditions = field(default_factory=dict)
    value: Any = msgspec.UNSET  # write this value,
    null: bool = False  # null,
    text: str = ""  # this text with facts in braces,
    fact: str = ""  # or the value of this fact; if there is none, the setting is left out
    unbounded: float | None = None  # written for an infinite bound
    comment: str = ""  # written above the setting


class Setting(TomlWords, frozen=True, kw_only=True):
    """A setting of one generation of a trainer."""

    name: str
    default: Any = None
    type: Type = "any"
    choices: tuple[Any, ...] = ()
    null: bool = False  # whether null is allowed too
    hint: str = ""  # the hint of an error, instead of the default value or after the choices
    # Dotted names under which a configuration file is searched, at any depth; each may contain
    # {name}. The setting is written under the first. Default: the name within the header's `path`.
    at: tuple[str, ...] = ()
    write: Write | tuple[Write, ...] = ()  # the first one whose conditions hold is used

    @property
    def ways(self) -> tuple[Write, ...]:
        """Return the ways to write the setting."""
        return (self.write,) if isinstance(self.write, Write) else self.write

    def checked(self, value: Any) -> Any:
        """Return a value in the form that the trainer uses; Refused if the trainer stops on it."""
        if self.type == "any" or (self.null and value is None):
            return value
        if self.type == "choice":
            if value in self.choices:
                return value
            allowed = [*(["null"] if self.null else []), *map(str, self.choices)]
            guess = did_you_mean(str(value), list(map(str, self.choices)))
            raise UnknownValue(
                f"{self.name}: {value!r} is not one of its values",
                f"{guess}one of {', '.join(allowed)}{self.hint and f'; {self.hint}'}",
                self.name,
                self.default,
            )
        if self.type == "switch":
            return self._wanted(isinstance(value, bool), value, "true or false")
        if self.type == "positive or text" and isinstance(value, str):
            return value
        number = isinstance(value, (int, float))
        if self.type == "number":  # true counts as 1, as in the trainers
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
    """The settings of a run, including defaults; each is checked when it is read.

    A trainer stops on an invalid value only if it reads the setting, not if the feature is off.
    """

    def __init__(self, table: Mapping[str, Setting], values: Config) -> None:
        self._table, self._values = table, values

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        return self._table[name].checked(value) if name in self._table else value

    def unchecked(self, name: str) -> Any:
        """Return a setting as it was given, without checking its type."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Ignored(TomlWords, frozen=True, kw_only=True):
    """Settings that the trainer accepts but ignores, under conditions on its settings."""

    says: str  # one sentence, or with {name}: one for each of `settings` that is not the default
    when: Conditions = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    since: str = ""
    until: str = ""


class Lack(TomlWords, frozen=True, kw_only=True):
    """Corrections that a trainer's settings cannot express, by conditions on their facts."""

    says: str  # what is missing, after "TRAINER has no"; may contain facts in braces, and {odd}
    when: Conditions
    since: str = ""
    until: str = ""


class Chosen(TomlWords, frozen=True, kw_only=True):
    """Where a file chooses one of several words, and rcdiag's names for them."""

    at: Names
    words: dict[str, str] = field(default_factory=dict)  # the trainer's word -> rcdiag's name
    same: tuple[str, ...] = ()  # words that rcdiag uses too; "*" is every policy loss
    what: str = ""  # noun in the error on an unknown word ("a policy loss"); "": ignore such words


class LossColumns(TomlWords, frozen=True, kw_only=True):
    """The keys of a configuration that choose the policy loss: dotted names, at any depth."""

    loss: Chosen | None = None
    aggregation: Chosen | None = None
    scale_factor: Names = ()
    # By rcdiag's names of a loss's settings. Of several names, the first one that is set is used.
    numbers: dict[str, Names] = field(default_factory=dict)
    values: dict[str, Names] = field(default_factory=dict)  # words and booleans


class Header(TomlWords, frozen=True, kw_only=True):
    """What concerns all settings of a trainer together."""

    path: str = ""  # dotted name of the block with the settings that have no `at`
    at: tuple[str, ...] = ()  # the `at` of every setting that has none of its own
    beside: tuple[str, ...] = ()  # keys of the trainer that look like settings but are not
    blocks: tuple[str, ...] = ()  # settings that are switched on if a block of others is present
    # Dotted names of blocks that only contain settings and `beside`: any other key in them is
    # unknown to rcdiag.
    closed: tuple[str, ...] = ()
    form: Form = "yaml"  # the format in which settings are written
    needs: tuple[str, ...] = ()  # what the user must set in addition, in words
    hydra: bool = False  # the command line takes settings as `path.name=value`
    ignored: tuple[Ignored, ...] = ()
    lacks: tuple[Lack, ...] = ()
    loss: LossColumns = LossColumns()
    # Settings of policy losses that only this trainer has: the fields of a `LossSetting`.
    loss_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    # For texts: see `rcdiag.trainers.toml_words`.
    texts: dict[str, str] = field(default_factory=dict)
    also: Also | None = None  # settings that another trainer has too


class SettingsTable(msgspec.Struct, frozen=True):
    """The settings of one generation, and the header of all settings."""

    header: Header
    settings: Mapping[str, Setting]

    def defaults(self) -> dict[str, Any]:
        return {name: setting.default for name, setting in self.settings.items()}

    def places(self) -> dict[str, tuple[str, ...]]:
        """Return the dotted names of the settings that are not in the header's `path`."""
        return {name: setting.at for name, setting in self.settings.items() if setting.at}


@cache
def read_tables(package: str) -> dict[str, SettingsTable]:
    """Return the table of each generation of the trainer in `package`, oldest first."""
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
        """Return the rules that apply to a generation."""
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
    """Return the generations `since` to `until`, inclusive; empty names mean first and last."""
    return expand(f"{since or order[0]} to {until or order[-1]}", order, table)


def _placed(setting: Setting, header: Header) -> Setting:
    """Return a setting with {name} filled in its dotted names."""
    at = tuple(place.format(name=setting.name) for place in setting.at or header.at)
    return replace(setting, at=at)


def read_loss_settings(package: str) -> dict[str, LossSetting]:
    """Return the settings of policy losses that only this trainer has, by name."""
    file = TomlFile.read(package, "settings.toml")
    rows = file.table("header").as_a(Header).loss_settings
    return {
        name: TomlTable(file.path, f"header.loss_settings.{name}", row).as_a(LossSetting, name=name)
        for name, row in rows.items()
    }
