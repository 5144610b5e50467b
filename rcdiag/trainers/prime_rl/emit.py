"""Corrections are written as the table of a loss in prime-rl's TOML.

Source: prime-rl commit 559b4477, packages/prime-rl-configs/src/prime_rl/configs/trainer.py.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.correction import Correction
from rcdiag.trainers.settings_text import Inexpressible, Written


def loss_table(correction: Correction) -> Written:
    """Write the trust region of a correction whose weight is the bare ratio."""
    weighting = correction.weighting
    if weighting is None:
        raise Inexpressible("update without weights: its loss is made of the ratio")
    bounded = weighting.upper < np.inf or (weighting.lower or 0.0) > 0.0
    if weighting.level != "token" or bounded:
        raise Inexpressible("weights other than the bare ratio of tokens")
    bounds = {rejection.statistic: rejection for rejection in correction.rejections}
    if len(bounds) < len(correction.rejections) or correction.veto is not None:
        raise Inexpressible("more than one test of a kind, and no veto")
    if any(rejection.lower is not None for rejection in bounds.values()):
        raise Inexpressible("lower bounds on what a probability may move")
    if bounds.keys() == {"token_tv"}:
        return Written({"type": "ipo", "ipo_threshold": bounds["token_tv"].upper})
    if bounds.keys() <= {"token_rise", "token_fall"}:
        # No probability moves by more than 1.
        high, low = (
            bounds[name].upper if name in bounds else 1.0 for name in ("token_rise", "token_fall")
        )
        return Written({"type": "default", "dppo_mask_low": low, "dppo_mask_high": high})
    odd = next(iter(bounds.keys() - {"token_rise", "token_fall"}))
    raise Inexpressible(f"rejection by {odd}")
