"""NeMo-RL's settings become a correction: weights, what happens outside bounds, a filter.

Source: NVIDIA-NeMo/RL commit 7ea279ab, nemo_rl/algorithms/loss/loss_functions.py
(`ClippedPGLossFn`) and nemo_rl/algorithms/grpo.py (`compute_and_apply_seq_logprob_error_masking`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.guard import Guard
from rcdiag.corrections.statistics import STATISTICS, Statistic
from rcdiag.trainers.trainer import Config, Refused, choice, optional_number

EPSILON = 1e-8  # which its masked means add to counts
# No clamp before exp; a ratio that is no finite number becomes 0.
GUARD = Guard(bound=np.inf, non_finite="zero", epsilon=EPSILON)
TYPES = ("tis", "icepop", "seq-mask-tis")
SETTINGS: Mapping[str, Any] = {
    "use_importance_sampling_correction": False,
    "truncated_importance_sampling_type": None,
    "truncated_importance_sampling_ratio": None,
    "truncated_importance_sampling_ratio_min": None,
    "sequence_level_importance_ratios": False,
    "token_level_loss": True,
    "reference_policy_kl_type": "k3",
    "force_on_policy_ratio": False,
    "seq_logprob_error_threshold": None,
}
_IS: Config = {"use_importance_sampling_correction": True}
_GSPO: Config = {"sequence_level_importance_ratios": True, "token_level_loss": False}


def _truncated(kind: str, upper: float, lower: float | None = None) -> Config:
    return {
        **_IS,
        "truncated_importance_sampling_type": kind,
        "truncated_importance_sampling_ratio": upper,
        "truncated_importance_sampling_ratio_min": lower,
    }


# Bounds have no defaults: they are those of NeMo-RL's recipes (tis 2) and of its documents.
PRESETS: Mapping[str, Config] = {
    "default": {},
    "importance_sampling": _IS,
    "token_tis": _truncated("tis", 2.0),
    "token_icepop": _truncated("icepop", 5.0, 0.5),
    "seq_mask_tis": _truncated("seq-mask-tis", 1.002, 0.999),
    "gspo_weights": {**_IS, **_GSPO},
    "gspo_tis": {**_truncated("tis", 2.0), **_GSPO},
    "seq_error_filter": {"seq_logprob_error_threshold": 1.5},
    "forced_on_policy": {"force_on_policy_ratio": True},
}


def _geometric(tokens: Tokens) -> Array:
    """Return exp of the mean log-ratio of each token's sequence; those that are no number are 0."""
    numbers = np.where(np.isfinite(tokens.raw_log_ratio), tokens.raw_log_ratio, 0.0)
    epsilon = EPSILON if tokens.raw_log_ratio.dtype == np.float64 else 0.0
    return tokens.on_tokens(np.exp(tokens.row_sum(numbers) / (tokens.lengths + epsilon)))


STATISTICS.ship(
    (
        Statistic(
            name="geometric_of_numbers",
            formula="exp(mean log_ratio of the sequence), log-ratios that are no number as 0",
            unit="ratio",
            of=_geometric,
            ratio_of="geometric",
        ),
    )
)


def read(config: Config) -> Correction:
    """Read the canonical correction; all bounds are included."""
    on = bool(config["use_importance_sampling_correction"])
    by_sequence = bool(config["sequence_level_importance_ratios"])
    if by_sequence and config["token_level_loss"]:
        raise Refused(
            "sequence_level_importance_ratios needs token_level_loss false",
            "set token_level_loss: false",
        )
    kind = choice(config, "truncated_importance_sampling_type", (None, *TYPES))
    low, high = _bounds(config, kind, on)
    weighting, zeroing = _weights(kind, "sequence" if by_sequence else "token", low, high)
    threshold = optional_number(config, "seq_logprob_error_threshold")
    forced = bool(config["force_on_policy_ratio"])
    kl = str(choice(config, "reference_policy_kl_type", ("k1", "k2", "k3")))
    logs = [kl, *(["by sequence"] if by_sequence else [])]
    logs += ["no sequences"] if forced and threshold is None else []
    return Correction(
        weighting=weighting if on else None,
        zeroing=zeroing if on else (),
        rejections=() if threshold is None else (Rejection("seq_mean_error_factor", threshold),),
        guard=GUARD,
        mode="bypass" if forced else "decoupled",
        loss="on_policy" if forced else "ppo_clip",
        logging=", ".join(logs),
    )


def _bounds(config: Config, kind: str | None, on: bool) -> tuple[float, float]:
    """Check bounds as the loss does when it is made, and at its first call."""
    name = "truncated_importance_sampling_ratio"
    high, low = optional_number(config, name), optional_number(config, f"{name}_min")
    if kind is None:
        if high is not None:
            raise Refused(
                f"{name} without truncated_importance_sampling_type: the first loss fails",
                f"set a type, one of {', '.join(TYPES)}, or take the bound out",
            )
        return 0.0, np.inf
    if not on:
        raise Refused(
            f"truncated_importance_sampling_type: {kind} needs use_importance_sampling_correction",
            "set use_importance_sampling_correction: true",
        )
    if high is None or not high > 0:
        raise Refused(f"{name}: {kind} needs a number above 0, got {high}", "2.0 is usual for tis")
    if low is not None and low > high:
        raise Refused(f"{name}_min: {low:g} is above the upper bound {high:g}", "exchange them")
    if low is None and kind != "tis":
        raise Refused(f"{name}_min: {kind} needs a number", "0.5 for icepop, 0.999 for sequences")
    if kind == "seq-mask-tis" and config["sequence_level_importance_ratios"]:
        raise Refused("seq-mask-tis refuses sequence_level_importance_ratios", "take tis or icepop")
    return low or 0.0, high


def _weights(
    kind: str | None, level: Any, low: float, high: float
) -> tuple[Weighting, tuple[Rejection, ...]]:
    if kind == "tis":
        return Weighting(level, high, low, "clip"), ()
    if kind == "icepop":
        return Weighting(level, high, low, "zero"), ()
    free = Weighting(level, np.inf)
    outside = Rejection("token_geometric_of_numbers", high, low)
    return free, (outside,) if kind == "seq-mask-tis" else ()
