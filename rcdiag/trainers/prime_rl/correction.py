"""prime-rl's correction: the loss's ratio includes the mismatch; tokens may be dropped.

There are only two policies: the log-ratio is trained policy - sampler. The weight of a token is its
ratio, even if it is dropped by the trust region.
Sources: prime-rl commit 559b4477 (2026-08-21), src/prime_rl/trainer/rl/loss.py (`default_loss_fn`,
`ipo_loss_fn`) and packages/prime-rl-configs/src/prime_rl/configs/trainer.py; since then its pull
requests #3418, #3526 and #3586 (2026-08-27, 2026-09-10 and 2026-09-18).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.trainers.settings_table import NotComputed, Refused, Settings
from rcdiag.trainers.writing import Facts

RAW = Weighting("token", np.inf, 0.0, "clip")  # the ratio, without a bound
UNCLAMPED = Guard(bound=np.inf)


def read(settings: Settings) -> Correction:
    """Return the ratio as weight, and the rejection of tokens from the policy term."""
    kind = settings["type"]
    if kind == "custom":
        raise NotComputed(
            "type: custom, a function of your own, which the file only names",
            "use ipo or icepop, whichever is closer",
        )
    numbers = {name: settings[name] for name in settings if name != "type"}  # all are checked
    if kind == "ipo":
        bound = numbers["eps" if "eps" in numbers else "ipo_threshold"]
        dropped: tuple[Rejection, ...] = (Rejection("token_tv", bound),)
    elif kind == "icepop":
        low, high = numbers["ratio_low"], numbers["ratio_high"]
        if low > high:
            raise Refused(f"ratio_low: {low:g} is above ratio_high, {high:g}", "exchange them")
        dropped = (Rejection("token", high, low),)
    else:
        rise, fall = numbers["dppo_mask_high"], numbers["dppo_mask_low"]
        dropped = (Rejection("token_rise", rise), Rejection("token_fall", fall))
    return Correction(
        weighting=RAW,
        rejections=dropped,
        mode="bypass",
        loss="dppo_tv" if kind == "default" else kind,
        guard=UNCLAMPED,
    )


def facts(correction: Correction, facts: Facts, *, has_dppo: bool = False) -> Facts:
    """Return whether weights are unbounded, which bounds tests have, and the loss with these.

    Until August 2026 the loss without its own test was DPPO.
    """
    weighting, rejections = correction.weighting, correction.rejections
    if has_dppo:
        loss = "ipo" if facts["rejection"] == "token_tv" else "default"
    else:
        loss = "icepop" if any(one.of_ratio for one in rejections) else "ipo"
    return {
        "type": loss,
        "bare": weighting is not None
        and weighting.upper == np.inf
        and not (weighting.lower or 0.0) > 0.0,
        "twice": len({one.statistic for one in rejections}) < len(rejections),
        "lower_bounds": any(one.lower is not None for one in rejections if not one.of_ratio),
    }
