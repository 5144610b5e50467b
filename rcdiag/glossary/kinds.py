"""Every kind of names has its place here and is imported when a caller needs it.

To add a kind: a line in `PLACES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from rcdiag.glossary.entry import Kind

# Module and variable of every kind; a name that several kinds have is explained by the first.
PLACES = (
    "metrics.KIND",
    "profiles.KIND",
    "levels.KIND",
    "verdicts.KIND",
    "findings.KIND",
    "causes.KIND",
    "terms.KIND",
    "treatments.KIND",
    "presets.KIND",
    "options.KIND",
    "settings.KIND",
    "trainers.KIND",
    "families.KIND",
    "candidates.KIND",
    "answers.KIND",
    "roles.KIND",
    "backends.KIND",
    "formats.KIND",
    "formats.LOGS",
    "losses.POLICY_LOSSES",
    "losses.REDUCTIONS",
    "losses.ADVANTAGE_FORMULAS",
    "choice_words.KIND",
    "losses.LOSS_SETTINGS",
    "rules.KIND",
    "rules.CONSTRAINT_KIND",
    "result_names.KIND",
    "logged.KIND",
    "elsewhere.KIND",
    "figures.KIND",
    "fields.KIND",  # gives way to all others
)


def kind_at(place: str) -> Kind:
    """Import and return the kind at one of `PLACES`."""
    module, _, variable = place.partition(".")
    kind: Kind = getattr(importlib.import_module(f"rcdiag.glossary.{module}"), variable)
    return kind


def kinds() -> Iterator[Kind]:
    """Return all kinds, in the order of `PLACES`."""
    return map(kind_at, PLACES)
