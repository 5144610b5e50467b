"""What a trainer generation is: its settings, its presets, its reading of them, its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import Quantity
from rcdiag.corrections.trainer_means import Batch
from rcdiag.errors import RcdiagError

Config = Mapping[str, Any]
Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Trainer:
    """One generation of a trainer. Settings keep the trainer's own names."""

    name: str
    about: str
    settings: Config  # every setting with its default
    presets: Mapping[str, Config]  # name -> settings that differ from the default
    read: Callable[[Config], Correction]  # raises Refused where the trainer would
    quantities: Callable[[Correction], list[Quantity]]  # what `metrics` reads of the tokens
    metrics: Callable[[Batch, Correction], Metrics]
    percentiles: bool = False  # it logs percentiles of token weights
    # Settings that the trainer takes and silently does nothing with: one sentence each.
    ignored: Callable[[Config], list[str]] = lambda config: []


class Refused(RcdiagError):
    """The trainer itself would stop on these settings."""


def choice(config: Config, name: str, allowed: tuple[Any, ...]) -> Any:
    """A setting that must be one of a few words."""
    value = config[name]
    if value not in allowed:
        words = ", ".join("null" if each is None else str(each) for each in allowed)
        raise Refused(f"{name}: {value!r} is not a choice of this trainer", f"one of {words}")
    return value


def positive(config: Config, name: str) -> float:
    """A setting that must be a number above 0."""
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise Refused(f"{name}: wanted a number above 0, got {value!r}", "give a number")
    return float(value)


def optional_number(config: Config, name: str) -> float | None:
    """A setting that may be null, and else is a number."""
    value = config[name]
    if value is None:
        return None
    if not isinstance(value, (int, float)):  # True is 1, as it is to the trainer
        raise Refused(f"{name}: wanted a number or null, got {value!r}", "give a number")
    return float(value)
