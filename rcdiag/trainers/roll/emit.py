"""Corrections are written as ROLL's block `train_infer_correction`.

Source: ROLL commit 8eb27cc2, roll/configs/base_config.py (`TrainInferCorrectionConfig`).
"""

from __future__ import annotations

import math
from typing import Any

from rcdiag.corrections.bounds import LEVELS
from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.trainers.settings_text import Inexpressible, Value, Written, rounded

# Beyond these no ratio, and no difference of probabilities times tokens, is found.
_WIDEST = {"ratio": (0.0, 1e9), "diff": (-1e9, 1e9)}
_DIFFERENCES = {
    "token_prob_change": "token",
    "segment_prob_change": "segment",
    "seq_mean_prob_change": "geometric",
    "seq_sum_prob_change": "sequence",
}


def block(correction: Correction) -> Written:
    """Write weights cut off above, and one filter for each rejection."""
    if correction.mode != "decoupled" or correction.loss != "ppo_clip":
        raise Inexpressible("bypass mode or loss of its own")
    if correction.veto is not None or correction.zeroing:
        raise Inexpressible("veto, and weights are 0 nowhere: its filters reject")
    return _weight(correction) | Written({"filters": _filters(correction)})


def _weight(correction: Correction) -> Written:
    weighting = correction.weighting
    if weighting is None:
        return Written({"is_weight.enabled": False})
    if not correction.weights_applied or correction.batch_normalize:
        raise Inexpressible("weights that are logged only, or divided by their mean")
    if weighting.outside == "zero" or weighting.over:
        raise Inexpressible("weights that are 0 outside of bounds")
    if weighting.outside == "clip" and weighting.lower_or_reciprocal > 0.0:
        raise Inexpressible("lower bound on weights")
    upper = math.inf if weighting.outside == "mask" else weighting.upper
    settings: dict[str, Value] = {
        "is_weight.enabled": True,
        "is_weight.weight_type": weighting.level,
        "is_weight.upper_bound": None if math.isinf(upper) else rounded(upper),
    }
    return Written(settings)


def _filters(correction: Correction) -> list[dict[str, Any]]:
    """Return one rule for each rejection: ratios, also as k1, and differences of probabilities."""
    return [_filter(rejection) for rejection in correction.rejections]


def _filter(rejection: Rejection) -> dict[str, Any]:
    lower = -math.inf if rejection.lower is None else rejection.lower
    name, upper = rejection.statistic, rejection.upper
    if rejection.over:
        raise Inexpressible("rejection over what another one leaves")
    if name in _DIFFERENCES:
        return _rule(_DIFFERENCES[name], "diff", lower, upper)
    if name not in LEVELS:
        raise Inexpressible(f"rejection by {name}")
    if name.endswith("k1"):  # -log_ratio: the bounds change places
        lower, upper = math.exp(-upper), math.exp(-lower)
    return _rule(LEVELS[name], "ratio", lower, upper)


def _rule(level: str, side: str, lower: float, upper: float) -> dict[str, Any]:
    widest = _WIDEST[side]
    bounds = (max(lower, widest[0]), min(upper, widest[1]))
    low, high = (rounded(bound) if bound > 0 else bound for bound in bounds)
    rule = {"enabled": True, "agg_type": level}
    if side == "diff":
        rule |= {"ratio_enabled": False, "diff_enabled": True}
    return {**rule, f"{side}_low": low, f"{side}_high": high}
