"""Entries of estimator families and candidates of `rcdiag sweep`."""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.entry import first_clause
from rcdiag.glossary.kinds import NameKind, also_called
from rcdiag.glossary.options import OPTIONS_OF_REJECTION
from rcdiag.glossary.trainers import PRESETS
from rcdiag.glossary.words import TERM
from rcdiag.trainers.by_generation import settings_of
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.estimator_families import FAMILIES, EstimatorFamily


def _listed() -> dict[str, EstimatorFamily]:
    """Return families by name; `family.veto` if another kind also has the name."""
    taken = {*OPTIONS_OF_REJECTION.names(), *PRESETS.names(), *TERM.names()}
    return {f"family.{name}" if name in taken else name: FAMILIES[name] for name in FAMILIES}


FAMILIES_OF_SWEEP = NameKind(
    title="estimator family",
    plural="Estimator families of `rcdiag sweep`",
    definitions=_listed,
    line=lambda family: first_clause(family.about),
    entry=lambda name, family: replace(
        family.entry(), generations=settings_of(family.correction(family.middle))
    ),
    aliases=also_called(_listed()),
)


CANDIDATES_OF_SWEEP = NameKind(
    title="candidate",
    plural="Candidates of `rcdiag sweep`",
    definitions=lambda: CANDIDATES,
    line=lambda candidate: candidate.says.rstrip("."),
    entry=lambda name, candidate: replace(
        candidate.entry(name), generations=settings_of(candidate.correction)
    ),
)
