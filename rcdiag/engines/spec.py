"""The description of a policy to score: engine, precision and options."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field, structs


class PolicySpec(Struct, frozen=True, kw_only=True):
    """One policy to score: its engine, precision and options."""

    name: str
    backend: str
    dtype: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return structs.asdict(self)
