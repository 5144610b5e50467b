"""From a name to its entry. To add a kind of names: one line in `KINDS`."""

from __future__ import annotations

import difflib
import re
from functools import cache

from rcdiag.errors import RcdiagError
from rcdiag.glossary import (
    after_words,
    aggregation_words,
    answers,
    candidates,
    choice_words,
    compare_words,
    families,
    figures,
    findings,
    forecast_words,
    gradient_words,
    judged_words,
    levels,
    logged,
    loss_keys,
    loss_words,
    metrics,
    numbers,
    options,
    presets,
    profiles,
    pull_words,
    result_words,
    roles,
    rule_words,
    senses,
    settings,
    sweep_words,
    trainers,
    training_words,
    treatments,
    update_words,
    words,
)
from rcdiag.glossary.entry import Entry, Kind

# A name that several kinds have is explained as that of the first.
KINDS: tuple[Kind, ...] = (
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
    numbers.KIND,
    families.KIND,
    candidates.KIND,
    answers.KIND,
    sweep_words.KIND,
    judged_words.KIND,
    forecast_words.KIND,
    roles.KIND,
    compare_words.KIND,
    loss_words.KIND,
    aggregation_words.KIND,
    choice_words.KIND,
    update_words.KIND,
    training_words.KIND,
    pull_words.KIND,
    gradient_words.KIND,
    after_words.KIND,
    rule_words.KIND,
    result_words.KIND,
    loss_keys.KIND,
    logged.KIND,
    figures.KIND,
)


def names() -> dict[str, dict[str, str]]:
    """Kind -> names -> one line each."""
    return {kind.title: kind.lines() for kind in KINDS}


def headings() -> dict[str, str]:
    """Kind -> what a list of its names is called."""
    return {kind.title: kind.plural for kind in KINDS}


def explain(name: str) -> Entry:
    """All that is known about a name; upper case, spaces, `-` and `_` make no difference."""
    if (listed := _listed().get(_plain(name))) is not None:
        kind, found = listed
        return senses.more(kind.entry(found), name.strip())
    for kind in KINDS:
        if (other := kind.find(name.strip())) is not None:
            return kind.entry(other)
    raise _unknown(name)


@cache
def _listed() -> dict[str, tuple[Kind, str]]:
    """Plain name -> kind and name; the first kind has it."""
    found: dict[str, tuple[Kind, str]] = {}
    for kind in reversed(KINDS):
        found |= {_plain(alias): (kind, name) for alias, name in kind.aliases.items()}
        found |= {_plain(name): (kind, name) for name in kind.lines()}
    return found


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def _unknown(name: str) -> RcdiagError:
    near = nearest(name)
    hint = f"did you mean {_or(near)}? " if near else ""
    return RcdiagError(
        f"nothing is called `{name}`", hint=f"{hint}`rcdiag explain` lists all names"
    )


def nearest(name: str, count: int = 3) -> list[str]:
    """Names that look alike, the closest first; then those that hold it."""
    wanted = _plain(logged.bare(name))
    known = {_plain(logged.bare(each)): each for kind in reversed(KINDS) for each in _all(kind)}
    alike = difflib.get_close_matches(wanted, known, n=count, cutoff=0.4)
    holding = [each for each in known if len(wanted) > 2 and wanted in each]
    return [known[each] for each in dict.fromkeys([*alike, *holding])][:count]


def _all(kind: Kind) -> list[str]:
    return [*kind.lines(), *kind.aliases]


def _or(names: list[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
