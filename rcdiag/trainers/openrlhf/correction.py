"""OpenRLHF's correction in two generations: by type (0.11.0), and by level, mode and gate (0.11.2).

Sources: openrlhf 0.11.0 and 0.11.2, openrlhf/models/loss.py (`PolicyLoss`) and
openrlhf/cli/train_ppo_ray.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.trainers.settings_table import Refused, Settings
from rcdiag.trainers.settings_text import ABOVE_ALL, rounded
from rcdiag.trainers.writing import Facts

GUARD = Guard(bound=np.inf, epsilon=0.0)
RAW = Weighting("token", np.inf)  # each token's ratio, unbounded
_THRESHOLD, _LEVEL = "is_correction_threshold", "is_correction_level"
_BYPASS = Correction(mode="bypass", loss="gspo", guard=GUARD)


def by_gate(settings: Settings) -> Correction:
    """Return the correction of 0.11.2: a level, a mode and the statistic that is bounded."""
    # YAML 1.1 reads the word off as false.
    level = "off" if settings.unchecked(_LEVEL) is False else settings[_LEVEL]
    mode, gating = settings["is_correction_mode"], settings["is_correction_gating"]
    lower, upper = _bounds(settings, one_is_upper=True)
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        raise Refused(
            "is_correction_mode: clip only works with level token and gating ratio",
            "use mask, or level token with gating ratio",
        )
    if level == "off":
        return Correction(guard=GUARD)
    if gating != "ratio" and lower > 0.0:
        raise Refused(
            f"{_THRESHOLD}: {gating} only has an upper bound, got {lower:g} {upper:g}",
            "give one number",
        )
    if settings["policy_loss_type"] == "gspo":
        return _BYPASS
    if level == "token" and gating == "ratio":
        return _of_tokens(lower, upper, "clip" if mode == "clip" else "zero")
    if gating == "ratio":
        return _gate(Rejection("geometric", upper, lower))
    place = "token" if level == "token" else "seq_mean"
    return _gate(Rejection(f"{place}_{gating}", upper, lower))


def by_type(settings: Settings) -> Correction:
    """Return the correction of 0.11.0, which has a type."""
    kind = settings["is_correction_type"]
    lower, upper = _bounds(settings, one_is_upper=False)
    if not settings["is_correction_enable"]:
        return Correction(guard=GUARD)
    if settings["policy_loss_type"] == "gspo":
        return _BYPASS
    if kind == "seq-mask-tis":
        return _gate(Rejection("geometric", upper, lower))
    return _of_tokens(lower, upper, "clip" if kind == "tis" else "zero")


def _of_tokens(lower: float, upper: float, outside: Any) -> Correction:
    return Correction(Weighting("token", upper, lower, outside), guard=GUARD)


def _gate(gate: Rejection) -> Correction:
    """Return raw ratios that are zeroed where the gate's statistic is out of bounds."""
    return Correction(RAW, zeroing=(gate,), guard=GUARD)


def _bounds(settings: Settings, *, one_is_upper: bool) -> tuple[float, float]:
    """Return LOW HIGH of the threshold; if allowed, a single number is the upper bound."""
    given = settings[_THRESHOLD]
    values = list(given) if isinstance(given, (list, tuple)) else [given]
    if one_is_upper and len(values) == 1:
        values = [0.0, *values]
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in values)
    if len(values) != 2 or not numbers:
        expected = "LOW HIGH, or HIGH" if one_is_upper else "LOW HIGH"
        raise Refused(f"{_THRESHOLD}: wanted {expected}, got {given!r}", "give numbers")
    return float(values[0]), float(values[1])


def facts(correction: Correction, facts: Facts) -> Facts:
    """Name the gate, which has the bounds: `clip`, `zero`, `geometric` or a divergence."""
    if facts["weights"] is None:
        return {}
    if not facts["zeroings"]:
        gate = "zero" if facts["outside"] == "zero" else "clip"
        lower, upper = facts["lower"], facts["upper"]
    else:
        gate = facts["zeroings"][0]
        lower, upper = (facts[f"zeroings.{gate}.{side}"] for side in ("lower", "upper"))
        if gate != "geometric":
            return {"gate": gate, "threshold": [upper]}
    high = ABOVE_ALL if upper == np.inf else rounded(upper)
    return {"gate": gate, "threshold": [rounded(lower) if lower > 0.0 else 0.0, high]}
