"""An entry explains one name; a kind is a set of names that are explained alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

LOG_RATIO = "log_ratio = target - behavior, in nats; tokens are sampled by the behavior policy"


def first_clause(what: str) -> str:
    """Return the first clause of an explanation, which fits into a list."""
    return re.split(r"[.;] ", what.rstrip("."))[0]


def folded(name: str) -> str:
    """Write a name so that upper case, spaces, `-` and `_` make no difference."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


class Entry(Struct, frozen=True, kw_only=True):
    """An entry holds all that rcdiag says about one name; a part that does not apply is None."""

    name: str
    kind: str
    what: str
    formula: str | None = None
    direction: str | None = None
    units: str | None = None
    healthy: str | None = None  # ideal, bounds, and who says so
    generations: Mapping[str, str] = field(default_factory=dict)  # trainers -> what it is there
    example: str | None = None
    # Heading -> text of what only some kinds have, such as how a cause shows; in reading order.
    parts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)  # title of a page or thread -> its URL
    see: tuple[str, ...] = ()


class Kind(Struct, frozen=True, kw_only=True):
    """A kind is a set of names that are explained alike.

    To add a kind: a module with one, and a line in `kinds.py`.
    """

    title: str  # of a single one
    plural: str
    names: Callable[[], Iterable[str]]  # in the order of the list
    line: Callable[[str], str]  # what a list says about one of these names
    entry: Callable[[str], Entry]  # of one of these names, or of what `find` gave back
    find: Callable[[str], str | None] = lambda name: None  # a name that is not in the list
    aliases: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> dict[str, str]:
        """Return what a list says about every name, in the order of the list."""
        return {name: self.line(name) for name in self.names()}


def with_headings(names: Mapping[str, str]) -> dict[str, str]:
    """Return headings of the terminal's tables as aliases of what they stand for.

    A heading that means something else by itself is told there too, by its name with `heading.`.
    """
    return {**names, **{f"heading.{heading}": name for heading, name in names.items()}}


unnamed_entry = partial(Entry, name="", kind="")  # `by_hand` gives it its name and kind


def by_hand(
    title: str, plural: str, entries: Mapping[str, Entry], aliases: Mapping[str, str] | None = None
) -> Kind:
    """Make a kind whose entries are written down one by one, without name and kind."""
    return Kind(
        title=title,
        plural=plural,
        names=lambda: entries,
        line=lambda name: first_clause(entries[name].what),
        entry=lambda name: replace(entries[name], name=name, kind=title),
        aliases=aliases or {},
    )
