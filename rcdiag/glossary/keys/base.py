"""What a key that trainers log is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rcdiag.glossary.generations import Trainers

LIKE_ITS_FORMULA = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key by its name without prefix, and what each generation computes under it."""

    what: str
    of: Mapping[Trainers, str]  # "" = as the formula says
    formula: str | None = None
    direction: str | None = None
    units: str = "none"
    healthy: str | None = None
    see: tuple[str, ...] = ()
