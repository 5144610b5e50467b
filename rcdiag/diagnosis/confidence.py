"""The probability that a named cause is right: a logistic regression, fitted on generated tables.

A cause found in the table alone scores its evidence on a scale of its own; an experiment with a
checkpoint measures how well it explains a column (`ExperimentFit`). How much either is worth
depends on the table: on the number of tokens and rows, on whether E[ratio] agrees with the verdict,
on the score of the best competing cause. The coefficients in `confidence.toml` turn these into a
probability; the file says which tables they were fitted on and by which command.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from rcdiag.diagnosis.causes.cause import STAGES, Suspicion
from rcdiag.diagnosis.experiment_fit import KINDS, NO_RIVAL, ExperimentFit
from rcdiag.diagnosis.features import ENGINE_NOISE, Features
from rcdiag.diagnosis.validity import INVALID, UNKNOWN

COEFFICIENTS = Path(__file__).with_name("confidence.toml")
# Upper bound of the probability: above it there are too few fitted tables to check calibration.
SUREST = 0.98
# Smallest and largest tables of the fit, log10 of tokens / 1e4 and of rows / 200: a smaller or
# larger table has the probability of these, as the fit says nothing beyond them.
TOKENS, ROWS = (-0.8, 1.35), (-0.85, 0.4)


def predictors(features: Features, suspicion: Suspicion) -> dict[str, float]:
    """Return the predictors of the logistic regression by name; all are bounded."""
    case, cause, fit = features.case, suspicion.cause, suspicion.fit
    size = agrees = 0.0
    if case.trainer is not None and len(case.tokens):
        size = _bounded(math.log10(max(features.log_ratios.rms, 1e-6) / ENGINE_NOISE), 2.0)
        broken = (suspicion.verdict or cause.words.verdict) == "broken"
        # A genuine difference of two forward passes leaves importance weights VALID. So do other
        # contexts, although their verdict is `broken`.
        valid = {INVALID: -1.0, UNKNOWN: 0.0}.get(features.validity.answer, 1.0)
        agrees = max(-valid, 0.0) if broken else valid
    tokens = int(case.mask.sum()) if fit is None else fit.tokens
    rows = len(case.lengths) if fit is None else fit.rows
    of_both = {
        "tokens": min(max(math.log10(max(tokens, 1) / 1e4), TOKENS[0]), TOKENS[1]),
        "rows": min(max(math.log10(max(rows, 1) / 200), ROWS[0]), ROWS[1]),
        "size": size,
        "who sampled agrees": agrees,
        "share of rows": suspicion.share_of_rows,
        "umbrella": float(cause.is_umbrella),
    }
    if fit is not None:
        return {**of_both, **_of_experiment(fit)}
    return {
        **of_both,
        "score": _logit(suspicion.confidence),
        "rival": _logit(suspicion.rival),
        **{f"stage {stage}": float(cause.stage == stage) for stage in STAGES},
    }


def _of_experiment(fit: ExperimentFit) -> dict[str, float]:
    """Return the predictors that only the evidence of an experiment has."""
    return {
        "explained": fit.explained,
        "z": _bounded(math.log10(max(fit.z, 0.1)), 2.0),
        "lead": _bounded(fit.lead / NO_RIVAL, 1.0),
        # A residual below the engine's noise is no better than one of its size.
        "scale": _bounded(math.log10(max(fit.scale, 1.0)), 1.5),
        "tail": _bounded(math.log10(max(fit.tail, 1.0)), 1.5),
        "by token": fit.by_token,
        "not run": fit.not_run,
        **{f"kind {kind}": float(fit.kind == kind) for kind in KINDS},
    }


def _logit(score: float) -> float:
    score = min(max(score, 1.0 - SUREST), SUREST)
    return math.log(score / (1.0 - score))


def _bounded(value: float, most: float) -> float:
    return min(max(value, -most), most)


@cache
def _coefficients(source: str) -> dict[str, float]:
    weights: dict[str, float] = tomllib.loads(COEFFICIENTS.read_text())[source]["coefficients"]
    return weights


def probability(source: str, predictors: Mapping[str, float]) -> float:
    """Return the probability that a cause is right, at most SUREST.

    `source` is the kind of evidence whose coefficients apply: `table`, `experiments` or `log`.
    """
    weights = _coefficients(source)
    total = sum(weights[name] * value for name, value in predictors.items())
    return min(1.0 / (1.0 + math.exp(-total)), SUREST)


def confidence(features: Features, suspicion: Suspicion) -> float:
    """Return the probability that a suspected cause is right, given its evidence."""
    source = "table" if suspicion.fit is None else "experiments"
    return probability(source, predictors(features, suspicion))


def calibrated(features: Features, named: Sequence[Suspicion]) -> list[Suspicion]:
    """Return the causes with their scores replaced by the probability that each is right."""
    return [replace(found, confidence=confidence(features, found)) for found in named]
