"""Levels of numbers and severities of findings are explained here."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, Kind, first_clause

LEVELS: dict[str, str] = {
    "ok": "A number within its guide. A metric without a guide is never called ok.",
    "unknown": "The data cannot tell: the 95% interval of a number reaches from ok to "
    "error by its guide, or no honest interval can be given, as with a single prompt group, or one "
    "end of it is not observable, or the number presupposes that a policy sampled which did not. "
    "It is no alarm and no all-clear: more rows would tell.",
    "note": "A finding that the reader should know and that does not count against a run.",
    "warning": "A number at or beyond the first bound of its guide, or a finding of that weight.",
    "error": "A number at or beyond the second bound of its guide, or a finding of that weight.",
}
EXAMPLES: dict[str, str] = {
    "ok": "k3_kl below 0.001",
    "unknown": "ess_seq of 0.3 with the interval 0.05 to 0.6",
    "note": "few-clusters",
    "warning": "k3_kl from 0.001 on; rcdiag score rollouts.parquet --fail-on warning",
    "error": "k3_kl from 0.01 on; rcdiag score rollouts.parquet --fail-on error",
}
_SOURCE = "every guide names its source: `rcdiag explain NAME`; the worst level decides"


def entry(name: str) -> Entry:
    return Entry(
        name=name,
        kind=KIND.title,
        what=LEVELS[name],
        healthy=None if name == "note" else _SOURCE,
        example=EXAMPLES[name],
        see=("k3_kl",) if name != "note" else ("few-clusters",),
    )


KIND: Kind = Kind(
    title="level",
    plural="Levels",
    names=lambda: LEVELS,
    line=lambda name: first_clause(LEVELS[name]),
    entry=entry,
)
