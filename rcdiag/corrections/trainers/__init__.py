"""Trainer generations by name."""

from __future__ import annotations

from rcdiag.corrections.trainers import slime, verl_k, verl_ratios, verl_weights
from rcdiag.corrections.trainers.base import Trainer
from rcdiag.errors import RcdiagError

NEWEST_VERL = "verl-0.9"

TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer
    for trainer in (
        *verl_weights.TRAINERS,
        *verl_ratios.TRAINERS,
        *verl_k.TRAINERS,
        *slime.TRAINERS,
    )
}


def find_trainer(name: str) -> Trainer:
    """By its name; `verl` is the newest generation."""
    name = NEWEST_VERL if name == "verl" else name
    if name not in TRAINERS:
        raise RcdiagError(
            f"--trainer {name}: not known", hint=f"one of verl, {', '.join(TRAINERS)}"
        )
    return TRAINERS[name]
