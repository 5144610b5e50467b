"""TRL's asynchronous GRPO: no correction; the PPO ratio is relative to the sampler's log-probs.

Source: trl 1.16.0, trl/experimental/async_grpo/async_grpo_trainer.py, `compute_loss`.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import RATIO, unclamped_k3
from rcdiag.corrections.trainer_means import Batch, Metrics
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import CLIP_RANGE, LossSettings
from rcdiag.trainers.settings_table import Settings
from rcdiag.trainers.trainer import generation
from rcdiag.trainers.trl import losses as trl

_SOURCE = "trl 1.16.0, trl/experimental/async_grpo/async_grpo_trainer.py, compute_loss"


def read(settings: Settings) -> Correction:
    """Return bypass mode: the PPO ratio includes the mismatch, and nothing else uses it."""
    return Correction(mode="bypass", loss="ppo_clip", guard=Guard(bound=np.inf))


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return the ratio and the KL to the sampler at the first update, over all tokens."""
    rows = batch.rows
    if not rows.tokens:
        return {}
    return {
        "ratio": float(rows.sum(RATIO).sum() / rows.tokens),
        "kl": float(rows.sum(unclamped_k3).sum() / rows.tokens),
    }


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return the same for the current policy, and shares of clipped tokens."""
    shares = trl.logged(batch, losses, settings)
    if not len(batch.kept):
        return shares
    log_ratio = batch.log_ratio.detach()
    ratio = log_ratio.exp()
    return {
        "ratio": float(ratio.double().mean()),
        "kl": float((ratio - 1.0 - log_ratio).double().mean()),
        **shares,
    }


VANILLA = replace(trl.VANILLA, source=_SOURCE, settings=CLIP_RANGE)
GENERATIONS = (
    generation(
        "trl-async-1.16",
        package=__name__,
        presets={"default": {}},
        read=read,
        metrics=metrics,
        update=UpdateRules(
            losses=by_name((VANILLA,)),
            aggregations=by_name((trl.AGGREGATIONS["token-mean"],)),
            sees_rejected=True,
            logged=logged,
        ),
    ),
)
