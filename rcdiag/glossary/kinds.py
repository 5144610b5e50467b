"""A kind is a set of names that are explained alike: metrics, presets, fields of results, ...

To add a kind: a `Kind` in a module of this package, and its place in `PLACES`. A kind whose
definitions have a method `entry()` is one call of `registered`; one whose words are written down
here is one call of `by_hand`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.entry import Entry, first_clause

# Module and variable of every kind; a name that several kinds have is explained by the first.
# A module is imported when a name of it is asked for: most of them import every trainer.
PLACES = (
    "metrics.METRICS_OF_PAIRS",
    "metrics.PROFILES_OF_PAIRS",
    "vocabulary.LEVEL",
    "vocabulary.VERDICT",
    "rules.FINDINGS",
    "causes.KIND",
    "terms.KIND",
    "vocabulary.TREATMENT",
    "trainers.PRESETS",
    "options.KIND",
    "trainers.SETTINGS",
    "trainers.GENERATIONS",
    "estimators.FAMILIES_OF_SWEEP",
    "estimators.CANDIDATES_OF_SWEEP",
    "vocabulary.ANSWER",
    "vocabulary.ROLE",
    "definitions.BACKENDS_OF_POLICIES",
    "definitions.FORMATS",
    "definitions.LOGS",
    "losses.POLICY_LOSSES",
    "losses.REDUCTIONS",
    "losses.ADVANTAGE_FORMULAS",
    "choices.KIND",
    "losses.LOSS_SETTINGS",
    "rules.HEALTH",
    "rules.CONSTRAINTS_OF_SWEEP",
    "vocabulary.NAME_IN_RESULTS",
    "logged.KIND",
    "logged.METRICS_ELSEWHERE",
    "definitions.FIGURES_OF_REPORTS",
    "fields.KIND",  # gives way to all others
)


class Kind(Struct, frozen=True, kw_only=True):
    """Names that are explained alike, with what a list says of each and its entry."""

    title: str  # of a single one
    plural: str
    names: Callable[[], Iterable[str]]  # in the order of the list
    line: Callable[[str], str]  # what a list says about one of these names
    entry: Callable[[str], Entry]  # of one of these names, or of what `find` gave back
    find: Callable[[str], str | None] = lambda name: None  # a name that is not in the list
    aliases: Mapping[str, str] = field(default_factory=dict)

    def explain(self, name: str) -> Entry:
        """Return the entry of one of the names, under that name."""
        return replace(self.entry(name), name=name, kind=self.title)

    def lines(self) -> dict[str, str]:
        """Return what a list says about every name, in the order of the list."""
        return {name: self.line(name) for name in self.names()}


class Explained(Protocol):
    """A definition that answers for itself."""

    @property
    def says(self) -> str: ...

    def entry(self) -> Entry: ...


def registered(
    title: str, plural: str, definitions: Callable[[], Mapping[str, Explained]], **more: Any
) -> Kind:
    """Make a kind of definitions by the names under which they are listed."""
    own: dict[str, Any] = {
        "names": definitions,
        "line": lambda name: first_clause(definitions()[name].says),
        "entry": lambda name: definitions()[name].entry(),
    }
    return Kind(title=title, plural=plural, **(own | more))


def by_hand(title: str, plural: str, entries: Mapping[str, Entry], **more: Any) -> Kind:
    """Make a kind of entries that are written down one by one."""
    return Kind(
        title=title,
        plural=plural,
        names=lambda: entries,
        line=lambda name: first_clause(entries[name].what),
        entry=entries.__getitem__,
        **more,
    )


def kind_at(place: str) -> Kind:
    """Import and return the kind at one of `PLACES`."""
    module, _, variable = place.partition(".")
    kind: Kind = getattr(importlib.import_module(f"rcdiag.glossary.{module}"), variable)
    return kind


def kinds() -> Iterator[Kind]:
    """Return all kinds, in the order of `PLACES`."""
    return map(kind_at, PLACES)


def folded(name: str) -> str:
    """Write a name so that upper case, spaces, `-` and `_` make no difference."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def with_headings(names: Mapping[str, str]) -> dict[str, str]:
    """Return headings of the terminal's tables as aliases of what they stand for.

    A heading that means something else by itself is also explained as `heading.NAME`.
    """
    return {**names, **{f"heading.{heading}": name for heading, name in names.items()}}
