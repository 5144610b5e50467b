"""What `rcdiag explain` answers: definitions give an `Entry`, the glossary names it.

It stands below all packages, so that a loss, an engine or a figure can say what it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

LOG_RATIO = "log_ratio = target - behavior, in nats; tokens are sampled by the behavior policy"


class Entry(Struct, frozen=True, kw_only=True):
    """All that rcdiag says about one name; a part that does not apply is None.

    `name` and `kind` are filled in by the glossary, which knows under which name a definition is
    listed.
    """

    name: str = ""
    kind: str = ""
    what: str
    # Names that documents or earlier code have for it, and the code of today has not -> where.
    also_called: Mapping[str, str] = field(default_factory=dict)
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


def first_clause(what: str) -> str:
    """Return the first clause of an explanation, which fits into a list."""
    return re.split(r"[.;] ", what.rstrip("."))[0]
