"""Kinds of names, each explained in its own way: metrics, presets, fields of results, ...

To add a kind, write a `NameKind` in a module of this package, and add its place to `PLACES`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.entry import Entry, first_clause

# Module and variable of each kind; a name that several kinds have is explained by the first.
# A module is imported only when one of its names is asked for: most import every trainer.
PLACES = (
    "metrics.METRICS_OF_PAIRS",
    "metrics.PROFILES_OF_PAIRS",
    "words.LEVEL",
    "words.VERDICT",
    "diagnosis.FINDINGS",
    "diagnosis.CAUSES_OF_MISMATCH",
    "words.TERM",
    "words.TREATMENT",
    "trainers.PRESETS",
    "options.OPTIONS_OF_REJECTION",
    "trainers.SETTINGS",
    "trainers.GENERATIONS",
    "trainers.NOT_COMPUTED",
    "estimators.FAMILIES_OF_SWEEP",
    "estimators.CANDIDATES_OF_SWEEP",
    "words.ANSWER",
    "words.ROLE",
    "definitions.BACKENDS_OF_POLICIES",
    "definitions.FORMATS",
    "definitions.LOGS",
    "losses.POLICY_LOSSES",
    "losses.REDUCTIONS",
    "losses.ADVANTAGE_FORMULAS",
    "words.CHOICE",
    "losses.LOSS_SETTINGS",
    "diagnosis.HEALTH",
    "diagnosis.CONSTRAINTS_OF_SWEEP",
    "words.NAME",
    "logged.KEYS",
    "diagnosis.VERL_CHECK",
    "diagnosis.LOG_RELATIONS",
    "definitions.FIGURES_OF_REPORTS",
    "fields.FIELDS",  # must be last: it skips names that another kind has
)


class NameKind(Struct, frozen=True, kw_only=True):
    """A kind of names: the definition of each name, and the entry made from it.

    A definition gives its own `entry()`. `line` and `entry` replace it for kinds whose definitions
    do not know their listed name, or how trainers differ.
    """

    title: str  # singular
    plural: str
    definitions: Callable[[], Mapping[str, Any]]  # by name, in the order of the list
    # A faster way to the definition of a name that is listed, or that `find` returned.
    definition: Callable[[str], Any] | None = None
    line: Callable[[Any], str] = lambda definition: first_clause(definition.says)
    entry: Callable[[str, Any], Entry] = lambda name, definition: definition.entry()
    find: Callable[[str], str | None] = lambda name: None  # for names that are not in the list
    aliases: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> Iterable[str]:
        """Return the names in the order of the list."""
        return self.definitions()

    def _definition(self, name: str) -> Any:
        return self.definitions()[name] if self.definition is None else self.definition(name)

    def explain(self, name: str) -> Entry:
        """Return the entry of a name."""
        return replace(self.entry(name, self._definition(name)), name=name, kind=self.title)

    def line_of(self, name: str) -> str:
        """Return the line that a list has for a name."""
        return self.line(self._definition(name))

    def lines(self) -> dict[str, str]:
        """Return the line that a list has for each name, in order."""
        return {name: self.line(definition) for name, definition in self.definitions().items()}


def kind_at(place: str) -> NameKind:
    """Import and return the kind at one of `PLACES`."""
    module, _, variable = place.partition(".")
    kind: NameKind = getattr(importlib.import_module(f"rcdiag.glossary.{module}"), variable)
    return kind


def kinds() -> Iterator[NameKind]:
    """Return all kinds, in the order of `PLACES`."""
    return map(kind_at, PLACES)


def folded(name: str) -> str:
    """Normalise a name: lower case, `_` for spaces and `-`, without the dashes of a flag."""
    return re.sub(r"[\s_-]+", "_", name.strip().lstrip("-").lower())


def also_called(definitions: Mapping[str, Any]) -> dict[str, str]:
    """Return aliases: names that only documents use -> the name of the definition."""
    return {
        other: name for name, definition in definitions.items() for other in definition.also_called
    }


def with_headings(names: Mapping[str, str]) -> dict[str, str]:
    """Return headings of the terminal's tables as aliases of the names that they stand for.

    A heading that is itself a name with another meaning is also explained as `heading.NAME`.
    """
    return {**names, **{f"heading.{heading}": name for heading, name in names.items()}}
