"""One preset on one batch: its weights and mask, its loss, what the trainer would log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.config import Correction
from rcdiag.corrections.outcome import quantities_of
from rcdiag.corrections.reductions import Batch
from rcdiag.corrections.plan import Plan
from rcdiag.corrections.tokens import TokenEffects, token_effects
from rcdiag.replaying.batch import ReplayBatch

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Applied:
    """A correction as it stands in the loss of one batch."""

    mode: str  # decoupled, bypass or naive
    loss: str  # name of the policy loss
    anchor: Array  # [tokens] what the PPO ratio is taken against
    kept: NDArray[np.bool_]  # [tokens]
    weights: Array | None  # [tokens] in the loss; batch normalisation done
    metrics: Mapping[str, float]  # of the correction, as the trainer logs them

    @property
    def final(self) -> Array:
        """[tokens] weights, 0 where rejected."""
        weights = np.ones(len(self.kept)) if self.weights is None else self.weights
        return np.where(self.kept, weights, 0.0)


def applied(plan: Plan, name: str, batch: ReplayBatch, loss: str) -> Applied:
    """Decoupled: weights old / rollout, anchor old. Bypass: both of current against rollout.

    Source: reference/verl.md 3, "bypass_mode" step by step, and "Decoupled".
    """
    correction = plan.corrections[name]
    bypass = correction.mode == "bypass"
    target = "current" if bypass else "old"
    effects, metrics = _effects(plan, correction, batch, target)
    if not bypass:
        return Applied("decoupled", loss, batch.old, effects.kept, effects.weights, metrics)
    kind = "reinforce" if correction.loss == "reinforce" else "vanilla"
    weights = effects.weights if kind == "reinforce" else None
    return Applied("bypass", kind, batch.rollout, effects.kept, weights, metrics)


def naive(batch: ReplayBatch, loss: str) -> Applied:
    """What happens without any correction: PPO against the trainer's own log-probs."""
    return Applied("naive", loss, batch.old, np.ones(batch.tokens, np.bool_), None, {})


def _effects(
    plan: Plan, correction: Correction, batch: ReplayBatch, target: str
) -> tuple[TokenEffects, Mapping[str, float]]:
    quantities = [*plan.trainer.quantities(correction), *quantities_of(correction)]
    with np.errstate(all="ignore"):
        tokens, rows = batch.rows(
            "rollout", target, list(dict.fromkeys(quantities)), keep_ratios=plan.trainer.percentiles
        )
        effects = token_effects(correction, tokens, rows)
        metrics = plan.trainer.metrics(Batch(rows), correction)
    if effects.weights is None or not correction.batch_normalize:
        return effects, metrics
    factor = _factor(plan.trainer.name, metrics, Batch(rows))
    return TokenEffects(effects.kept, effects.weights / factor), metrics


def _factor(trainer: str, metrics: Mapping[str, float], batch: Batch) -> float:
    """The mean that the weights are divided by, as the trainer has it.

    slime logs the mean over rows of that number, with 0 for a row without a token.
    """
    found: Any = next(v for key, v in metrics.items() if key.endswith("batch_norm_factor"))
    return float(found) * (batch.all_rows / len(batch.rows) if trainer == "slime" else 1.0)
