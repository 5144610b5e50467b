"""Names that mean one thing more elsewhere. To add one: a line in SENSES.

A name with a dot, `gradient.bias`, is a second sense of what stands after the dot; its own entry
says all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rcdiag.glossary import (
    after_words,
    aggregation_words,
    choice_words,
    gradient_words,
    loss_words,
    pull_words,
    result_words,
    rules,
    update_words,
)
from rcdiag.glossary.entry import Entry
from rcdiag.glossary.families import TITLE
from rcdiag.usecases.sweep.families import FAMILIES

SENSES: dict[str, str] = {
    "ess_seq": "In a row of `rcdiag sweep`: of applied weights, rejected sequences with 0, as "
    "ess_seq_applied. In its forecast: what is expected at a length.",
    "ess_token": "In a row of `rcdiag sweep`: of applied weights, rejected tokens with 0, as "
    "ess_token_applied.",
    "k2": "In a result of `rcdiag compare`: its mean over tokens between two policies, k2_kl.",
    "length": "In the forecast of `rcdiag sweep`: response tokens; of a held-out bin their mean.",
    "ppo_clip": "In a result of `rcdiag replay` the loss_type of vanilla, in any mode.",
    "mismatch": "In results of score and compare: all metrics of a pair of policies.",
    "TIS": "As a key of slime see train/tis.",
}
_DOTTED = (
    result_words.KIND,
    update_words.KIND,
    aggregation_words.KIND,
    choice_words.KIND,
    loss_words.KIND,
    pull_words.KIND,
    gradient_words.KIND,
    after_words.KIND,
    rules.KIND,
    rules.CONSTRAINT_KIND,
)


def dotted(name: str) -> Iterator[tuple[str, str]]:
    """Names with a dot that end in this one, and a line on each."""
    for kind in _DOTTED:
        for each, line in kind.lines().items():
            if each.partition(".")[2] == name:
                yield each, line


def more(entry: Entry, asked: str) -> Entry:
    """The entry with its other senses, if there are any; `asked` may be an alias of its name."""
    found = [SENSES[entry.name]] if entry.name in SENSES else []
    if entry.name in FAMILIES and entry.kind != TITLE:
        found.append(f"In `rcdiag sweep` an estimator family: {FAMILIES[entry.name].about}")
    others = [each for name in dict.fromkeys((entry.name, asked)) for each in dotted(name)]
    found += [f"As {name}: {line}." for name, line in others]
    if not found:
        return entry
    what = " ".join([f"{entry.what.rstrip('.')}.", *found])
    see = dict.fromkeys([*entry.see, *(name for name, _ in others)])
    return replace(entry, what=what, see=tuple(see))
