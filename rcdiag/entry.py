"""Entry: the explanation of one name, which `rcdiag explain` prints.

Definitions return an `Entry` without a name; the glossary fills in the name. The module imports no
other package of rcdiag, so that a loss, an engine or a figure can use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

LOG_RATIO = "log_ratio = target - behavior, in nats; tokens are sampled by the behavior policy"


class Entry(Struct, frozen=True, kw_only=True):
    """All that rcdiag says about one name; a part that does not apply is None.

    The glossary fills in `name` and `kind`, because it knows the name under which a definition is
    registered.
    """

    name: str = ""
    kind: str = ""
    what: str
    # Name in other documents or in earlier code -> where that name was used.
    also_called: Mapping[str, str] = field(default_factory=dict)
    formula: str | None = None
    direction: str | None = None
    units: str | None = None
    healthy: str | None = None  # the ideal value, the bounds, and the source of the bounds
    generations: Mapping[str, str] = field(default_factory=dict)  # trainer -> its meaning there
    example: str | None = None
    # Heading -> text that only some kinds have, such as how a cause shows; in reading order.
    parts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)  # title of a page or thread -> its URL
    see: tuple[str, ...] = ()


def first_clause(what: str) -> str:
    """Return the first clause of an explanation, short enough for a list."""
    return re.split(r"[.;] ", what.rstrip("."))[0]
