"""Names in help texts: of trainers, losses, engines and formats, with those of plugins.

`--help` answers at once, so it imports no registry that would load numpy or torch: names that ship
are in the index of the glossary.
"""

from __future__ import annotations

import re

from rcdiag.errors import RcdiagError
from rcdiag.glossary import index
from rcdiag.glossary.kinds import kind_at
from rcdiag.registry import revision

# What is listed -> the place of its kind in the glossary.
PLACES = {
    "trainers": "trainers.GENERATIONS",
    "losses": "losses.POLICY_LOSSES",
    "engines": "definitions.BACKENDS_OF_POLICIES",
    "formats": "definitions.FORMATS",
}
MOST = 5  # of the names that ship; added ones are all shown
# The glossary says `loss.reinforce` and `verl dump` where the name means something else too, and
# lists every generation of a trainer.
NOT_OF_NAME = re.compile(r"^loss\.| dump$|-[\d.]+$")


def names_of(what: str, most: int = MOST) -> str:
    """Return a list of names for a help text: the first that ship, and all that were added."""
    place = PLACES[what]
    ship = index.shipped()[place]
    names = (name for name, own in ship.items() if name == own)  # aliases are no names to list
    short = list(dict.fromkeys(NOT_OF_NAME.sub("", name) for name in names))
    shown = short if len(short) <= most else [*short[:most], "..."]
    try:
        added = [name for name in kind_at(place).names() if name not in ship] if revision() else []
    except RcdiagError:  # a plugin that fails: the command says which, its help still shows
        added = []
    return ", ".join([*shown, *added])
