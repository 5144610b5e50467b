"""What a reader pastes into a trainer's configuration: of the choice, and of every setting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rcdiag.corrections.correction import Correction
from rcdiag.errors import RcdiagError
from rcdiag.results.sweep import Configurations
from rcdiag.trainers.emit import emit
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.families import FAMILIES, Bounds

TRAINERS = ("verl", "verl-0.7.0", "slime")
NUMBER = re.compile(r"(?<![A-Za-z0-9.])\d[\d.]*(?:e[+-]?\d+)?")
MARK = "\u0001"  # stands where a template has a number


def choice_configurations(choice: str | None) -> dict[str, str]:
    """Trainer -> YAML of the chosen candidate; a trainer that cannot express it says so."""
    if choice is None:
        return {}
    return {
        trainer: _text_or_reason(CANDIDATES[choice].correction, trainer) for trainer in TRAINERS
    }


def _text_or_reason(correction: Correction, trainer: str) -> str:
    try:
        return emit(correction, trainer).text
    except RcdiagError as error:
        return f"# {error.message}; {error.hint}"


def family_configurations(family: str, grid: Sequence[Bounds]) -> dict[str, Configurations]:
    """Trainer -> the YAML of every setting of a family, in the order of the grid."""
    corrections = [FAMILIES[family].correction(bounds) for bounds in grid]
    return {
        trainer: _factored(_text_or_none(correction, trainer) for correction in corrections)
        for trainer in TRAINERS
    }


def _text_or_none(correction: Correction, trainer: str) -> str | None:
    try:
        return emit(correction, trainer).text
    except RcdiagError:
        return None


def _factored(texts: Iterable[str | None]) -> Configurations:
    """Texts of one family differ in numbers alone: a template and its numbers are a tenth."""
    templates: dict[str, int] = {}
    entries = []
    for text in texts:
        if text is None:
            entries.append("")
            continue
        index = templates.setdefault(NUMBER.sub(MARK, text), len(templates))
        entries.append(" ".join([str(index), *NUMBER.findall(text)]))
    return Configurations(templates=list(templates), entries=entries)
