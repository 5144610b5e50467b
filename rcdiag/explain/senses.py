"""Names that mean one thing more in a sweep or a comparison. To add one: a line in SENSES."""

from __future__ import annotations

from dataclasses import replace

from rcdiag.explain.entry import Entry
from rcdiag.explain.families import TITLE
from rcdiag.sweeping.families import FAMILIES

SENSES: dict[str, str] = {
    "ess_seq": "In a row of `rcdiag sweep`: of applied weights, rejected sequences with 0, as "
    "ess_seq_applied. In its forecast: what is expected at a length.",
    "ess_token": "In a row of `rcdiag sweep`: of applied weights, rejected tokens with 0, as "
    "ess_token_applied.",
    "k2": "In a result of `rcdiag compare`: its mean over tokens between two policies, k2_kl.",
    "length": "In the forecast of `rcdiag sweep`: response tokens; of a held-out bin their mean.",
}


def more(entry: Entry) -> Entry:
    """The entry with its other sense, if there is one."""
    other = SENSES.get(entry.name)
    if entry.name in FAMILIES and entry.kind != TITLE:
        other = f"In `rcdiag sweep` an estimator family: {FAMILIES[entry.name].about}"
    return entry if other is None else replace(entry, what=f"{entry.what.rstrip('.')}. {other}")
