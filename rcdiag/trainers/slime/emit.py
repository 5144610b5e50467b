"""Corrections are written as the YAML of slime's --custom-config-path.

That file holds the settings of the MIS helper, and overrides flags of the same names. Sources:
slime commit 624b824a8, examples/train_infer_mismatch_helper/mis.py and mis.yaml;
slime/utils/arguments.py (`slime_validate_args`).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.bounds import Weights, Window, weights_of, windows_of, within_reach
from rcdiag.corrections.correction import Correction
from rcdiag.trainers.settings_text import ABOVE_ALL, BELOW_ALL, Inexpressible, Written, rounded

LEVELS = ("token", "sequence", "geometric")
ALL = Window(-np.inf, np.inf)
_ICEPOP = "slime.backends.megatron_utils.loss.icepop_function"


def custom_config(correction: Correction) -> Written:
    """Write the correction for the MIS helper where it can, else for what slime has by flags."""
    if correction.mode == "bypass":
        return bypassed(correction)
    weighting = correction.weighting
    zeroes = weighting is not None and weights_of(weighting).zeroes
    return built_in(correction, _ICEPOP) if zeroes and is_built_in(correction) else mis(correction)


def bypassed(correction: Correction) -> Written:
    """Write bypass mode, in which the PPO ratio corrects the mismatch and nothing else does."""
    if not correction.ratio_corrects or correction.counts_mismatch_twice:
        raise Inexpressible("weights or losses of its own in bypass mode")
    if correction.rejections or correction.zeroing or correction.veto is not None:
        raise Inexpressible("rejection without its helper")
    return Written({"use_rollout_logprobs": True})


def is_built_in(correction: Correction) -> bool:
    """Tell whether the clamp or IcePop does it: token weights and nothing rejected."""
    weighting = correction.weighting
    if correction.rejections or correction.veto is not None or correction.zeroing:
        return False
    if weighting is None:
        return True
    plain = correction.weights_applied and not correction.batch_normalize
    return plain and weighting.level == "token" and weighting.outside != "mask"


def built_in(correction: Correction, icepop: str) -> Written:
    """Write the clamp, or IcePop, whose function has the path `icepop`."""
    if correction.weighting is None:
        return Written({"use_tis": False})
    weights = weights_of(correction.weighting)
    window = within_reach(weights.window.lower, weights.window.upper)
    low = 0.0 if window.lower == -np.inf else rounded(float(np.exp(window.lower)))
    high = ABOVE_ALL if window.upper == np.inf else rounded(float(np.exp(window.upper)))
    function = Written({"custom_tis_function_path": icepop})
    bounds = Written({"use_tis": True, "tis_clip": high, "tis_clip_low": low})
    return function | bounds if weights.zeroes else bounds


def mis(correction: Correction) -> Written:
    """Write weights, one rejection at any level, and a veto."""
    if correction.mode != "decoupled" or correction.loss != "ppo_clip":
        raise Inexpressible("bypass mode or loss of its own in the MIS helper")
    windows = windows_of(correction.rejections)
    if odd := [name for name in windows if name not in LEVELS]:
        raise Inexpressible(f"rejection by {odd[0]}")
    if correction.weighting is None:
        if windows or correction.veto is not None:
            raise Inexpressible("rejection without weights (use_tis off is everything off)")
        return Written({"use_tis": False})
    if not correction.weights_applied:
        raise Inexpressible("weights that are logged only")
    weights = weights_of(correction.weighting)
    tis = _tis(weights, windows.get(weights.level))
    if tis.settings["tis_mode"] == "mask":
        windows = {name: window for name, window in windows.items() if name != weights.level}
    return (
        Written({"use_tis": True, "tis_level": weights.level})
        | tis
        | Written({"tis_batch_normalize": correction.batch_normalize})
        | _rs(correction, windows, weights.level)
    )


def _tis(weights: Weights, rejects: Window | None) -> Written:
    """Write weights; weights together with a rejection at their level are the `mask` mode."""
    if weights.zeroes:
        raise Inexpressible("weights that are zeroed outside of bounds (IcePop)")
    if weights.window.bounds_nothing and rejects is not None:
        comment = "mask rejects outside of the bounds and leaves the weights as they are"
        return _mode("mask", {"tis_mode": comment}) | _bounds("tis", rejects)
    bounds = _bounds("tis", weights.window)
    if weights.window.lower > -np.inf:
        return _mode("clip", {}) | bounds
    del bounds.settings["tis_lower_bound"]  # truncation has none
    comments = {}
    if weights.window.upper == np.inf:
        comments["tis_upper_bound"] = "truncates nothing: slime clamps ratios at e^20"
    return _mode("truncate", comments) | bounds


def _mode(name: str, comments: dict[str, str]) -> Written:
    return Written({"tis_mode": name}, comments)


def _rs(correction: Correction, windows: dict[str, Window], level: str) -> Written:
    """Write rejections; a veto needs `use_rs`, and alone takes bounds that reject nothing."""
    if correction.veto is not None and correction.veto_on_weights:
        raise Inexpressible("veto that zeroes weights and leaves the mask alone")
    if len(windows) > 1:
        raise Inexpressible("two rejections beside its weights")
    if not windows and correction.veto is None:
        return Written({"use_rs": False})
    comments = {}
    if not windows:
        comments["rs_upper_bound"] = "these bounds reject nothing; the veto needs use_rs"
    ((name, window),) = (windows or {level: ALL}).items()
    veto = None if correction.veto is None else float(correction.veto)
    return (
        Written({"use_rs": True, "rs_level": name}, comments)
        | _bounds("rs", window)
        | Written({"rs_veto_threshold": veto})
    )


def _bounds(which: str, window: Window) -> Written:
    """Write bounds on ratios; slime fills a null bound in from another one."""
    lower, upper = np.exp(window.lower), np.exp(window.upper)
    return Written(
        {
            f"{which}_lower_bound": rounded(lower or BELOW_ALL),
            f"{which}_upper_bound": ABOVE_ALL if upper == np.inf else rounded(upper),
        }
    )
