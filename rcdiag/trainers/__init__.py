"""Trainer generations by name."""

from __future__ import annotations

from rcdiag.errors import RcdiagError
from rcdiag.trainers.slime import mis as slime
from rcdiag.trainers.trainer import Trainer
from rcdiag.trainers.verl import k_rejection as verl_k
from rcdiag.trainers.verl import ratio_rejection as verl_ratios
from rcdiag.trainers.verl import weights_only as verl_weights

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
