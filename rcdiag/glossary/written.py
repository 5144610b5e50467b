"""A correction as the settings of every trainer that has it."""

from __future__ import annotations

from rcdiag.corrections.correction import Correction
from rcdiag.errors import RcdiagError
from rcdiag.glossary.describe import settings_text
from rcdiag.glossary.generations import grouped
from rcdiag.trainers.emit import emit, writers


def settings_of(correction: Correction) -> dict[str, str]:
    """Trainers -> settings; those that have no such estimator are left out."""
    found = {trainer: _settings(correction, trainer) for trainer in writers()}
    return grouped({trainer: text for trainer, text in found.items() if text is not None})


def _settings(correction: Correction, trainer: str) -> str | None:
    try:
        return settings_text(emit(correction, trainer).settings)
    except RcdiagError:
        return None
