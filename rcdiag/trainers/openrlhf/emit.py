"""Corrections are written as flags of OpenRLHF, by generation.

Sources: openrlhf 0.11.0 and 0.11.2, openrlhf/cli/train_ppo_ray.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.bounds import Window, weights_of, windows_of
from rcdiag.corrections.correction import Correction
from rcdiag.trainers.settings_text import ABOVE_ALL, Inexpressible, Value, Written, rounded

GATES = {
    "token_binary_kl": ("token", "binary_kl"),
    "seq_mean_binary_kl": ("seq", "binary_kl"),
    "token_tv": ("token", "tv"),
    "seq_mean_tv": ("seq", "tv"),
}


def gated(correction: Correction) -> Written:
    """Write flags of 0.11.2: level, mode, gate and threshold."""
    gate = _gate(correction)
    if gate is None:
        return Written({"is_correction_level": "off"})
    name, window = gate
    if name in GATES:
        level, gating = GATES[name]
        threshold: Value = [window.upper]
    else:
        level, gating = ("seq" if name == "geometric" else "token"), "ratio"
        threshold = _ratios(window)
    return Written(
        {
            "is_correction_level": level,
            "is_correction_mode": "clip" if name == "clip" else "mask",
            "is_correction_gating": gating,
            "is_correction_threshold": threshold,
        }
    )


def typed(correction: Correction) -> Written:
    """Write flags of 0.11.0: a type and two thresholds."""
    gate = _gate(correction)
    if gate is None:
        return Written({"is_correction_enable": False})
    name, window = gate
    if name in GATES:
        raise Inexpressible(f"weights that {name} sets to 0")
    kind = {"clip": "tis", "zero": "icepop", "geometric": "seq-mask-tis"}[name]
    return Written(
        {
            "is_correction_enable": True,
            "is_correction_type": kind,
            "is_correction_threshold": _ratios(window),
        }
    )


def _ratios(window: Window) -> Value:
    upper = ABOVE_ALL if window.upper == np.inf else rounded(np.exp(window.upper))
    lower = np.exp(window.lower)
    return [rounded(lower) if lower > 0.0 else 0.0, upper]


def _gate(correction: Correction) -> tuple[str, Window] | None:
    """Return what is held to which window: `clip`, `zero`, `geometric` or a divergence."""
    if correction.mode != "decoupled" or correction.loss != "ppo_clip":
        raise Inexpressible("bypass mode or loss of its own beside its correction")
    if correction.rejections or correction.veto is not None:
        raise Inexpressible("rejection: it sets weights to 0 and keeps the loss mask")
    if correction.batch_normalize:
        raise Inexpressible("batch normalisation of weights")
    if not correction.weights_applied:
        raise Inexpressible("weights that are logged only")
    if correction.weighting is None:
        if correction.zeroing:
            raise Inexpressible("weights of 0 and 1")
        return None
    weights, windows = weights_of(correction.weighting), windows_of(correction.zeroing)
    if weights.level != "token":
        raise Inexpressible(f"weights of level {weights.level}")
    if weights.floors:
        raise Inexpressible("weights that are lifted to the lower bound")
    if not windows:
        return ("zero" if weights.zeroes else "clip"), weights.window
    if len(windows) > 1 or not weights.window.bounds_nothing:
        raise Inexpressible("two bounds at once")
    ((name, window),) = windows.items()
    if name not in (*GATES, "geometric"):
        raise Inexpressible(f"weights that {name} sets to 0")
    return name, window
