"""NeMo-RL's correction: weights, their treatment outside of bounds, a filter of sequences.

Source: NVIDIA-NeMo/RL commit 7ea279ab, nemo_rl/algorithms/loss/loss_functions.py
(`ClippedPGLossFn`) and nemo_rl/algorithms/grpo.py (`compute_and_apply_seq_logprob_error_masking`).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.arithmetic import Array, Guard, Tokens
from rcdiag.corrections.correction import Correction, Level, Rejection, Weighting
from rcdiag.corrections.statistics import STATISTICS, Statistic
from rcdiag.trainers.settings_table import Refused, Settings

EPSILON = 1e-8  # added to counts in its masked means
# No clamp before exp; a ratio that is not finite becomes 0.
GUARD = Guard(bound=np.inf, non_finite="zero", epsilon=EPSILON)


def _geometric(tokens: Tokens) -> Array:
    """Return exp of the mean log-ratio of each token's sequence; non-finite ones count as 0."""
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


def read(settings: Settings) -> Correction:
    """Return the weights, what zeroes them, and the filter; all bounds are inclusive."""
    on = bool(settings["use_importance_sampling_correction"])
    by_sequence = bool(settings["sequence_level_importance_ratios"])
    if by_sequence and settings["token_level_loss"]:
        raise Refused(
            "sequence_level_importance_ratios needs token_level_loss false",
            "set token_level_loss: false",
        )
    kind = settings["truncated_importance_sampling_type"]
    low, high = _bounds(settings, kind, on)
    level: Level = "sequence" if by_sequence else "token"
    zeroing: tuple[Rejection, ...] = ()
    if kind == "tis":
        weighting = Weighting(level, high, low, "clip")
    elif kind == "icepop":
        weighting = Weighting(level, high, low, "zero")
    else:
        weighting = Weighting(level, np.inf)
        if kind == "seq-mask-tis":
            zeroing = (Rejection("token_geometric_of_numbers", high, low),)
    threshold = settings["seq_logprob_error_threshold"]
    forced = bool(settings["force_on_policy_ratio"])
    kl = str(settings["reference_policy_kl_type"])
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


def _bounds(settings: Settings, kind: str | None, on: bool) -> tuple[float, float]:
    """Check the bounds, as the loss does when it is created and at its first call."""
    name = "truncated_importance_sampling_ratio"
    high, low = settings[name], settings[f"{name}_min"]
    if kind is None:
        if high is not None:
            raise Refused(
                f"{name} without truncated_importance_sampling_type: the first loss fails",
                "set a type, one of tis, icepop, seq-mask-tis, or take the bound out",
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
    if kind == "seq-mask-tis" and settings["sequence_level_importance_ratios"]:
        raise Refused("seq-mask-tis refuses sequence_level_importance_ratios", "take tis or icepop")
    return low or 0.0, high
