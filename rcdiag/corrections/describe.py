"""Describe in words what corrections do to weights and loss mask."""

from __future__ import annotations

import math

from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.corrections.statistics import STATISTICS, place_and_statistic

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
# Place of a statistic -> how it is aggregated from tokens.
REDUCED = {
    "token": "of the token",
    "segment": "averaged over the run of sampled tokens",
    "seq_sum": "summed over the sequence",
    "seq_mean": "averaged over the sequence",
    "seq_max": "largest of the sequence",
    "seq_min": "smallest of the sequence",
}


def statistic(name: str) -> str:
    """Describe a statistic: `k1 = -log_ratio, averaged over the sequence`."""
    place, k = place_and_statistic(name)
    return f"{k} = {STATISTICS[k].formula}, {REDUCED[place]}"


def describe(correction: Correction) -> str:
    """Describe what a correction does to weights and loss mask, and its mode."""
    parts = [_weights(correction)]
    for zeroing in correction.zeroing:  # the zeroed tokens stay in the loss mask
        parts.append(_rejection(zeroing).replace("keeps", "gives weight 0 to all but", 1))
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
    bounds = f"[{weighting.lower_or_reciprocal:g}, {weighting.upper:g}]"
    treated = {
        "truncate": f"truncated at {weighting.upper:g} (TIS)",
        "clip": f"clipped to {bounds}",
        "zero": f"set to 0 outside {bounds} (IcePop)",
        "mask": "as they are (MIS)",
        "floor": f"set to {weighting.lower_or_reciprocal:g} outside {bounds}",
    }[weighting.outside]
    if math.isinf(weighting.upper) and (
        weighting.outside in ("truncate", "mask") or not weighting.lower_or_reciprocal
    ):
        treated = "as they are"
    logged = "" if correction.weights_applied else ", logged and not applied"
    return f"{weighting.level} weights {treated}{logged}"


def _rejection(rejection: Rejection) -> str:
    """Describe what a rejection keeps; bounds on k1 are given as the ratios that the code keeps."""
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
    return f"keeps {_WHOLE.get(over, 'sequences')} {bounds} of {statistic(rejection.statistic)}"


def _kept(over: str, lower: float, upper: float) -> str:
    whole = _WHOLE.get(over, "sequences")
    return f"keeps {whole} with {_RATIOS[over]} within [{lower:.4g}, {upper:.4g}]"
