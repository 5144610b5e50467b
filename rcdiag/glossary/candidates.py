"""Candidates of `rcdiag sweep` are explained by their definitions.

A candidate is an estimator that the recommendation may choose.
"""

from __future__ import annotations

from rcdiag.glossary.describe import describe, settings_of
from rcdiag.glossary.entry import Entry, Kind
from rcdiag.glossary.families import bounds_text
from rcdiag.usecases.sweep.candidates import CANDIDATES

TITLE = "candidate"


def _what(name: str) -> str:
    if CANDIDATES[name].family == "none":
        return "No correction: all tokens stay, with weight 1."
    return f"{describe(CANDIDATES[name].correction)}."


def entry(name: str) -> Entry:
    candidate = CANDIDATES[name]
    most = max(other.complexity for other in CANDIDATES.values())
    of = () if candidate.family == "none" else (candidate.family,)
    return Entry(
        name=name,
        kind=TITLE,
        what=f"{_what(name)} Of the family {candidate.family}, with {bounds_text(candidate.bounds)}"
        f"; in the order from simple (0) to involved ({most}) it stands at {candidate.complexity}.",
        direction="ratio = target / behavior probability",
        generations=settings_of(candidate.correction),
        example=f"rcdiag sweep rollouts.parquet --emit verl --candidate {name}",
        see=(*of, "efficiency", "refused", "indistinguishable"),
    )


KIND: Kind = Kind(
    title=TITLE,
    plural="Candidates of `rcdiag sweep`",
    names=lambda: CANDIDATES,
    line=lambda name: _what(name).rstrip("."),
    entry=entry,
)
