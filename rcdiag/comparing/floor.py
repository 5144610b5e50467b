"""The noise floor: what one policy differs from itself in another batch."""

from __future__ import annotations

from rcdiag.comparing.moments import Moments, k2
from rcdiag.results import MetricValue, NoiseFloor


def noise_floor(moments: Moments, policy: str, repeat: str, largest: float | None) -> NoiseFloor:
    """`largest` is the largest |log-ratio| of both runs, nats."""
    return NoiseFloor(
        policy=policy, repeat=repeat, k2=k2(moments, policy, repeat), log_ratio_abs_max=largest
    )


def at_floor(apart: MetricValue, floor: NoiseFloor | None) -> bool | None:
    """Whether a pair's k2 may be no more than that of two runs of one policy."""
    if floor is None:
        return None
    low = apart.value if apart.low is None else apart.low
    high = floor.k2.value if floor.k2.high is None else floor.k2.high
    return low is not None and high is not None and low <= high
