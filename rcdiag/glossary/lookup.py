"""From a name to its entry. To add a kind of names: one line in `KINDS`."""

from __future__ import annotations

import difflib
from dataclasses import replace
from functools import lru_cache

from rcdiag import registry
from rcdiag.errors import RcdiagError
from rcdiag.glossary import (
    answers,
    backends,
    candidates,
    choice_words,
    families,
    fields,
    figures,
    findings,
    formats,
    levels,
    logged,
    losses,
    metrics,
    options,
    presets,
    profiles,
    result_names,
    roles,
    rules,
    settings,
    trainers,
    training_words,
    treatments,
    words,
)
from rcdiag.glossary.entry import Entry, Kind, folded
from rcdiag.glossary.generations import called, grouped
from rcdiag.usecases.sweep.families import FAMILIES

_BUT_FIELDS: tuple[Kind, ...] = (
    metrics.KIND,
    profiles.KIND,
    levels.KIND,
    findings.KIND,
    words.KIND,
    treatments.KIND,
    presets.KIND,
    options.KIND,
    settings.KIND,
    trainers.KIND,
    families.KIND,
    candidates.KIND,
    answers.KIND,
    roles.KIND,
    backends.KIND,
    formats.KIND,
    losses.POLICY_LOSSES,
    losses.REDUCTIONS,
    losses.ADVANTAGE_FORMULAS,
    choice_words.KIND,
    losses.LOSS_SETTINGS,
    training_words.KIND,
    rules.KIND,
    rules.CONSTRAINT_KIND,
    result_names.KIND,
    logged.KIND,
    figures.KIND,
)


def _taken() -> set[str]:
    """Names that mean something else than a field of a result."""
    return {folded(name) for kind in _BUT_FIELDS for name in _all(kind)}


# A name that several kinds have is explained as that of the first.
KINDS: tuple[Kind, ...] = (*_BUT_FIELDS, fields.kind(_taken))


def names() -> dict[str, dict[str, str]]:
    """Kind -> names -> one line each."""
    return {kind.title: kind.lines() for kind in KINDS}


def headings() -> dict[str, str]:
    """Kind -> what a list of its names is called."""
    return {kind.title: kind.plural for kind in KINDS}


def explain(name: str) -> Entry:
    """All that is known about a name; upper case, spaces, `-` and `_` make no difference."""
    if (listed := _listed().get(folded(name))) is not None:
        kind, found = listed
        return _with_other_meanings(_with_terms(kind.entry(found)), name.strip())
    for kind in KINDS:
        if (other := kind.find(name.strip())) is not None:
            return kind.entry(other)
    raise _unknown(name)


def _with_terms(entry: Entry) -> Entry:
    """Add what trainers call the thing, if the entry does not say it."""
    return entry if entry.generations else replace(entry, generations=grouped(called(entry.name)))


def _listed() -> dict[str, tuple[Kind, str]]:
    return _listed_at(registry.revision())


@lru_cache(maxsize=1)
def _listed_at(revision: int) -> dict[str, tuple[Kind, str]]:
    """Folded name -> kind and name; the first kind has it. Made anew when a registry changes."""
    found: dict[str, tuple[Kind, str]] = {}
    for kind in reversed(KINDS):
        found |= {folded(alias): (kind, name) for alias, name in kind.aliases.items()}
        found |= {folded(name): (kind, name) for name in kind.lines()}
    return found


def _with_other_meanings(entry: Entry, asked: str) -> Entry:
    """Add a line on every name with a dot that ends in this one; `asked` may be an alias of it.

    `rule.value` is one more meaning of `value`; its own entry says everything about it.
    """
    bare = {folded(entry.name), folded(asked)}
    others = {
        listed: kind.lines()[listed]
        for kind, listed in _listed().values()
        if folded(listed.partition(".")[2]) in bare and listed != entry.name
    }
    told = [f"As {name}: {line}." for name, line in others.items()]
    if entry.name in FAMILIES and entry.kind != families.TITLE:
        told.insert(0, f"In `rcdiag sweep` an estimator family: {FAMILIES[entry.name].about}")
    if not told:
        return entry
    what = " ".join([f"{entry.what.rstrip('.')}.", *told])
    return replace(entry, what=what, see=tuple(dict.fromkeys([*entry.see, *others])))


def _unknown(name: str) -> RcdiagError:
    near = nearest(name)
    hint = f"did you mean {_or(near)}? " if near else ""
    return RcdiagError(
        f"nothing is called `{name}`", hint=f"{hint}`rcdiag explain` lists all names"
    )


def nearest(name: str, count: int = 3) -> list[str]:
    """Names that look alike, the closest first; then those that hold it."""
    wanted = folded(logged.bare(name))
    known = {folded(logged.bare(each)): each for kind in reversed(KINDS) for each in _all(kind)}
    alike = difflib.get_close_matches(wanted, known, n=count, cutoff=0.4)
    holding = [each for each in known if len(wanted) > 2 and wanted in each]
    return [known[each] for each in dict.fromkeys([*alike, *holding])][:count]


def _all(kind: Kind) -> list[str]:
    return [*kind.lines(), *kind.aliases]


def _or(names: list[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
