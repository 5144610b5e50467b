"""What is said about one name, and what a kind of names is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

LOG_RATIO = "log_ratio = target - behavior, in nats; tokens are sampled by the behavior policy"


def first_clause(what: str) -> str:
    """What fits into a list."""
    return re.split(r"[.;] ", what.rstrip("."))[0]


def folded(name: str) -> str:
    """Write a name so that upper case, spaces, `-` and `_` make no difference."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """All that is known about one name; None where a thing does not apply."""

    name: str
    kind: str
    what: str
    formula: str | None = None
    direction: str | None = None
    units: str | None = None
    healthy: str | None = None  # ideal, bounds, and who says so
    generations: Mapping[str, str] = field(default_factory=dict)  # trainers -> what it is there
    example: str | None = None
    see: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Names that are explained alike. To add a kind: a module with one, a line in `lookup.py`."""

    title: str  # of a single one
    plural: str
    lines: Callable[[], dict[str, str]]  # name -> one line, in the order of the list
    entry: Callable[[str], Entry]  # of one of these names, or of what `find` gave back
    find: Callable[[str], str | None] = lambda name: None  # a name that is not in the list
    aliases: Mapping[str, str] = field(default_factory=dict)


said = partial(Entry, name="", kind="")  # `by_hand` gives it its name and kind


def by_hand(
    title: str, plural: str, entries: Mapping[str, Entry], aliases: Mapping[str, str] | None = None
) -> Kind:
    """A kind whose entries are written down one by one."""
    return Kind(
        title=title,
        plural=plural,
        lines=lambda: {name: first_clause(entry.what) for name, entry in entries.items()},
        entry=lambda name: replace(entries[name], name=name, kind=title),
        aliases=aliases or {},
    )
