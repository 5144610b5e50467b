"""Every policy loss of every generation on the toy of the explanations. Needs torch."""

from __future__ import annotations

import numpy as np

from rcdiag.glossary.worked import BEHAVIOR, LOG_RATIOS
from rcdiag.losses.batch import LossBatch, loss_batch
from rcdiag.losses.evaluate import LossResult
from rcdiag.losses.settings import LossSettings
from tests.losses.rules import RULES, default_settings, evaluate

OLD = np.array(BEHAVIOR)
RATIOS = np.concatenate([np.array(row) for row in LOG_RATIOS])
ADVANTAGES = np.array([1.0, 1.0, 1.0, -1.0, -1.0])
REFUSED = "clip_cov"
ALL_OF_SLIME = {"tis_clip": 2.0, "opsm_delta": 1e-4}


def toy(with_rollout: bool) -> LossBatch:
    return loss_batch(
        OLD + RATIOS, OLD, ADVANTAGES, [3, 2], rollout=OLD - 0.1 if with_rollout else None
    )


def settings(trainer: str) -> LossSettings:
    return default_settings(trainer).changed(dro_beta=0.1)


def run(trainer: str, loss: str, slime: SlimeSettings | None = None) -> LossResult:
    of_trainer = settings(trainer)
    wanted = of_trainer if slime is None else of_trainer.changed(slime=slime)
    return evaluate(toy(trainer == "slime"), loss, wanted, trainer)


def _logged(trainer: str, loss: str) -> set[str]:
    """All that a loss can log."""
    return set(run(trainer, loss, ALL_OF_SLIME if trainer == "slime" else None).metrics)


LOGGED: dict[str, dict[str, set[str]]] = {
    trainer: {loss: _logged(trainer, loss) for loss in generation.losses if loss != REFUSED}
    for trainer, generation in RULES.items()
}
