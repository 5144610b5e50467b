"""Estimator families of `rcdiag sweep` are explained by the words on their definitions."""

from __future__ import annotations

from rcdiag.glossary import options, presets
from rcdiag.glossary.describe import describe, settings_of
from rcdiag.glossary.entry import Entry, Kind, first_clause
from rcdiag.glossary.terms import WORDS
from rcdiag.usecases.sweep.estimator_families import FAMILIES, Bounds, Family, settings

TITLE = "estimator family"
_OF_K = ("_k2", "_k3")


def _listed() -> dict[str, Family]:
    """Return families by name; one that shares its name is listed with a dot: `family.veto`."""
    taken = {*options.KIND.names(), *presets.KIND.names(), *WORDS}
    return {f"family.{name}" if name in taken else name: FAMILIES[name] for name in FAMILIES}


def bounds_text(bounds: Bounds) -> str:
    """Write bounds as text: `lower 0.5, upper 2`."""
    return ", ".join(f"{name} {value:.9g}" for name, value in bounds.items()) or "no bounds"


def _some(family: Family) -> Bounds:
    """Return a setting from the middle of those that a sweep tries."""
    tried = settings(family, 20)
    return tried[len(tried) // 2]


def _units(name: str) -> str:
    if name.endswith(_OF_K):
        return "bounds in nats"
    if name.startswith("k3_rs"):
        return "rs_upper in nats, is_upper a ratio"
    return "bounds as ratios"


def entry(name: str) -> Entry:
    family = _listed()[name]
    bounds = _some(family)
    correction = family.correction(bounds)
    return Entry(
        name=name,
        kind=TITLE,
        what=f"{family.title}: {family.about} Bounds hold by {family.level}; rows are ordered by "
        f"{family.axis}.",
        direction="ratio = target / behavior probability",
        units=_units(name),
        generations=settings_of(correction),
        example=f"{bounds_text(bounds)}: {describe(correction)}",
        see=("bounds", family.level, "weight_distance", "efficiency"),
    )


KIND: Kind = Kind(
    title=TITLE,
    plural="Estimator families of `rcdiag sweep`",
    names=_listed,
    line=lambda listed: first_clause(_listed()[listed].about),
    entry=entry,
)
