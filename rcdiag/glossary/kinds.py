"""A kind is a set of names that are explained alike: metrics, presets, fields of results, ...

To add a kind: a `NameKind` in a module of this package, and its place in `PLACES`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.entry import Entry, first_clause

# Module and variable of every kind; a name that several kinds have is explained by the first.
# A module is imported when a name of it is asked for: most of them import every trainer.
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
    "trainers.WITHOUT_CORRECTION",
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
    "logged.METRICS_ELSEWHERE",
    "diagnosis.VERL_CHECK",
    "diagnosis.LOG_RELATIONS",
    "definitions.FIGURES_OF_REPORTS",
    "fields.FIELDS",  # gives way to all others
)


class NameKind(Struct, frozen=True, kw_only=True):
    """Names that are explained alike: the definition of each, and what is read off it.

    A definition answers by its own `entry()`; `line` and `entry` are for kinds whose definitions
    do not know their name in the list, or what trainers make of them.
    """

    title: str  # of a single one
    plural: str
    definitions: Callable[[], Mapping[str, Any]]  # by name, in the order of the list
    # The definition of a name that is listed, or that `find` gave back, where a quicker way exists.
    definition: Callable[[str], Any] | None = None
    line: Callable[[Any], str] = lambda definition: first_clause(definition.says)
    entry: Callable[[str, Any], Entry] = lambda name, definition: definition.entry()
    find: Callable[[str], str | None] = lambda name: None  # a name that is not in the list
    aliases: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> Iterable[str]:
        """Return the names in the order of the list."""
        return self.definitions()

    def _definition(self, name: str) -> Any:
        return self.definitions()[name] if self.definition is None else self.definition(name)

    def explain(self, name: str) -> Entry:
        """Return the entry of one of the names, under that name."""
        return replace(self.entry(name, self._definition(name)), name=name, kind=self.title)

    def line_of(self, name: str) -> str:
        """Return what a list says about one of the names."""
        return self.line(self._definition(name))

    def lines(self) -> dict[str, str]:
        """Return what a list says about every name, in the order of the list."""
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
    """Write a name so that upper case, spaces, `-`, `_` and the dashes of a flag do not matter."""
    return re.sub(r"[\s_-]+", "_", name.strip().lstrip("-").lower())


def also_called(definitions: Mapping[str, Any]) -> dict[str, str]:
    """Return the names that only documents have for some definitions, as aliases of theirs."""
    return {
        other: name for name, definition in definitions.items() for other in definition.also_called
    }


def with_headings(names: Mapping[str, str]) -> dict[str, str]:
    """Return headings of the terminal's tables as aliases of what they stand for.

    A heading that means something else by itself is also explained as `heading.NAME`.
    """
    return {**names, **{f"heading.{heading}": name for heading, name in names.items()}}
