"""Corrections are written as settings of NeMo-RL's loss, and of its filter of sequences.

Source: NVIDIA-NeMo/RL commit 7ea279ab, `ClippedPGLossConfig` in
nemo_rl/algorithms/loss/loss_functions.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.bounds import weights_of, windows_of
from rcdiag.corrections.correction import Correction
from rcdiag.trainers.settings_text import (
    ABOVE_ALL,
    BELOW_ALL,
    Inexpressible,
    Value,
    Written,
    rounded,
)

FILTER = "seq_mean_error_factor"
_RATIO = "truncated_importance_sampling_ratio"


def clipped_pg_loss(correction: Correction) -> Written:
    """Write weights, one test that sets weights to 0, and the filter."""
    _refuse_others(correction)
    written = _weights(correction)
    if correction.mode == "bypass":
        written |= Written({"force_on_policy_ratio": True})
    windows = windows_of(correction.rejections)
    if odd := [name for name in windows if name != FILTER]:
        raise Inexpressible(f"rejection by {odd[0]}: its weights are zeroed and nothing is dropped")
    if FILTER in windows:
        written |= Written({"seq_logprob_error_threshold": windows[FILTER].upper})
    return written


def _refuse_others(correction: Correction) -> None:
    if correction.mode == "bypass" and correction.loss != "on_policy":
        raise Inexpressible("PPO ratio against the rollout")
    if correction.mode != "bypass" and correction.loss != "ppo_clip":
        raise Inexpressible(f"loss {correction.loss}")
    if correction.veto is not None:
        raise Inexpressible("veto")
    if correction.batch_normalize or not correction.weights_applied:
        raise Inexpressible("batch normalisation of weights, nor weights that are logged only")


def _weights(correction: Correction) -> Written:
    if correction.weighting is None:
        return Written({"use_importance_sampling_correction": False})
    weights = weights_of(correction.weighting)
    if weights.level not in ("token", "sequence"):
        raise Inexpressible(f"weights of level {weights.level}")
    settings: dict[str, Value] = {"use_importance_sampling_correction": True}
    window, kind = weights.window, "icepop" if weights.zeroes else "tis"
    if correction.zeroing:
        tests = windows_of(correction.zeroing)
        if tests.keys() != {"geometric"} or not window.bounds_nothing:
            raise Inexpressible("test of weights but that by geometric mean, of bare ratios")
        window, kind = tests["geometric"], "seq-mask-tis"
    if not window.bounds_nothing:
        lower, upper = np.exp(window.lower), np.exp(window.upper)
        settings["truncated_importance_sampling_type"] = kind
        settings[_RATIO] = ABOVE_ALL if np.isinf(upper) else rounded(upper)
        if lower > 0.0 or kind != "tis":
            settings[f"{_RATIO}_min"] = rounded(lower or BELOW_ALL)
    if weights.level == "sequence":
        settings |= {"sequence_level_importance_ratios": True, "token_level_loss": False}
    comments = {"truncated_importance_sampling_type": "a zeroed weight leaves the denominators"}
    return Written(settings, comments if weights.zeroes or correction.zeroing else {})
