"""Evidence and thresholds that causes of several files share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.causes.cause import GUESS, Suspicion, fact
from rcdiag.diagnosis.logged.run import LINEAR_UP_TO
from rcdiag.diagnosis.logged.window import SIZES, StepWindow
from rcdiag.diagnosis.thresholds import MUCH_LARGER
from rcdiag.formats import rough

# Nats, rms log-ratio: in all known healthy runs the rounding of two engines is below this.
ENGINE = math.sqrt(2.0 * LINEAR_UP_TO)
# A single step is beyond rounding by far if its rms log-ratio is above this, a k3 of .009: batches
# of one healthy run differ by less.
FAR = MUCH_LARGER * ENGINE
# |k1|, nats, above which a few large ratios dominate means of ratios over a step.
HEAVY = 0.7
# Mean surprisals that differ by less than this share of the mismatch's size, which is at least
# APART nats rms, belong to the same values in another order.
SAME_SURPRISAL, APART = 0.05, 0.3
# Relative difference of two mean surprisals in trainers that average over micro-batches.
MICRO_BATCHES = 0.05
FEWEST_BEYOND = 2  # steps with an impossible number: a lone one may be of a single token
# Correlation of probabilities above which the values stand at their own tokens.
OWN_TOKENS = 0.9
# Causes that a few tokens with large log-ratios leave open.
OF_FEW_TOKENS = ("zero-placeholder", "weights-differ", "context-differs")
NO_STEPS: Counts = np.zeros(0, np.int64)


def undecided(
    message: str,
    evidence: Sequence[dict[str, Any]],
    also_possible: Sequence[str] = OF_FEW_TOKENS,
    actions: Sequence[str] | None = None,
) -> Suspicion:
    """Return the umbrella for two sides that differ where numbers leave the verdict open."""
    return Suspicion(
        slug="forwards-differ",
        confidence=GUESS,
        verdict="inconclusive",
        message=message,
        evidence=evidence,
        also_possible=also_possible,
        actions=actions,
    )


def k1_evidence(window: StepWindow, reads: str) -> dict[str, Any]:
    """Return the evidence of the mean log-ratio, by the keys that it is taken from."""
    assert window.k1 is not None
    return fact(window.k1.key, reads, value=float(f"{window.k1.value:.4g}"))


def size_evidence(window: StepWindow, reads: str) -> dict[str, Any]:
    """Return the evidence of the number that the size of log-ratios is estimated from."""
    name = window.of_size[0]
    return window.fact(name, reads) if name in SIZES else k1_evidence(window, reads)


def ratio_evidence(window: StepWindow, means: str = "") -> dict[str, Any]:
    """Return the evidence of the mean ratio beside what is expected of it."""
    excess = window.excess
    assert excess is not None
    away, side = abs(excess.z), "above" if excess.value > 0.0 else "below"
    distance = (
        f", {rough(away)} standard errors {side}" if excess.error > 0 else " in one step; expected"
    )
    reads = f"mean ratio{distance} the 1 of the distribution that sampled"
    return fact(
        excess.key,
        f"{reads}: {means}" if means else reads,
        value=float(f"{1.0 + excess.value:.4g}"),
    )
