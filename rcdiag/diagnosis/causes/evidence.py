"""Evidence that several causes show, in the same words."""

from __future__ import annotations

from typing import Any

from rcdiag.diagnosis.causes.cause import fact
from rcdiag.diagnosis.signs import Law

UNSURE = 0.1  # standard error of E[ratio] from which on the mean tells of no law
# Noise of the recorder raises E[ratio] by its square: by this at 0.1 nats, more than engines have.
BY_NOISE, SURELY = 0.01, 5.0


def ratio_fact(law: Law, *, otherwise: str = "") -> dict[str, Any]:
    """Say what E[ratio] tells of the law that sampled; `otherwise` is said where it is not 1.

    It is 1 where the recorded law sampled; a mean with a large error may be that of any law.
    """
    mean, z = law.ratio_mean
    error = abs(mean - 1.0) / abs(z) if z else 0.0
    if otherwise:
        reads = otherwise
    elif above_one(law):
        reads = "above 1 by more than chance and rounding make it: the record may not be the law "
        reads += "that sampled"
    elif error > UNSURE:
        reads = "its error is too large to tell which law sampled"
    else:
        reads = "near 1, as where the recorded law sampled"
    return fact("E[ratio]", reads, value=mean, z=z)


def above_one(law: Law) -> bool:
    """Tell whether E[ratio] is larger than under a recorded law that sampled.

    Large ratios that a sample misses make it too small, and never too large.
    """
    mean, z = law.ratio_mean
    return mean - 1.0 > BY_NOISE and z > law.tokens.as_far(SURELY)
