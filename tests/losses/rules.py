"""Losses of a trainer, by name."""

from __future__ import annotations

from typing import Any

from rcdiag.losses import evaluate as module
from rcdiag.losses.batch import LossBatch
from rcdiag.losses.evaluate import LossResult
from rcdiag.losses.settings import LossSettings
from rcdiag.trainers import TRAINERS

RULES = {name: trainer.update for name, trainer in TRAINERS.items()}


def loss_settings(**values: Any) -> LossSettings:
    """Make settings of the reduction and of the loss."""
    return LossSettings().changed(**values)


def default_settings(trainer: str) -> LossSettings:
    return RULES[trainer].defaults


def evaluate(batch: LossBatch, loss: str, settings: LossSettings, trainer: str) -> LossResult:
    return module.evaluate(batch, loss, settings, RULES[trainer])


DECLARED = {
    setting.name: setting
    for rules in RULES.values()
    for loss in rules.losses.values()
    for setting in loss.settings
}


def value(settings: LossSettings, name: str) -> Any:
    """Return a setting of the loss by its name."""
    return settings.value(DECLARED[name])
