"""What differs beside a fault of the sampling distribution that is named.

Two tokens of one context share whatever the context has: the mass of a kept set, a sum over the
vocabulary, the normalising of a temperature. What is left between them is another fault's; and no
distribution of the sampler but a penalty knows whether a token occurred before.
"""

from __future__ import annotations

from rcdiag.diagnosis.causes.cause import Suspicion, fact
from rcdiag.diagnosis.causes.penalties import penalty
from rcdiag.diagnosis.features import Features

# Nats, median, by which two tokens of one context may be further apart on one side.
BEYOND = 0.08
# These move two tokens of one context apart otherwise than by a power, so that what is left between
# the two says nothing of another fault.
NOT_A_POWER = ("penalty", "logit-bias", "logit-softcap")
BESIDE = 0.75  # score of what is left without a name


def beside_sampling_cause(features: Features, named: str) -> tuple[str, Suspicion] | None:
    """Look for a second cause beside a sampling distribution; return its slug and evidence."""
    if named in NOT_A_POWER:
        return None
    found = penalty(features)
    if found is not None:
        return "penalty", found
    prefixes = features.shared_prefixes
    if prefixes is None or prefixes.residual <= BEYOND:
        return None
    return "forwards-differ", Suspicion(
        confidence=BESIDE,
        message=f"Beside that the two forward passes differ: two tokens of one context are "
        f"{prefixes.residual:.2g} nats further apart on one side, as under other weights, "
        "precision or model function.",
        evidence=[
            fact(
                "log-prob differences in a context",
                "not only a scale",
                unexplained=prefixes.residual,
            )
        ],
        side="engine",
        also_possible=["weights-differ", "stale-weights", "quantised-weights", "penalty"],
        verdict="correctable",
    )
