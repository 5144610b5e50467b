"""Corrections in words, and as the settings of every trainer that can express them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rcdiag.corrections.bounds import place_and_statistic
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.errors import RcdiagError
from rcdiag.glossary.generations import grouped
from rcdiag.glossary.options import statistic
from rcdiag.trainers.emit import emit, writers

_RATIOS = {
    "seq_mean": "geometric mean ratio",
    "seq_sum": "product of ratios",
    "token": "ratio",
    "segment": "geometric mean ratio",
}
_OF_LEVEL = {
    "token": "token",
    "segment": "segment",
    "sequence": "seq_sum",
    "geometric": "seq_mean",
}
_WHOLE = {"token": "tokens", "segment": "segments (runs of sampled tokens)"}


def describe(correction: Correction) -> str:
    """Say what a correction does to weights and loss mask, and in which mode."""
    parts = [_weights(correction), *map(_zeroing, correction.zeroing)]
    parts += map(_rejection, correction.rejections)
    if not correction.rejections and correction.veto is None:
        parts.append("nothing rejected")
    if correction.veto is not None:
        does = "zeroes the weights of" if correction.veto_on_weights else "drops"
        parts.append(f"{does} a sequence with a token ratio below {correction.veto:g}")
    if correction.batch_normalize:
        parts.append("weights divided by their mean")
    loss = f", loss {correction.loss}" if correction.mode == "bypass" and correction.loss else ""
    return "; ".join([*parts, correction.mode + loss])


def _weights(correction: Correction) -> str:
    weighting = correction.weighting
    if weighting is None:
        return "no weights"
    logged = "" if correction.weights_applied else ", logged and not applied"
    return f"{weighting.level} weights {_outside(weighting)}{logged}"


def _outside(weighting: Weighting) -> str:
    bounds = f"[{weighting.lower_or_reciprocal:g}, {weighting.upper:g}]"
    if math.isinf(weighting.upper) and (
        weighting.outside in ("truncate", "mask") or not weighting.lower_or_reciprocal
    ):
        return "as they are"
    return {
        "truncate": f"truncated at {weighting.upper:g} (TIS)",
        "clip": f"clipped to {bounds}",
        "zero": f"set to 0 outside {bounds} (IcePop)",
        "mask": "as they are (MIS)",
        "floor": f"set to {weighting.lower_or_reciprocal:g} outside {bounds}",
    }[weighting.outside]


def _rejection(rejection: Rejection) -> str:
    """Say what a rejection keeps; bounds on k1 are written as the ratios that the code keeps."""
    if rejection.of_ratio:
        over, lower, upper = _OF_LEVEL[rejection.statistic], rejection.lower, rejection.upper
        return _kept(over, lower or 0.0, upper)
    over, k = place_and_statistic(rejection.statistic)
    if k == "k1" and over in _RATIOS:
        ends = sorted(math.exp(-end) for end in (rejection.upper, rejection.lower or 0.0))
        return _kept(over, *ends)
    bounds = f"up to {rejection.upper:g}"
    if rejection.lower is not None:
        bounds = f"within [{rejection.lower:g}, {rejection.upper:g}]"
    return f"keeps {_whole(over)} {bounds} of {statistic(rejection.statistic)}"


def _zeroing(rejection: Rejection) -> str:
    """Say which tokens have weight 0 and stay in the loss mask."""
    return _rejection(rejection).replace("keeps", "gives weight 0 to all but", 1)


def _kept(over: str, lower: float, upper: float) -> str:
    return f"keeps {_whole(over)} with {_RATIOS[over]} within [{lower:.4g}, {upper:.4g}]"


def _whole(over: str) -> str:
    return _WHOLE.get(over, "sequences")


def settings_of(correction: Correction) -> dict[str, str]:
    """Return a correction's settings by group of trainers; trainers that lack it are left out."""
    texts = {trainer: _settings(correction, trainer) for trainer in writers()}
    return grouped({trainer: text for trainer, text in texts.items() if text is not None})


def _settings(correction: Correction, trainer: str) -> str | None:
    try:
        return settings_text(emit(correction, trainer).settings)
    except RcdiagError:
        return None


def settings_text(config: Mapping[str, Any]) -> str:
    """Write settings as YAML does: `rollout_is: token, rollout_is_threshold: 2.0`."""
    return ", ".join(f"{name}: {plain(value)}" for name, value in config.items())


def plain(value: Any) -> str:
    """Write a value as YAML does."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    bounds = isinstance(value, str) and "_" in value and value[0].isdigit()
    return f'"{value}"' if bounds else f"{value}"
