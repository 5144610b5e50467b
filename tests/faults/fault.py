"""A fault is a function that changes a recipe, with a random strength."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.recipe import Random, Recipe

SAMPLING, SCORING, RECORDING = "sampling", "scoring", "recording"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of a fault on a recipe, for the label."""

    note: str
    side: str  # sampler, trainer, recorder or storage
    strength: float | str
    only: tuple[str, ...] | None = None  # the other correct answers, if the facts restrict them
    temperature_column: bool | None = None  # True = the table must have one, False = must not
    step_column: bool = False  # True = the table must have it


@dataclass(frozen=True)
class Fault:
    slug: str
    spoil: Callable[[Recipe, Random], Effect]
    stage: str  # faults of different stages can be combined in one table
    plan: str  # suitable batches: "single", "tools", "steps", "plain" (temperature 1) or "any"
    weight: float


FAULTS: list[Fault] = []


def fault(
    slug: str, stage: str, *, plan: str = "single", weight: float = 1.0
) -> Callable[[Callable[[Recipe, Random], Effect]], Callable[[Recipe, Random], Effect]]:
    """Register a mechanism of a cause; a slug may have several."""

    def registered(spoil: Callable[[Recipe, Random], Effect]) -> Callable[[Recipe, Random], Effect]:
        FAULTS.append(Fault(slug, spoil, stage, plan, weight))
        return spoil

    return registered


def either(random: Random, *choices: str) -> str:
    return str(random.choice(choices))


def log_uniform(random: Random, low: float, high: float) -> float:
    return float(low * (high / low) ** random.random())
