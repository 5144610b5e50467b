"""What an estimator must not do, however well it scores. To add one: one entry in CONSTRAINTS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rcdiag.results.sweep import SweepRow
from rcdiag.statistics.metrics.tail import HARMLESS_ESS
from rcdiag.statistics.pareto import UpperTail, k_hat, reliable_below

FEWEST_EFFECTIVE = 30.0


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate's numbers."""

    row: SweepRow
    sequences: int
    tail: UpperTail  # of weight times |advantage|, over sequences
    above_clamp: int  # sequences with a log-ratio, or a sum of them, of 20 nats or more


def _acceptance(it: Judged) -> str | None:
    share = it.row.kept_sequence_share.value
    if share is None or share >= 0.7:
        return None
    return f"keeps {share:.1%} of the sequences, below 70%"


def _lost_mass(it: Judged) -> str | None:
    lost = it.row.lost_mass.value
    if lost is None or lost <= 0.1:
        return None
    return f"rejects {lost:.1%} of the target policy, above 10%"


def _sample_size(it: Judged) -> str | None:
    ess = it.row.ess_seq.value
    left = 0.0 if ess is None else ess * it.sequences
    if left >= FEWEST_EFFECTIVE:
        return None
    return f"leaves {left:.1f} effective sequences, below {FEWEST_EFFECTIVE:.0f}"


def _tail(it: Judged) -> str | None:
    shape, _ = k_hat(it.tail)
    limit = reliable_below(it.tail.count)
    ess = it.row.ess_seq.value
    # k-hat is blind to scale: however heavy, a tail of weights near 1 moves no weighted mean.
    harmless = ess is not None and ess >= HARMLESS_ESS
    if harmless or np.isnan(shape) or shape < limit:
        return None
    return f"k-hat of weight times |advantage| is {shape:.2f}, not below {limit:.2f}"


def _length(it: Judged) -> str | None:
    found = it.row.keep_length_correlation
    if found is None or abs(found) <= 0.2:
        return None
    return f"keeping goes with the length: correlation {found:.2f}, beyond 0.2"


def _reward(it: Judged) -> str | None:
    shift = it.row.reward_shift
    if shift.value is None or shift.low is None or shift.high is None:
        return None
    if shift.low <= 0.0 <= shift.high:
        return None
    return f"shifts the mean reward by {shift.value:.3g} ({shift.low:.3g} to {shift.high:.3g})"


def _clamped(it: Judged) -> str | None:
    # Below -20 nats a weight is 0 with or without the clamp; above, the clamp cuts it down.
    if it.row.clamped_share == 0.0 or not it.above_clamp:
        return None
    return f"{it.above_clamp:,} sequences have ratios above the trainer's clamp of 20 nats"


# Source of the defaults: reference/theory.md 4.3, step 3.
CONSTRAINTS: dict[str, Callable[[Judged], str | None]] = {
    "acceptance": _acceptance,
    "lost_mass": _lost_mass,
    "sample_size": _sample_size,
    "tail": _tail,
    "length": _length,
    "reward": _reward,
    "clamp": _clamped,
}


def refused(it: Judged) -> list[str]:
    """The constraints that a candidate breaks, in words."""
    return [said for check in CONSTRAINTS.values() if (said := check(it)) is not None]
