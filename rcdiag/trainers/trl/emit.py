"""Corrections are written as settings of TRL's GRPOConfig.

Source: trl 1.16.0, trl/trainer/grpo_config.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.bounds import weights_of, windows_of
from rcdiag.corrections.correction import Correction
from rcdiag.trainers.settings_text import Inexpressible, Value, Written, rounded

OPSM = "seq_mean_negative_lag"


def correction_of_vllm(correction: Correction) -> Written:
    """Write weights of tokens or sequences, and OPSM."""
    return Written({"use_vllm": True}) | _weights(correction) | off_policy_mask(correction)


def _weights(correction: Correction) -> Written:
    refuse_others(correction)
    prefix = "vllm_importance_sampling"
    if correction.weighting is None:
        return Written({f"{prefix}_correction": False})
    weights = weights_of(correction.weighting)
    if weights.floors:
        raise Inexpressible("weights that are lifted to the lower bound")
    if weights.level not in ("token", "sequence"):
        raise Inexpressible(f"weights of level {weights.level}")
    lower, upper = np.exp(weights.window.lower), np.exp(weights.window.upper)
    mode = "mask" if weights.zeroes or weights.window.bounds_nothing else "truncate"
    settings: dict[str, Value] = {
        f"{prefix}_mode": f"{weights.level}_{mode}",
        f"{prefix}_clip_max": None if upper == np.inf else rounded(upper),
        f"{prefix}_clip_min": rounded(lower) if lower > 0.0 else None,
    }
    comment = "a masked weight is 0; the denominators of the loss stay"
    return Written(settings, {f"{prefix}_mode": comment} if weights.zeroes else {})


def refuse_others(correction: Correction) -> None:
    """Refuse what no trainer with weights and OPSM alone has."""
    if correction.mode != "decoupled" or correction.loss != "ppo_clip":
        raise Inexpressible("bypass mode or loss of its own beside its correction")
    if correction.veto is not None:
        raise Inexpressible("veto")
    if not correction.weights_applied:
        raise Inexpressible("weights that are logged only")
    if correction.batch_normalize:
        raise Inexpressible("batch normalisation of weights")
    if correction.zeroing:
        raise Inexpressible("weights that another statistic sets to 0")


def off_policy_mask(correction: Correction) -> Written:
    """Write OPSM, the only rejection that there is."""
    windows = windows_of(correction.rejections)
    if odd := [name for name in windows if name != OPSM]:
        raise Inexpressible(f"rejection by {odd[0]}")
    if OPSM not in windows:
        return Written()
    return Written({"off_policy_mask_threshold": windows[OPSM].upper})
