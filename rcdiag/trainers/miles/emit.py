"""Corrections are written as the YAML of miles' --custom-config-path.

miles lets that file override every flag, so that one file holds the switch, the function and its
settings. Source: miles commit 31f1ca96, miles/utils/arguments.py (`miles_validate_args`).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.bounds import weights_of, within_reach
from rcdiag.corrections.correction import Correction
from rcdiag.trainers.settings_text import ABOVE_ALL, Inexpressible, Written, rounded
from rcdiag.trainers.slime.emit import mis

_CORRECTIONS = "miles.backends.training_utils.loss_hub.corrections"
_HELPER = "examples.infra_features.train_infer_mismatch_helper"


def custom_config(correction: Correction) -> Written:
    """Write the correction for miles' own functions where they do, else for the helper."""
    if correction.mode == "bypass":
        if not correction.ratio_corrects or correction.counts_mismatch_twice:
            raise Inexpressible("weights or losses of its own in bypass mode")
        return _rest(correction, Written({"use_rollout_logprobs": True}))
    if _is_plain(correction):
        return _plain(correction)
    written = mis(correction)
    helper = Written({"custom_tis_function_path": f"{_HELPER}.mis.compute_mis_weights_with_cp"})
    return helper | written


def _rest(correction: Correction, written: Written) -> Written:
    if correction.rejections or correction.zeroing or correction.veto is not None:
        raise Inexpressible("rejection without its helper")
    return written


def _is_plain(correction: Correction) -> bool:
    """Tell whether one of miles' two functions does it: token weights and nothing rejected."""
    weighting = correction.weighting
    if correction.rejections or correction.veto is not None or correction.zeroing:
        return False
    if weighting is None:
        return True
    plain = correction.weights_applied and not correction.batch_normalize
    return plain and weighting.level == "token" and weighting.outside != "mask"


def _plain(correction: Correction) -> Written:
    if correction.weighting is None:
        return Written({"use_tis": False})
    weights = weights_of(correction.weighting)
    window = within_reach(weights.window.lower, weights.window.upper)
    low = 0.0 if window.lower == -np.inf else rounded(float(np.exp(window.lower)))
    high = ABOVE_ALL if window.upper == np.inf else rounded(float(np.exp(window.upper)))
    icepop = Written({"custom_tis_function_path": f"{_CORRECTIONS}.icepop_function"})
    bounds = Written({"use_tis": True, "tis_clip": high, "tis_clip_low": low})
    return icepop | bounds if weights.zeroes else bounds
