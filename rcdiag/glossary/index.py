"""An index of names by kind, so that only the module of the name's kind must be imported.

The shipped `index.json` lists all names of rcdiag itself. `make schema` writes it again, and a test
compares it with the definitions. If a plugin has added a definition, names are read from the
definitions instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from rcdiag import registry
from rcdiag.errors import RcdiagError
from rcdiag.glossary.kinds import PLACES, folded, kind_at

FILE = Path(__file__).with_name("index.json")


@lru_cache(maxsize=1)
def shipped() -> dict[str, dict[str, str]]:
    """Return `defined()` for rcdiag without plugins, from the file."""
    names: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return names


def listed() -> Mapping[str, tuple[str, str]]:
    """Map names and aliases, folded, to the place of the first kind that has them, and the name."""
    return _listed_at(registry.revision())


@lru_cache(maxsize=1)
def _listed_at(revision: int) -> dict[str, tuple[str, str]]:
    """Return the index for a revision of the registries; revision 0 reads the shipped file."""
    names = defined() if revision else shipped()
    places: dict[str, tuple[str, str]] = {}
    for place in reversed(PLACES):
        places |= {folded(alias): (place, name) for alias, name in names[place].items()}
    return places


def ending_in(folded_name: str) -> Sequence[tuple[str, str]]:
    """Return the dotted names whose last part folds to `folded_name`, with their places."""
    return _by_end(registry.revision()).get(folded_name, ())


@lru_cache(maxsize=1)
def _by_end(revision: int) -> dict[str, list[tuple[str, str]]]:
    ends: dict[str, list[tuple[str, str]]] = {}
    for key, place in _listed_at(revision).items():
        ends.setdefault(key.partition(".")[2], []).append(place)
    return ends


def defined() -> dict[str, dict[str, str]]:
    """Return a mapping from names and aliases to names, for each place of a kind."""
    return {
        place: {**kind.aliases, **{name: name for name in kind.names()}}
        for place, kind in ((place, kind_at(place)) for place in PLACES)
    }


def write_index(file: Path = FILE) -> None:
    """Write the names of all definitions to a file."""
    if registry.revision():
        raise RcdiagError(
            "the index lists the names of rcdiag itself, but a plugin has added definitions",
            hint="uninstall the plugin and write the index again",
        )
    file.write_text(json.dumps(defined(), indent=1) + "\n", encoding="utf-8")
