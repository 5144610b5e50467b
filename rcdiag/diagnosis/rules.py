"""Rules: the bounds from which on a number is a warning or an error, and their comparison.

Bounds and their source form a `Guide`. A metric carries its own guide; a limit of anything else is
a `Rule` in `RULES`, whose name begins with what it concerns: `health.` an update, `correction.` a
correction on one batch, `constraint.` a candidate of a sweep, `log.` the numbers of a training log,
`verl_check.` what verl itself would warn of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from rcdiag.entry import Entry
from rcdiag.registry import Registry
from rcdiag.results.base import LEVELS, MetricValue
from rcdiag.results.guide import Guide


def level(
    guide: Guide, value: float | None, low: float | None = None, high: float | None = None
) -> str | None:
    """Return the level of a number by its guide and 95% interval; None for None and NaN.

    The level is `unknown` where the interval reaches from `ok` to `error`: the data cannot tell. An
    interval without a low or a high end reaches to infinity there; its level is `unknown` unless
    all of it has one level. With `by_interval` the point of the interval nearest to `around`
    decides, and the level is `unknown` where the interval is wider than 2 * error and spans several
    levels.
    """
    if value is None or math.isnan(value):
        return None
    if low is None and high is None:
        return _level_at(guide, value)
    one_ended = low is None or high is None
    low = -math.inf if low is None else low
    high = math.inf if high is None else high
    nearest = value if guide.around is None else min(max(guide.around, low), high)
    reached = {_level_at(guide, number) for number in (low, nearest, value, high)}
    if guide.by_interval:
        wide = high - low > 2.0 * guide.error
        return "unknown" if wide and len(reached) > 1 else _level_at(guide, nearest)
    unknown = len(reached) > 1 if one_ended else {"ok", "error"} <= reached
    return "unknown" if unknown else _level_at(guide, value)


def _level_at(guide: Guide, value: float) -> str:
    """Return the level of a number without an interval."""
    size = value if guide.around is None else abs(value - guide.around)
    sign = -1.0 if guide.error < guide.warning else 1.0
    if sign * size >= sign * guide.error:
        return "error"
    return "warning" if sign * size >= sign * guide.warning else "ok"


def worst(levels: Iterable[str]) -> str:
    """Return the worst of several levels; `ok` if there are none."""
    return max(levels, key=LEVELS.index, default="ok")


E = TypeVar("E")  # the evidence that rules of one concern look at

# Concern -> the command that shows what its rules say about a table or log.
SHOWN_BY = {
    "health": "rcdiag replay rollouts.parquet --json | jq '.presets[].health.rules[]'",
    "constraint": "rcdiag sweep rollouts.parquet --json | "
    "jq '.recommendation.candidates[].refused'",
    "log": "rcdiag diagnose metrics.jsonl --json | jq '.logs[].relations[]'",
    "verl_check": "rcdiag score rollouts.parquet --trainer verl -v",
}


class Rule(Struct, Generic[E], frozen=True, kw_only=True):
    """A number of some evidence with its guide.

    For a yes/no rule the value is a bool and the warning's bound is 1.
    """

    name: str  # what it concerns, a dot, and a name of its own
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
    decides: bool = False  # whether a missing number has the level `unknown` instead of `ok`
    heading: str = ""  # of its number's column in the terminal's tables
    see: tuple[str, ...] = ()  # names that `rcdiag explain` answers

    @property
    def concerns(self) -> str:
        """Return what the rule is about: health, correction, constraint, log or verl_check."""
        return self.name.partition(".")[0]

    @property
    def own_name(self) -> str:
        """Return the name without what it concerns."""
        return self.name.partition(".")[2]

    def number(self, evidence: E) -> float | None:
        """Return the number that the rule looks at; None where it has none."""
        value = self.value(evidence)
        if isinstance(value, MetricValue):
            value = value.value
        if value is None or isinstance(value, bool) or value != value:
            return None
        return float(value)

    def level(self, evidence: E) -> str:
        """Return the level of the rule's number.

        If the number is missing, that is `unknown` for a rule that decides and `ok` for others.
        """
        value = self.value(evidence)
        guide = self.guide if self.guide_for is None else self.guide_for(evidence)
        if isinstance(value, MetricValue):
            # A number that has a level has it wherever it is shown.
            found = value.level or level(guide, value.value, value.low, value.high)
        else:
            found = level(guide, value)
        return found or ("unknown" if self.decides else "ok")

    def entry(self) -> Entry:
        """Return what `rcdiag explain` answers."""
        guide = self.guide
        if guide.warning == 1.0 and guide.error in (1.0, math.inf):  # a yes or a no
            failing = "an error" if guide.error == 1.0 else "a warning"
            bounds = f"{failing} where it fails ({guide.source})"
        else:
            refused = "refused from the warning on: " if self.concerns == "constraint" else ""
            bounds = f"{refused}{guide.bounds}"
        return Entry(
            what=self.says,
            formula=self.formula,
            direction=self.direction,
            units=self.unit or "none",
            healthy=bounds,
            example=SHOWN_BY.get(self.concerns),
            see=self.see,
        )


def _shipped() -> Iterable[Rule[Any]]:
    from rcdiag.diagnosis.constraints import CONSTRAINTS
    from rcdiag.diagnosis.correction_health import CORRECTION_RULES, VERL_CHECK
    from rcdiag.diagnosis.logged.relations import LOG_RULES
    from rcdiag.diagnosis.update_health import UPDATE_RULES

    return (*UPDATE_RULES, *CORRECTION_RULES, *CONSTRAINTS, *VERL_CHECK, *LOG_RULES)


RULES: Registry[Rule[Any]] = Registry("rule", _shipped)


def rules_of(concern: str) -> dict[str, Rule[Any]]:
    """Return the rules of one concern, such as `health`, by their names."""
    return {name: rule for name, rule in RULES.items() if rule.concerns == concern}


def levels_of(concern: str, evidence: Any) -> list[tuple[Rule[Any], str]]:
    """Return the rules of a concern that apply to some evidence, each with its level."""
    return [
        (rule, rule.level(evidence))
        for rule in rules_of(concern).values()
        if rule.applies(evidence)
    ]


def worst_that_counts(levels: Iterable[tuple[Rule[Any], str]]) -> str:
    """Return the worst level; `unknown` counts only for rules that decide."""
    return worst(level for rule, level in levels if rule.decides or level != "unknown")
