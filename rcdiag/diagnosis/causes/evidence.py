"""Evidence that several causes show, in the same words."""

from __future__ import annotations

from typing import Any

from rcdiag.diagnosis.causes.cause import fact
from rcdiag.diagnosis.signs import Law

UNSURE = 0.1  # standard error of E[ratio] from which on the mean tells of no law


def ratio_fact(law: Law, *, otherwise: str = "") -> dict[str, Any]:
    """Say what E[ratio] tells of the law that sampled; `otherwise` is said where it is not 1.

    It is 1 where the recorded law sampled; a mean with a large error may be that of any law.
    """
    mean, z = law.ratio_mean
    error = abs(mean - 1.0) / abs(z) if z else 0.0
    if otherwise:
        reads = otherwise
    elif error > UNSURE:
        reads = "its error is too large to tell which law sampled"
    else:
        reads = "near 1, as where the recorded law sampled"
    return fact("E[ratio]", reads, value=mean, z=z)
