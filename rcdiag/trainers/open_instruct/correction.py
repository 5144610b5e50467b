"""open-instruct's correction: rho = old / rollout, zeroed outside its mask, then clamped.

Here a sequence is a row; in open-instruct it is a pack of several responses. Sources: open-instruct
commit e6c3044a (2026-08-20), open_instruct/grpo_utils.py (`GRPOExperimentConfig`,
`compute_rho_correction`, `mask_logprobs`).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from rcdiag.corrections.arithmetic import Array, Guard, Tokens
from rcdiag.corrections.correction import Correction, Level, Rejection, Weighting
from rcdiag.corrections.statistics import STATISTICS, Statistic
from rcdiag.trainers.settings_table import Refused, Settings
from rcdiag.trainers.writing import Facts

INVALID_LOGPROB = 1.0  # replaces a log-prob that is NaN
GUARD = Guard(bound=10.0, before_sums=True, epsilon=0.0, nan_log_prob=INVALID_LOGPROB)
# Statistics of `rho_mask_tv_divergence`, for its lower and its upper bound.
OF_TV = ("token_rising_tv_lower", "token_rising_tv")
SWITCHES = (
    *("use_rho_correction", "rho_mask_sequence_level", "rho_mask_tv_divergence"),
    "use_vllm_logprobs",
)
_BOUNDS = (
    *("rho_clamp_lower_bound", "rho_clamp_upper_bound"),
    *("rho_mask_lower_bound", "rho_mask_upper_bound"),
)


def _rising(tokens: Tokens, of_others: float) -> Array:
    """Return the sequence's mean |ratio - 1| at tokens with log_ratio x A > 0, [tokens]."""
    distance = np.abs(tokens.ratio - tokens.ratio.dtype.type(1.0))
    means = tokens.on_tokens(tokens.row_mean(distance))
    rises = np.sign(tokens.log_ratio) * tokens.advantage > 0
    return np.where(rises, means, of_others)


_RISING = "mean |ratio - 1| of the sequence, at tokens with log_ratio x advantage above 0"
_FILE = "open-instruct commit e6c3044a, open_instruct/grpo_utils.py, compute_rho_correction"
STATISTICS.ship(
    Statistic(
        name=name,
        formula=f"{_RISING}; {of_others:g} at others",
        unit="ratio",
        of=partial(_rising, of_others=of_others),
        needs_advantages=True,
        source=_FILE,
    )
    for name, of_others in (("rising_tv", -np.inf), ("rising_tv_lower", np.inf))
)


def read(settings: Settings) -> Correction:
    """Return rho's clamp as weights, and its mask as zeroed weights."""
    switches = {name: settings[name] for name in SWITCHES}
    bounds = {name: _bound(settings, name) for name in _BOUNDS}
    if switches["use_vllm_logprobs"] and switches["use_rho_correction"]:
        raise Refused(
            "use_vllm_logprobs and use_rho_correction are both on",
            "the sampler's log-probs are the old ones then, and rho is 1; turn one off",
        )
    if not switches["use_rho_correction"]:
        return Correction(
            guard=GUARD, mode="bypass" if switches["use_vllm_logprobs"] else "decoupled"
        )
    for name, value in bounds.items():
        lower = "lower" in name
        if value > 0 and (value >= 1.0 if lower else value <= 1.0):
            side = "below 1" if lower else "above 1"
            raise Refused(f"{name}: {value:g} is not {side}", "0 means no bound")
    level: Level = "geometric" if switches["rho_mask_sequence_level"] else "token"
    # The bounds outside of which the weight is 0; a bound of 0 means no bound.
    below, above = OF_TV if switches["rho_mask_tv_divergence"] else (level, level)
    zeroing = []
    if (lowest := bounds["rho_mask_lower_bound"]) > 0:
        zeroing.append(Rejection(below, np.inf, lowest))
    if (highest := bounds["rho_mask_upper_bound"]) > 0:
        zeroing.append(Rejection(above, highest))
    low, high = bounds["rho_clamp_lower_bound"], bounds["rho_clamp_upper_bound"]
    return Correction(
        weighting=Weighting(level, high or np.inf, low, "clip"),
        zeroing=tuple(zeroing),
        guard=GUARD,
    )


def _bound(settings: Settings, name: str) -> float:
    value = settings[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise Refused(f"{name}: wanted a number, got {value!r}", "0 means no bound")
    return float(max(value, 0.0))  # open-instruct tests whether it is above 0


def facts(correction: Correction, facts: Facts) -> Facts:
    """Return the clamp and the mask; an infinite bound is written as 0."""
    weighting = correction.weighting
    if weighting is None:
        return {}
    tests = [(test.statistic, test.lower, test.upper) for test in correction.zeroing]
    if weighting.outside == "zero":
        tests.append((weighting.level, weighting.lower_or_reciprocal, weighting.upper))
    by_tv = any(name in OF_TV for name, _, _ in tests)
    statistics = OF_TV if by_tv else (weighting.level,)
    clamps = weighting.outside in ("truncate", "clip")
    return {
        "rejects_outside": weighting.outside == "mask",
        "by_tv": by_tv,
        "zeroed_by_others": [name for name, _, _ in tests if name not in statistics],
        "mask.lower": max((lower or 0.0 for _, lower, _ in tests), default=0.0),
        "mask.upper": min((upper for _, _, upper in tests), default=np.inf),
        "clamp.lower": weighting.lower_or_reciprocal if weighting.outside == "clip" else 0.0,
        "clamp.upper": weighting.upper if clamps else np.inf,
    }
