"""Look up a name: its entry, or similar names."""

from __future__ import annotations

import difflib

from msgspec.structs import replace

from rcdiag.entry import Entry
from rcdiag.errors import RcdiagError
from rcdiag.glossary.index import ending_in, listed
from rcdiag.glossary.kinds import folded, kind_at, kinds


def names() -> dict[str, dict[str, str]]:
    """Return all names by kind, each with a line that says what it means."""
    return {kind.title: lines for kind in kinds() if (lines := kind.lines())}


def headings() -> dict[str, str]:
    """Return the heading of the list of names, for each kind."""
    return {kind.title: kind.plural for kind in kinds()}


def explain(name: str) -> Entry:
    """Return the entry of a name with the trainers' names for it; refuse an unknown name."""
    entry = find(name)
    if entry is None:
        similar = nearest(name)
        if folded(name) in map(folded, similar):
            raise RcdiagError(
                f"`{name}` is defined, but the index of names does not list it",
                hint="`make schema` writes the index again",
            )
        *most, last = similar or [""]
        meant = f"{', '.join(most)} or {last}" if most else last
        hint = f"did you mean {meant}? " if meant else ""
        raise RcdiagError(
            f"there is no name `{name}`", hint=f"{hint}`rcdiag explain` lists all names"
        )
    if entry.generations or folded(name) not in listed():
        return entry
    from rcdiag.trainers.by_generation import called, grouped  # imports every trainer

    return replace(entry, generations=grouped(called(entry.name)))


def find(name: str) -> Entry | None:
    """Return the entry of a name, without the trainers' names for it, which import every trainer.

    Upper case, spaces, `-` and `_` make no difference.
    """
    if folded(name) in listed():
        place, own_name = listed()[folded(name)]
        entry = _with_other_meanings(kind_at(place).explain(own_name), name.strip())
        return _named_by_documents(entry, name)
    for kind in kinds():
        if (other := kind.find(name.strip())) is not None:
            return _named_by_documents(kind.explain(other), name)
    return None


def _named_by_documents(entry: Entry, query: str) -> Entry:
    """Begin the entry with the logged or public name, if the query is used in documents only."""
    for name, where in entry.also_called.items():
        if folded(query).endswith(folded(name)) and folded(query) != folded(entry.name):
            says = f"`{name}` is the name of `{entry.name}` in {where}. {entry.what}"
            return replace(entry, what=says)
    return entry


def _with_other_meanings(entry: Entry, query: str) -> Entry:
    """Add a line for each dotted name that ends in this one; `query` may be an alias of it.

    `rule.value` is another meaning of `value`; its own entry says everything about it.
    """
    bare = dict.fromkeys([folded(entry.name), folded(query)])
    lines = {
        name: kind_at(place).line_of(name)
        for end in bare
        for place, name in ending_in(end)
        if name != entry.name
    }
    if not lines:
        return entry
    meanings = [f"As {name}: {line}." for name, line in lines.items()]
    what = " ".join([f"{entry.what.rstrip('.')}.", *meanings])
    return replace(entry, what=what, see=tuple(dict.fromkeys([*entry.see, *lines])))


def nearest(name: str, count: int = 3) -> list[str]:
    """Return up to `count` similar names, the most similar first, then names that contain this."""
    from rcdiag.glossary.logged import bare  # imports every trainer

    query = folded(bare(name))
    spellings = {
        folded(bare(own_name)): own_name
        for kind in reversed([*kinds()])
        for own_name in (*kind.names(), *kind.aliases)
    }
    alike = difflib.get_close_matches(query, spellings, n=count, cutoff=0.4)
    holding = [spelling for spelling in spellings if len(query) > 2 and query in spelling]
    return [spellings[spelling] for spelling in dict.fromkeys([*alike, *holding])][:count]
