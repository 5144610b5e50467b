"""Corrections are written as the YAML of miles' --custom-config-path.

miles lets that file override every flag, so that one file holds the switch, the function and its
settings. Source: miles commit 31f1ca96, miles/utils/arguments.py (`miles_validate_args`).
"""

from __future__ import annotations

from rcdiag.corrections.correction import Correction
from rcdiag.trainers.settings_text import Written
from rcdiag.trainers.slime.emit import built_in, bypassed, is_built_in, mis

_ICEPOP = "miles.backends.training_utils.loss_hub.corrections.icepop_function"
_HELPER = "examples.infra_features.train_infer_mismatch_helper"


def custom_config(correction: Correction) -> Written:
    """Write the correction for miles' own functions where they do, else for the helper."""
    if correction.mode == "bypass":
        return bypassed(correction)
    if is_built_in(correction):
        return built_in(correction, _ICEPOP)
    written = mis(correction)
    helper = Written({"custom_tis_function_path": f"{_HELPER}.mis.compute_mis_weights_with_cp"})
    return helper | written
