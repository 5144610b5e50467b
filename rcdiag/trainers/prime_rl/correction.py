"""prime-rl's loss has the mismatch in its ratio, and drops tokens beyond a trust region.

There are two policies only: the log-ratio is that of the policy being trained to the sampler.
Sources: prime-rl commit 559b4477 (2026-08-21), src/prime_rl/trainer/rl/loss.py (`default_loss_fn`,
`ipo_loss_fn`) and packages/prime-rl-configs/src/prime_rl/configs/trainer.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.trainers.settings_table import Settings
from rcdiag.trainers.writing import Facts

RAW = Weighting("token", np.inf, 0.0, "clip")  # the ratio, without a bound
UNCLAMPED = Guard(bound=np.inf)


def read(settings: Settings) -> Correction:
    """Return the ratio as weight, and which tokens lose it; these keep the quadratic term."""
    numbers = ("dppo_mask_low", "dppo_mask_high", "ipo_threshold", "adv_tau", "kl_tau")
    kind = settings["type"]
    low, high, threshold, *_ = (settings[name] for name in numbers)  # all of them are checked
    if kind == "ipo":
        dropped: tuple[Rejection, ...] = (Rejection("token_tv", threshold),)
    else:
        dropped = (Rejection("token_rise", high), Rejection("token_fall", low))
    return Correction(
        weighting=RAW,
        rejections=dropped,
        zeroing=dropped,
        mode="bypass",
        loss="ipo" if kind == "ipo" else "dppo_tv",
        guard=UNCLAMPED,
    )


def facts(correction: Correction, facts: Facts) -> Facts:
    """Tell whether the weights have no bounds, and whether tests have more than an upper one."""
    weighting, rejections = correction.weighting, correction.rejections
    return {
        "bare": weighting is not None
        and weighting.upper == np.inf
        and not (weighting.lower or 0.0) > 0.0,
        "twice": len({one.statistic for one in rejections}) < len(rejections),
        "lower_bounds": any(one.lower is not None for one in rejections),
    }
