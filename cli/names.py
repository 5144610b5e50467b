"""Names in help texts: of trainers, losses, engines and formats, with those of plugins.

To keep `--help` fast, no registry is imported that would load numpy or torch: names that ship are
read from the index of the glossary.
"""

from __future__ import annotations

import re

from rcdiag.errors import RcdiagError
from rcdiag.glossary import index
from rcdiag.glossary.kinds import kind_at
from rcdiag.registry import revision

# What is listed -> the place of its kind in the glossary (`rcdiag.glossary.kinds.PLACES`).
PLACES = {
    "trainers": "trainers.GENERATIONS",
    "losses": "losses.POLICY_LOSSES",
    "engines": "definitions.BACKENDS_OF_POLICIES",
    "formats": "definitions.FORMATS",
}
MOST = 5  # names that ship; those of plugins are all shown
# Parts of the glossary's names that are removed: `loss.reinforce` and `verl dump` are spelt so
# because the bare name has another meaning, and generations of a trainer have a version.
NOT_OF_NAME = re.compile(r"^loss\.| dump$|-[\d.]+$")


def names_of(what: str, most: int = MOST) -> str:
    """Return a list of names for a help text: the first that ship, and all of plugins."""
    place = PLACES[what]
    ship = index.shipped()[place]
    names = (name for name, own in ship.items() if name == own)  # without aliases
    short = list(dict.fromkeys(NOT_OF_NAME.sub("", name) for name in names))
    shown = short if len(short) <= most else [*short[:most], "..."]
    try:
        added = [name for name in kind_at(place).names() if name not in ship] if revision() else []
    except RcdiagError:  # a plugin fails: the command will say which, but the help is shown
        added = []
    return ", ".join([*shown, *added])
