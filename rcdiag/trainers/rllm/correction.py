"""rLLM's weights: computed by verl on one backend, by Fireworks' cookbook on the other.

The same `tis_mode` means different weights: `sequence` is a product on verl and a geometric mean on
Fireworks, where null is the default of the cookbook's class and does not mean off. Sources:
rllm-org/rllm commit 9beb6e0f (2026-08-15), rllm/trainer/verl/verl_backend.py
(`process_backend_batch`, `validate_config`), rllm/trainer/fireworks/fireworks_policy_trainer.py
(`forward_backward_from_trajectory_groups`); fw-ai/cookbook commit bba676c6,
training/utils/rl/tis.py (`TISConfig`, `compute_tis_weight`) and losses.py
(`build_builtin_loss_datums`).
"""

from __future__ import annotations

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.trainers.settings_table import NotComputed, Refused, Settings
from rcdiag.trainers.verl.correction import weights_at

BYPASS = Correction(mode="bypass")
# rllm/trainer/tinker reads nothing of rollout_correction: the sampler's log-probs are the old ones,
# and rllm/trainer/tinker/tinker_metrics_utils.py logs other numbers (`train/`).
TINKER = "tinker"
ON_TINKER = Correction(mode="bypass", logging=TINKER)
# Cookbook: token log-ratios are clamped to +-20 before averaging, and means have no epsilon.
FIREWORKS = Guard(before_sums=True, epsilon=0.0)
CAP_WITHOUT_TIS_MODE = 5.0  # `TISConfig().cap`


def on_verl(settings: Settings) -> Correction:
    """Return the weights of verl 0.8.0 at level `tis_mode`, truncated or IcePop."""
    level, cap, bypass = (settings[name] for name in ("tis_mode", "tis_cap", "bypass_mode"))
    _check_backend(settings, "verl")
    if settings["backend"] == TINKER:
        return ON_TINKER
    if bypass and level is not None:
        raise Refused(
            "bypass_mode and tis_mode are both set, and rLLM stops on its verl backend",
            "then old is the rollout, and every weight would be 1; turn one off",
        )
    if bypass:
        return BYPASS
    if level is None:
        return Correction()
    return Correction(weighting=weights_at(level, cap, icepop=True, name="tis_cap"))


def on_fireworks(settings: Settings) -> Correction:
    """Return truncated weights of tokens or geometric means; they cannot be switched off."""
    level, cap, bypass = (settings[name] for name in ("tis_mode", "tis_cap", "bypass_mode"))
    _check_backend(settings, "fireworks")
    if settings["backend"] == TINKER:
        return ON_TINKER
    if bypass:
        return Correction(mode="bypass", guard=FIREWORKS)
    if level is None:
        weighting = Weighting("token", CAP_WITHOUT_TIS_MODE)
    else:
        weighting = Weighting("geometric" if level == "sequence" else "token", cap)
    return Correction(weighting=weighting, guard=FIREWORKS)


def _check_backend(settings: Settings, expected: str) -> None:
    """Do not compute settings of a run that uses another backend."""
    backend = settings["backend"]
    if backend not in (expected, TINKER):
        raise NotComputed(
            f"backend: {backend}, but the numbers of {expected} are requested",
            "rllm-verl is the verl backend, rllm-fireworks the fireworks backend",
        )
