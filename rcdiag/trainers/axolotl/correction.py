"""The correction of Axolotl's own GRPO trainer: TRL's modes, each with bounds 1 / cap and cap.

The trainer is used with `trl.use_data_producer` or `trl.async_prefetch`. Source: axolotl 0.21.0,
axolotl/core/trainers/grpo/async_trainer.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.results import Finding
from rcdiag.trainers.settings_table import Config, Settings
from rcdiag.trainers.trl.correction import off_policy_mask
from rcdiag.trainers.writing import Facts

GUARD = Guard(bound=np.inf, epsilon=0.0)


def read(settings: Settings) -> Correction:
    """Return the weights and OPSM, which also works without weights."""
    rejections = off_policy_mask(settings)
    if not (settings["use_vllm"] and settings["vllm_importance_sampling_correction"]):
        return Correction(rejections=rejections, guard=GUARD)
    mode, cap = (settings[f"vllm_importance_sampling_{name}"] for name in ("mode", "cap"))
    level, _, outside = mode.partition("_")
    # A mask mode sets a weight above the cap to 0; the lower bound then raises it to 1 / cap.
    weighting = Weighting(
        level, cap, 1.0 / cap, "clip" if outside == "truncate" else "floor", nan_stays=True
    )
    return Correction(weighting, rejections=rejections, guard=GUARD)


def traps(config: Config) -> list[Finding]:
    """Report a mask mode, which does not mask anything."""
    mode, cap = (config[f"vllm_importance_sampling_{name}"] for name in ("mode", "cap"))
    on = config["use_vllm"] and config["vllm_importance_sampling_correction"]
    if not on or not str(mode).endswith("_mask"):
        return []
    return [
        Finding(
            slug="mask-lifted-to-floor",
            severity="warning",
            message=f"{mode} masks nothing: a weight above {cap:g} becomes 0 "
            f"and is then raised to {1.0 / cap:.4g}",
            fix="take a truncate mode, or TRL's trainer (no use_data_producer, no async_prefetch)",
            evidence={"cap": float(cap), "weight_above_cap": 1.0 / cap},
        )
    ]


def facts(correction: Correction, facts: Facts) -> Facts:
    """Tell whether the bounds of the weights, if any, are 1 / cap and cap."""
    if facts["weights"] is None:
        return {"bounds_are_one_cap": True}
    return {"bounds_are_one_cap": abs(facts["lower"] * facts["upper"] - 1.0) <= 1e-9}
