"""From where on an honest number of a correction is a warning or an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rcdiag.corrections.apply import Outcome
from rcdiag.corrections.correction import Correction
from rcdiag.statistics.metrics.metric import PROPOSAL, Guide

HEALTH: dict[str, Guide] = {
    "lost_target_mass_token": Guide(0.1, 0.3, f"{PROPOSAL}; verl's guide: masked share below 0.1"),
    "lost_target_mass_seq": Guide(0.1, 0.3, f"{PROPOSAL}; verl's guide: masked share below 0.1"),
    "truncation_loss": Guide(0.05, 0.3, PROPOSAL),
    "ess_token_applied": Guide(0.5, 0.1, f"{PROPOSAL}; verl's guide wants 0.5"),
    "ess_seq_applied": Guide(0.5, 0.1, f"{PROPOSAL}; verl's guide wants 0.5"),
}

_RANKS = ("ok", "warning", "error")


def judged(correction: Correction) -> list[str]:
    """The numbers that speak about this correction: by token or by sequence, as it works."""
    weighting = correction.loss_weighting
    by_token = weighting is not None and weighting.level == "token"
    names = ["ess_token_applied" if by_token else "ess_seq_applied", "truncation_loss"]
    if any(each.of_tokens for each in correction.rejections):
        names.append("lost_target_mass_token")
    if correction.veto is not None or any(not each.of_tokens for each in correction.rejections):
        names.append("lost_target_mass_seq")
    return names


def level(numbers: Mapping[str, Any], correction: Correction, done: Outcome) -> str:
    """The worst level of the numbers that speak; a batch without a kept token is an error."""
    if done.kept_tokens == 0:
        return "error"
    levels = ["ok"]
    for name in judged(correction):
        value, guide = numbers[name], HEALTH[name]
        if value is not None:
            assert not callable(guide.warning)
            assert not callable(guide.error)
            levels.append(guide.level(value, (guide.warning, guide.error)) or "ok")
    return max(levels, key=_RANKS.index)
