"""A policy to score is described by its engine, precision and options."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any

from rcdiag.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySpec:
    """One policy to score: its engine, precision and options."""

    name: str
    backend: str
    dtype: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
