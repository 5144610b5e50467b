"""Write a correction as a trainer's settings, by the columns `write` of its table.

`facts_of` describes a correction by named facts. `lacks` in the table's header lists the facts that
no settings can express; each setting is written in the first way whose conditions hold.
`rcdiag.trainers.emit` reads the result back, as the trainer would, and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np

from rcdiag.corrections.bounds import LEVELS, Window, weights_of, windows_of
from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.trainers.conditions import beyond, holds
from rcdiag.trainers.settings_table import SettingsTable, Write
from rcdiag.trainers.settings_text import (
    ABOVE_ALL,
    BELOW_ALL,
    Inexpressible,
    Value,
    Written,
    digits,
    rounded,
)

Facts = dict[str, Any]
# Returns additional facts of a correction, for a trainer's own table.
OwnFacts = Callable[[Correction, Facts], Facts]
_LEVELS = frozenset(LEVELS.values())


def facts_of(correction: Correction) -> Facts:
    """Describe a correction by the facts that tables may name.

    - `mode`, `loss`, `veto`, `veto_on_weights`, `normalized`, `applied`, `weights_in_loss`: as in
      `Correction`.
    - `weights`: the level of the weights, or null; `upper` and `lower`: the ratios by which they
      are bounded; `outside`: `zero`, `floor`, `truncate` (upper bound only), `clip` (also a lower
      bound) or `bare` (no bounds).
    - `rejections` and `zeroings`: names of the statistics by which tokens are rejected, or get
      weight 0. Ratios and k1 are named by their level. `rejections.NAME.upper` and `.lower` are
      bounds: ratios for levels, else in the unit of the statistic.
    - `rejection`, `rejection.upper`, `rejection.lower`: the same, if there is a single rejection.
    """
    facts: Facts = {
        "mode": correction.mode,
        "loss": correction.loss,
        "veto": correction.veto,
        "veto_on_weights": correction.veto is not None and correction.veto_on_weights,
        "normalized": correction.batch_normalize,
        "applied": correction.weights_applied,
        "weights_in_loss": correction.weights_in_loss,
        "weights": None,
        "outside": None,
    }
    if correction.weighting is not None:
        weights = weights_of(correction.weighting)
        facts["weights"] = weights.level
        facts["lower"], facts["upper"] = _ratios(weights.window)
        if weights.zeroes:
            facts["outside"] = "zero"
        elif weights.floors:
            facts["outside"] = "floor"
        elif weights.window.bounds_nothing:
            facts["outside"] = "bare"
        else:
            facts["outside"] = "truncate" if weights.window.lower == -np.inf else "clip"
    rejections = _tests("rejections", correction.rejections)
    facts |= rejections | _tests("zeroings", correction.zeroing)
    names = facts["rejections"]
    facts["rejection"] = names[0] if len(names) == 1 else None
    if facts["rejection"]:
        for side in ("lower", "upper"):
            facts[f"rejection.{side}"] = facts[f"rejections.{names[0]}.{side}"]
    return facts


def _tests(kind: str, tests: Iterable[Rejection]) -> Facts:
    windows = windows_of(tests)
    facts: Facts = {kind: tuple(windows)}
    for name, window in windows.items():
        bounds = _ratios(window) if name in _LEVELS else (window.lower, window.upper)
        facts[f"{kind}.{name}.lower"], facts[f"{kind}.{name}.upper"] = bounds
    return facts


def _ratios(window: Window) -> tuple[float, float]:
    return float(np.exp(window.lower)), float(np.exp(window.upper))


def write_by_table(
    correction: Correction, *, table: SettingsTable, own_facts: OwnFacts | None = None
) -> Written:
    """Write a correction; Inexpressible if the trainer's settings cannot express it."""
    facts = facts_of(correction)
    if own_facts is not None:
        facts |= own_facts(correction, facts)
    for lack in table.header.lacks:
        if holds(lack.when, facts.get):
            odd = ""  # the first name that is `beyond` the known ones of a condition
            for name, wanted in lack.when.items():
                if not odd and isinstance(wanted, dict) and "beyond" in wanted:
                    odd = beyond(facts.get(name), wanted["beyond"])[0]
            raise Inexpressible(lack.says.format_map({**facts, "odd": odd}))
    written = Written()
    for name, setting in table.settings.items():
        for way in setting.ways:
            if holds(way.when, facts.get) and (not way.fact or way.fact in facts):
                written.settings[name] = _value(way, facts)
                if way.comment:
                    written.comments[name] = way.comment.format_map(facts)
                break
    return written


def _value(way: Write, facts: Facts) -> Value:
    if way.null:
        return None
    if way.value is not msgspec.UNSET:
        result: Value = way.value
        return result
    if way.text:
        # Bounds with as few digits as needed; an infinite bound becomes a number too.
        texts = dict(facts)
        for name, fact in facts.items():
            if isinstance(fact, float):
                nothing = fact == 0.0 and name.endswith("lower")
                texts[name] = digits(BELOW_ALL if nothing else min(fact, ABOVE_ALL))
        return way.text.format_map(texts)
    fact = facts[way.fact]
    if isinstance(fact, bool) or not isinstance(fact, float):
        return fact
    if np.isinf(fact) or (fact == 0.0 and way.fact.endswith("lower")):
        return way.unbounded
    return rounded(fact) if fact > 0.0 else fact
