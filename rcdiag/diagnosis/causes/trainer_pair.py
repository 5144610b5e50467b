"""Two columns of the trainer, `old` and `current`: noise of micro-batches, or updates in between.

Neither policy sampled, and both columns come from one engine. On policy both have the same weights:
they differ only by the trainer's numerics, and the PPO ratio is 1 up to that noise.
"""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.cause import (
    EXACT,
    LIKELY,
    Suspicion,
    by_token_fact,
    fact,
    shipped,
)
from rcdiag.diagnosis.causes.lag import looks_like_other_weights
from rcdiag.diagnosis.causes.noise import is_engine_noise
from rcdiag.diagnosis.causes.weights import old_after_update
from rcdiag.diagnosis.features import BITWISE, ENGINE_NOISE, Features

# The width of PPO's clip in most trainers: noise beyond it is clipped.
CLIP = 0.2


def of_trainer_alone(case: Case) -> bool:
    """Tell whether both policies of the pair are the trainer's: `old` and `current`."""
    return {case.sampler, case.trainer} == {"old", "current"}


def _updated(features: Features) -> bool:
    """Tell whether log-ratios look like those of an update: by token id, or by advantage."""
    return looks_like_other_weights(features.log_ratios) or old_after_update(features) is not None


def _batch_noise(features: Features) -> Suspicion | None:
    log_ratios = features.log_ratios
    if not of_trainer_alone(features.case) or log_ratios.rms < BITWISE:
        return None
    if not is_engine_noise(features) or _updated(features):
        return None
    beyond = float(np.mean(np.abs(np.expm1(log_ratios.values)) > CLIP))
    return Suspicion(
        confidence=EXACT if log_ratios.rms < ENGINE_NOISE else LIKELY,
        message=f"`{features.case.sampler}` and `{features.case.trainer}` are both the trainer's, "
        f"and differ by {log_ratios.rms:.2g} nats rms without any pattern: noise of other "
        "micro-batches or kernels, and no update in between.",
        evidence=[
            fact("rms log-ratio", "rounding", rms=log_ratios.rms),
            by_token_fact(log_ratios, "no update moved the weights"),
            fact(f"tokens with a ratio beyond 1 ± {CLIP}", "what PPO clips", share=beyond),
        ],
        side="trainer",
        also_possible=["dropout-in-trainer", "moe-routing", "updates-in-between"],
    )


def _updates_in_between(features: Features) -> Suspicion | None:
    log_ratios = features.log_ratios
    if not of_trainer_alone(features.case) or not _updated(features):
        return None
    return Suspicion(
        confidence=EXACT,
        message=f"`{features.case.sampler}` and `{features.case.trainer}` are both the trainer's, "
        f"and their difference ({log_ratios.rms:.2g} nats rms) is systematic: updates were made in "
        "between, as from the second mini-batch on. This is the PPO ratio.",
        evidence=[
            by_token_fact(log_ratios, "systematic, not noise"),
            fact("rms log-ratio", "moved by updates", rms=log_ratios.rms),
        ],
        also_possible=["batch-noise"],
    )


TRAINER_PAIR = (
    shipped("batch-noise", "difference", _batch_noise),
    shipped("updates-in-between", "difference", _updates_in_between),
)
