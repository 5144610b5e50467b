"""A rule compares one number with its guide, and carries the words for the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from rcdiag.diagnosis.guides import level
from rcdiag.results import MetricValue
from rcdiag.results.guide import Guide

E = TypeVar("E")  # the evidence that rules of one kind look at


class Rule(Struct, Generic[E], frozen=True, kw_only=True):
    """A number with its guide; the worst rule decides the verdict.

    For a yes/no rule the value is a bool and both bounds of the guide are 1.
    """

    name: str
    says: str  # what it looks at and where it is absent, in plain sentences
    formula: str | None = None
    direction: str | None = None
    unit: str = ""
    guide: Guide
    # The guide on given evidence, where it depends on that.
    guide_for: Callable[[E], Guide] | None = None
    value: Callable[[E], float | bool | MetricValue | None]
    message: Callable[[E], str]  # what it says about given evidence
    applies: Callable[[E], bool] = lambda evidence: True
    decides: bool = False  # where its number is missing there is no good verdict
    heading: str = ""  # of its number's column in the terminal's tables
    see: tuple[str, ...] = ()  # names that `rcdiag explain` answers

    def number(self, evidence: E) -> float | None:
        """Return the number that the rule looks at; None where it has none."""
        value = self.value(evidence)
        if isinstance(value, MetricValue):
            value = value.value
        if value is None or isinstance(value, bool) or value != value:
            return None
        return float(value)

    def level(self, evidence: E) -> str:
        """Return the level of the rule's number; `ok` where there is no number."""
        value = self.value(evidence)
        guide = self.guide if self.guide_for is None else self.guide_for(evidence)
        if isinstance(value, MetricValue):
            return level(guide, value.value, value.low, value.high) or "ok"
        return level(guide, value) or "ok"
