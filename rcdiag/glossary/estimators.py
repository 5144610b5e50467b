"""Estimator families and candidates of `rcdiag sweep` are explained by their definitions.

A family is swept over its bounds; a candidate is an estimator that the recommendation may choose.
"""

from __future__ import annotations

from rcdiag.entry import Entry, first_clause
from rcdiag.glossary import options
from rcdiag.glossary.describe import describe, settings_of
from rcdiag.glossary.kinds import Kind
from rcdiag.glossary.terms import WORDS
from rcdiag.glossary.trainers import PRESETS
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.estimator_families import FAMILIES, Bounds, EstimatorFamily, settings

_OF_K = ("_k2", "_k3")


def _listed() -> dict[str, EstimatorFamily]:
    """Return families by name; one that shares its name is listed with a dot: `family.veto`."""
    taken = {*options.KIND.names(), *PRESETS.names(), *WORDS}
    return {f"family.{name}" if name in taken else name: FAMILIES[name] for name in FAMILIES}


def bounds_text(bounds: Bounds) -> str:
    """Write bounds as text: `lower 0.5, upper 2`."""
    return ", ".join(f"{name} {value:.9g}" for name, value in bounds.items()) or "no bounds"


def _units(name: str) -> str:
    if name.endswith(_OF_K):
        return "bounds in nats"
    if name.startswith("k3_rs"):
        return "rs_upper in nats, is_upper a ratio"
    return "bounds as ratios"


def _family(name: str) -> Entry:
    family = _listed()[name]
    tried = settings(family, 20)
    bounds = tried[len(tried) // 2]  # the example: a setting from the middle of the sweep
    correction = family.correction(bounds)
    return Entry(
        what=f"{family.title}: {family.about} Bounds hold by {family.level}; rows are ordered by "
        f"{family.axis}.",
        direction="ratio = target / behavior probability",
        units=_units(name),
        generations=settings_of(correction),
        example=f"{bounds_text(bounds)}: {describe(correction)}",
        see=("bounds", family.level, "weight_distance", "efficiency"),
    )


FAMILIES_OF_SWEEP: Kind = Kind(
    title="estimator family",
    plural="Estimator families of `rcdiag sweep`",
    names=_listed,
    line=lambda listed: first_clause(_listed()[listed].about),
    entry=_family,
)


def _what(name: str) -> str:
    if CANDIDATES[name].family == "none":
        return "No correction: all tokens stay, with weight 1."
    return f"{describe(CANDIDATES[name].correction)}."


def _candidate(name: str) -> Entry:
    candidate = CANDIDATES[name]
    most = max(other.complexity for other in CANDIDATES.values())
    of = () if candidate.family == "none" else (candidate.family,)
    return Entry(
        what=f"{_what(name)} Of the family {candidate.family}, with {bounds_text(candidate.bounds)}"
        f"; in the order from simple (0) to involved ({most}) it stands at {candidate.complexity}.",
        direction="ratio = target / behavior probability",
        generations=settings_of(candidate.correction),
        example=f"rcdiag sweep rollouts.parquet --emit verl --candidate {name}",
        see=(*of, "efficiency", "refused", "indistinguishable"),
    )


CANDIDATES_OF_SWEEP: Kind = Kind(
    title="candidate",
    plural="Candidates of `rcdiag sweep`",
    names=lambda: CANDIDATES,
    line=lambda name: _what(name).rstrip("."),
    entry=_candidate,
)
