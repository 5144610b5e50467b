"""What a fault is: a function that spoils a recipe with a strength drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.recipe import Random, Recipe

SAMPLING, SCORING, RECORDING = "sampling", "scoring", "recording"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What a fault did to a recipe, for the label."""

    note: str
    side: str  # sampler, trainer, recorder or storage
    strength: float | str
    only: tuple[str, ...] | None = None  # the other right answers, where the facts leave fewer
    temperature_column: bool | None = None  # True = the table has to have one, False = must not
    step_column: bool = False  # True = the table has to have it


@dataclass(frozen=True)
class Fault:
    slug: str
    spoil: Callable[[Recipe, Random], Effect]
    stage: str  # faults of different stages can stand in one table
    plan: str  # which batches serve: "single", "tools", "steps", "plain" (temperature 1) or "any"
    weight: float


FAULTS: list[Fault] = []


def fault(
    slug: str, stage: str, *, plan: str = "single", weight: float = 1.0
) -> Callable[[Callable[[Recipe, Random], Effect]], Callable[[Recipe, Random], Effect]]:
    """Register a way in which a cause comes about; a slug may have several."""

    def registered(spoil: Callable[[Recipe, Random], Effect]) -> Callable[[Recipe, Random], Effect]:
        FAULTS.append(Fault(slug, spoil, stage, plan, weight))
        return spoil

    return registered


def either(random: Random, *choices: str) -> str:
    return str(random.choice(choices))


def log_uniform(random: Random, low: float, high: float) -> float:
    return float(low * (high / low) ** random.random())
