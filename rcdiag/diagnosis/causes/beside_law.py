"""A second cause beside a named fault of the sampling distribution.

Normalising constants of a context (kept mass, log-sum-exp) cancel in the difference of two log-
probs; what a power does not explain of these differences is another fault. And only a penalty
depends on whether a token occurred before.
"""

from __future__ import annotations

from rcdiag.diagnosis.causes.cause import Suspicion, fact
from rcdiag.diagnosis.causes.penalties import penalty
from rcdiag.diagnosis.features import Features

# Median residual of log-prob differences within one context, nats, that is no second cause.
BEYOND = 0.08
# These causes change log-prob differences within one context by more than a power, so that the
# residual is no evidence of a second fault.
NOT_A_POWER = ("penalty", "logit-bias", "logit-softcap")
BESIDE = 0.75  # score of an unspecific second cause


def beside_sampling_cause(features: Features, named: str) -> tuple[str, Suspicion] | None:
    """Look for a second cause beside `named`; return its slug and evidence."""
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
