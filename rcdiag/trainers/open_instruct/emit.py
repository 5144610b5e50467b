"""Corrections are written as flags of open-instruct.

Source: open-instruct commit e6c3044a, open_instruct/grpo_utils.py, `GRPOExperimentConfig`.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.correction import Correction
from rcdiag.trainers.settings_text import Inexpressible, Value, Written, rounded

# Statistics of `rho_mask_tv_divergence`, for the lower bound and the upper one.
OF_TV = ("token_rising_tv_lower", "token_rising_tv")


def flags(correction: Correction) -> Written:
    """Write clamped or zeroed weights of tokens or rows; open-instruct rejects nothing."""
    if correction.rejections or correction.veto is not None:
        raise Inexpressible("rejection: its mask sets weights to 0 and leaves the loss mask")
    weighting = correction.weighting
    if weighting is None:
        bypass = correction.mode == "bypass"
        return Written({"use_rho_correction": False, "use_vllm_logprobs": bypass})
    if correction.mode != "decoupled":
        raise Inexpressible("weights where the sampler's log-probs are the old ones")
    if weighting.level not in ("token", "geometric"):
        raise Inexpressible(f"weights by {weighting.level}")
    if not correction.weights_applied or correction.batch_normalize:
        raise Inexpressible("weights that are logged only, or divided by their mean")
    by_tv = {test.statistic for test in correction.zeroing} & set(OF_TV)
    low, high = _bounds(correction, OF_TV if by_tv else (weighting.level,) * 2)
    settings: dict[str, Value] = {"use_rho_correction": True}
    if weighting.level == "geometric":
        settings["rho_mask_sequence_level"] = True
    if by_tv:
        settings["rho_mask_tv_divergence"] = True
    clamps = weighting.outside in ("truncate", "clip")
    floor = weighting.lower_or_reciprocal if weighting.outside == "clip" else 0.0
    settings["rho_clamp_lower_bound"] = _written(floor)
    settings["rho_clamp_upper_bound"] = _written(weighting.upper if clamps else np.inf)
    return Written({**settings, "rho_mask_lower_bound": low, "rho_mask_upper_bound": high})


def _bounds(correction: Correction, statistics: tuple[str, str]) -> tuple[float, float]:
    """Return the bounds outside of which weights are 0, 0 for none.

    `statistics` are those that may have a lower bound and an upper one.
    """
    weighting = correction.weighting
    assert weighting is not None
    tests = [(test.statistic, test.lower, test.upper) for test in correction.zeroing]
    if weighting.outside == "zero":
        tests.append((weighting.level, weighting.lower_or_reciprocal, weighting.upper))
    if weighting.outside == "mask":
        raise Inexpressible("rejection outside the bounds of its weights")
    if odd := [name for name, _, _ in tests if name not in statistics]:
        raise Inexpressible(f"weights that are 0 by {odd[0]}")
    lower = max((lower or 0.0 for _, lower, _ in tests), default=0.0)
    upper = min((upper for _, _, upper in tests), default=np.inf)
    return _written(lower), _written(upper)


def _written(bound: float) -> float:
    """Write a bound; 0 is none, above and below."""
    return 0.0 if bound in (0.0, np.inf) else rounded(bound)
