"""The probability that a named cause is right: a logistic regression, fitted on generated tables.

A cause scores its evidence on a scale of its own. How much such a score is worth depends on the
table: on the number of tokens and rows, the size of the mismatch, whether E[ratio] agrees with the
verdict, and the score of the runner-up in the same stage. The coefficients
in `confidence.toml` turn these into a probability; the file says which tables they were fitted on
and by which command.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from rcdiag.diagnosis.causes.cause import STAGES, Cause, Suspicion
from rcdiag.diagnosis.features import ENGINE_NOISE, Features
from rcdiag.diagnosis.validity import INVALID, UNKNOWN

COEFFICIENTS = Path(__file__).with_name("confidence.toml")
# Upper bound of the probability: above it there are too few fitted tables to check calibration.
MOST = 0.98


def predictors(features: Features, cause: Cause, suspicion: Suspicion) -> dict[str, float]:
    """Return the predictors of the logistic regression by name; all are bounded."""
    case = features.case
    tokens, rows, size, agrees = int(case.mask.sum()), len(case.lengths), 0.0, 0.0
    if case.trainer is not None and len(case.tokens):
        size = _bounded(math.log10(max(features.log_ratios.rms, 1e-6) / ENGINE_NOISE), 2.0)
        broken = (suspicion.verdict or cause.words.verdict) == "broken"
        # A real difference of two forward passes goes with VALID. So do other contexts, which are
        # broken nevertheless.
        valid = {INVALID: -1.0, UNKNOWN: 0.0}.get(features.validity.answer, 1.0)
        agrees = max(-valid, 0.0) if broken else valid
    return {
        "score": _logit(suspicion.confidence),
        "rival": _logit(suspicion.rival),
        "tokens": _bounded(math.log10(max(tokens, 1) / 1e4), 2.0),
        "rows": _bounded(math.log10(max(rows, 1) / 200), 2.0),
        "size": size,
        "who sampled agrees": agrees,
        "share of rows": suspicion.share_of_rows,
        "umbrella": float(cause.words.family == "umbrellas"),
        **{f"stage {stage}": float(cause.stage == stage) for stage in STAGES},
    }


def _logit(score: float) -> float:
    score = min(max(score, 0.02), 0.98)
    return math.log(score / (1.0 - score))


def _bounded(value: float, most: float) -> float:
    return min(max(value, -most), most)


@cache
def _coefficients() -> dict[str, float]:
    values: dict[str, float] = tomllib.loads(COEFFICIENTS.read_text())["coefficients"]
    return values


def confidence(features: Features, cause: Cause, suspicion: Suspicion) -> float:
    """Return the probability that a cause that is named with such evidence is right."""
    weights = _coefficients()
    named = predictors(features, cause, suspicion)
    total = sum(weights[name] * value for name, value in named.items())
    return min(1.0 / (1.0 + math.exp(-total)), MOST)


def calibrated(
    features: Features, named: Sequence[tuple[Cause, Suspicion]]
) -> list[tuple[Cause, Suspicion]]:
    """Return named causes with the probability that each is right in place of its score."""
    return [
        (cause, replace(found, confidence=confidence(features, cause, found)))
        for cause, found in named
    ]
