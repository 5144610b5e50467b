"""The kinds of tables: a name, the settings it fixes in the plan, and the fault it adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.other.tables import Fault, Plan

Build = Callable[[Plan], Fault]


@dataclass(frozen=True)
class Kind:
    name: str
    build: Callable[[Plan], list[Fault]]
    fixed: dict[str, Any] = field(default_factory=dict)
    healthy: bool = False


KINDS: dict[str, Kind] = {}


def kind(name: str, *, healthy: bool = False, **fixed: Any) -> Callable[[Build], Build]:
    """Register a function that changes a plan and says which fault that is."""

    def register(build: Build) -> Build:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, lambda plan: [build(plan)], fixed, healthy)
        return build

    return register


def pair(first: str, second: str) -> None:
    """Register a table with the faults of two kinds; the second is built on the first's plan."""
    one, two = KINDS[first], KINDS[second]
    name = f"{first} + {second}"
    KINDS[name] = Kind(
        name, lambda plan: one.build(plan) + two.build(plan), {**one.fixed, **two.fixed}
    )
