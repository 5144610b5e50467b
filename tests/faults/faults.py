"""All faults, and the random choice of one or two for a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Importing a family registers its faults.
from tests.faults import (  # noqa: F401
    alignment,
    contexts,
    forwards,
    honest,
    laws,
    storage,
    weights,
)
from tests.faults.fault import FAULTS, Effect, Fault
from tests.faults.recipe import Plan, Random, Recipe, recipe_of
from tests.faults.vocabulary import FAMILY

HEALTHY, TWO = 0.14, 0.1  # shares of tables without a fault, and with two
# Faults that are visible together: neither hides the other.
FIRST = (
    *("temperature-raw-recorded", "trainer-without-temperature", "sampler-ignores-temperature"),
    *("stale-weights", "repetition-penalty", "presence-penalty", "top-k-renormalised"),
    *("prompt-truncated", "rope-theta", "min-tokens", "replica-unsynced"),
)
SECOND = (
    *("shift-some-rows", "nan-log-probs", "zero-placeholder", "sentinel", "duplicated-rows"),
    *("rows-swapped", "mask-drops-last", "floor-clip"),
)


@dataclass(frozen=True)
class Choice:
    """The faults of one table, their effects, and the changed recipe."""

    faults: list[Fault]
    effects: list[Effect]
    recipe: Recipe


def choose(random: Random, batches: Sequence[Plan]) -> Choice:
    """Draw the faults of a table and a suitable batch, and change its recipe."""
    drawn, which = [], random.random()
    healthy = [item for item in FAULTS if FAMILY[item.slug] == "nothing wrong"]
    if which < HEALTHY:
        drawn = [_weighted(healthy, random)]
    elif which < HEALTHY + TWO:
        drawn = [
            _weighted([item for item in FAULTS if item.slug in slugs], random)
            for slugs in (FIRST, SECOND)
        ]
    else:
        drawn = [_weighted([item for item in FAULTS if item not in healthy], random)]
    return spoilt(drawn, random, batches)


def spoilt(drawn: list[Fault], random: Random, batches: Sequence[Plan]) -> Choice:
    """Apply faults to the recipe of a suitable batch."""
    serving = [plan for plan in batches if all(serves(plan, item.plan) for item in drawn)]
    plan = serving[int(random.integers(len(serving)))]
    recipe = recipe_of(plan, int(random.integers(2**31)))
    return Choice(drawn, [item.spoil(recipe, random) for item in drawn], recipe)


def serves(plan: Plan, expected: str) -> bool:
    single = len(plan.steps) == 1 and not plan.tools
    return {
        "any": True,
        "single": single,
        "plain": single and plan.temperature == 1,
        "tools": plan.tools,
        "steps": len(plan.steps) > 1,
    }[expected]


def _weighted(faults: list[Fault], random: Random) -> Fault:
    odds = np.array([item.weight for item in faults])
    return faults[int(random.choice(len(faults), p=odds / odds.sum()))]
