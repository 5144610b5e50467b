"""The description of a policy to score: engine, precision and options."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """One policy to score: its engine, precision and options."""

    name: str
    backend: str
    dtype: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
