"""XTuner's weights, rejection and veto: an older helper of verl, with bounds on both sides.

Source: InternLM/xtuner commit b934f462 (2026-08-21), xtuner/v1/rl/rollout_is.py
(`RolloutImportanceSampling`, `compute_rollout_importance_weights`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.statistics import STATISTICS, Statistic
from rcdiag.trainers.settings_table import Refused, Settings
from rcdiag.trainers.settings_text import ABOVE_ALL, rounded
from rcdiag.trainers.writing import Facts

HIGHEST, LOWEST = "seq_max_known_log_ratio", "seq_min_known_log_ratio"


def _known_log_ratio(tokens: Tokens) -> Array:
    """Return log_ratio before any clamp; 0 at NaN, which the veto does not reject."""
    values = tokens.raw_log_ratio
    return np.where(np.isnan(values), values.dtype.type(0.0), values)


STATISTICS.ship(
    [
        Statistic(
            name="known_log_ratio",
            formula="log_ratio without a clamp, 0 where it is NaN",
            of=_known_log_ratio,
            source="InternLM/xtuner commit b934f462, xtuner/v1/rl/rollout_is.py",
        )
    ]
)


def read(settings: Settings) -> Correction:
    """Return weights, rejection at the same level, and the veto; empty without a threshold."""
    bounds = _pair(settings, "rollout_is_threshold")
    if bounds is None:
        return Correction()
    upper, lower = bounds
    level, mode = settings["rollout_is_level"], settings["rollout_is_mode"]
    mask_upper, mask_lower = _pair(settings, "rollout_is_mask_threshold") or bounds
    rejections = [] if mode == "truncate" else [Rejection(level, mask_upper, mask_lower)]
    veto = _pair(settings, "rollout_is_veto_threshold", ordered=False)
    if veto is not None:  # of sequences with a token whose log-ratio is outside of both bounds
        with np.errstate(divide="ignore"):  # XTuner stores the logs of its bounds in float32
            highest, lowest = (float(np.log(np.float32(bound))) for bound in veto)
        rejections += [Rejection(HIGHEST, highest), Rejection(LOWEST, np.inf, lowest)]
    return Correction(
        weighting=Weighting(level, upper, lower, "mask" if mode == "mask" else "clip"),
        rejections=tuple(rejections),
    )


def _pair(settings: Settings, name: str, *, ordered: bool = True) -> tuple[float, float] | None:
    """Return (upper, lower) of a setting; None if it is null."""
    value: Any = settings[name]
    if value is None:
        return None
    values = list(value) if isinstance(value, (list, tuple)) else []
    numbers = [one for one in values if isinstance(one, (int, float))]
    if len(numbers) != 2 or len(values) != 2:
        raise Refused(
            f"{name}: wanted two numbers, (upper, lower), got {value!r}", "such as (5, 0.5)"
        )
    upper, lower = (float(one) for one in numbers)
    if ordered and not upper > lower:
        raise Refused(
            f"{name}: {value!r} has the lower bound first; XTuner stops on it",
            "write (upper, lower), contrary to the docstring",
        )
    if lower < 0.0 or upper < 0.0:
        raise Refused(f"{name}: {value!r} has a bound below 0", "ratios are above 0")
    return upper, lower


def facts(correction: Correction, facts: Facts) -> Facts:
    """Return the mode and bounds for weights and rejection, and what no mode can express."""
    level, rejections = facts["weights"], facts["rejections"]
    tests = {one.statistic: one for one in correction.rejections}
    mode = "truncate" if level not in tests else "mask" if facts["outside"] == "bare" else "both"
    odd = tuple(one for one in rejections if one not in (level, HIGHEST, LOWEST))
    own: Facts = {"own_mode": mode, "odd_rejections": odd, "odd_rejection": next(iter(odd), "")}
    masks = (tests[level].upper, tests[level].lower or 0.0) if level in tests else (np.inf, 0.0)
    if level in tests:
        own["mask_threshold"] = _written(*masks)
    if (weighting := correction.weighting) is not None:
        lower = 0.0 if weighting.outside == "truncate" else weighting.lower or 0.0
        bounds = masks if weighting.outside == "mask" else (weighting.upper, lower)
        own["threshold"] = _written(*bounds)
    if HIGHEST in tests or LOWEST in tests:
        highest = tests[HIGHEST].upper if HIGHEST in tests else np.inf
        lowest = tests[LOWEST].lower if LOWEST in tests else None
        ratios = np.exp(highest), 0.0 if lowest is None else np.exp(lowest)
        # Their logs are float32: six digits restore the same values.
        own["veto_threshold"] = _written(*(float(f"{ratio:.6g}") for ratio in ratios))
    return own


def _written(upper: float, lower: float) -> list[float]:
    """Return both bounds in the order in which they are written, upper first."""
    high = ABOVE_ALL if np.isinf(upper) else float(upper)
    return [rounded(high), rounded(float(lower)) if lower > 0.0 else 0.0]
