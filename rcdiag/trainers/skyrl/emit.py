"""Corrections are written as SkyRL's off_policy_correction, or as a loss on the rollout.

Source: skyrl 0.4.0, skyrl/train/config/config.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.bounds import window_of
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.trainers.settings_text import (
    ABOVE_ALL,
    BELOW_ALL,
    Inexpressible,
    Value,
    Written,
    rounded,
)

_MASKS = {"geometric": ("geometric", "geo"), "sequence": ("product", "product")}


def off_policy_correction(correction: Correction) -> Written:
    """Write the masks and the weights, or the loss that makes the weights."""
    if correction.mode != "decoupled" or correction.veto is not None:
        raise Inexpressible("bypass mode and no veto by the unclamped ratio")
    if correction.batch_normalize or not correction.weights_applied:
        raise Inexpressible("batch normalisation of weights, nor weights that are logged only")
    written = Written()
    for rejection in correction.rejections:
        written |= _mask(rejection)
    if correction.weights_in_loss:
        return written | _loss(correction)
    if correction.zeroing:
        raise Inexpressible("weights that another statistic sets to 0")
    if correction.weighting is not None:
        written |= _weights(correction.weighting)
    return written if written.settings else Written({"tis_ratio_type": None})


def _weights(weighting: Weighting) -> Written:
    level = weighting.level
    if level not in ("token", "sequence"):
        raise Inexpressible(f"weights of level {level}")
    lifted = weighting.outside == "clip" and weighting.lower_or_reciprocal > 0.0
    if lifted or weighting.outside == "zero":
        raise Inexpressible("lower bound of weights, which it only truncates from above")
    upper = np.inf if weighting.outside == "mask" else weighting.upper
    cap = ABOVE_ALL if np.isinf(upper) else rounded(upper)
    return Written({"tis_ratio_type": level, f"{level}_tis_ratio_clip_high": cap})


def _mask(rejection: Rejection) -> Written:
    if rejection.statistic == "seq_max_ratio":
        return Written({"outlier_token_is_threshold_high": rejection.upper})
    if rejection.statistic == "seq_min_ratio":
        return Written({"outlier_token_is_threshold_low": rejection.lower})
    low, high = _bounds(rejection)
    if rejection.statistic == "token":
        name = "token_mask_is_threshold"
        return Written({f"{name}_low": low, f"{name}_high": high})
    if rejection.statistic not in _MASKS:
        raise Inexpressible(f"rejection by {rejection.statistic}")
    metric, prefix = _MASKS[rejection.statistic]
    bounds: dict[str, Value] = {f"{prefix}_mask_low": low, f"{prefix}_mask_high": high}
    return Written({"sequence_mask_metric": metric, **bounds})


def _bounds(rejection: Rejection) -> tuple[float, float]:
    """Return bounds on ratios, of which SkyRL wants both."""
    if not rejection.of_ratio:
        return BELOW_ALL, ABOVE_ALL
    window = window_of(rejection)
    lower, upper = np.exp(window.lower), np.exp(window.upper)
    return rounded(lower or BELOW_ALL), ABOVE_ALL if np.isinf(upper) else rounded(upper)


def _loss(correction: Correction) -> Written:
    weighting = correction.weighting
    assert weighting is not None
    above = rounded(weighting.upper - 1.0) if np.isfinite(weighting.upper) else 0.0
    below = rounded(1.0 - weighting.lower_or_reciprocal)
    if correction.loss == "icepop_rollout":
        bounds: dict[str, Value] = {"eps_clip_low": below, "eps_clip_high": above}
        return Written({"policy_loss_type": "rollout_is", **bounds})
    if correction.loss == "cispo_rollout":
        bounds = {"cispo_eps_clip_low": below, "cispo_eps_clip_high": above}
        return Written({"policy_loss_type": "cispo", "cispo_anchor": "rollout", **bounds})
    if correction.loss not in ("dppo_tv", "dppo_kl"):
        raise Inexpressible(f"loss {correction.loss}")
    rise, fall = (zero.upper for zero in correction.zeroing)
    kind = {"dppo_tv": "binary_tv", "dppo_kl": "binary_kl"}[correction.loss]
    deltas: dict[str, Value] = {"delta_low": fall, "delta_high": rise}
    return Written({"policy_loss_type": "dppo", "dppo_type": kind, **deltas})
