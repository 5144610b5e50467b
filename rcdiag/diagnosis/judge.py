"""The judge weighs every cause on a case, in stages, and says one verdict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes import CAUSES, STAGES, Cause, Suspicion
from rcdiag.diagnosis.causes.cause_words import cause_words
from rcdiag.diagnosis.signs import Signs
from rcdiag.results.diagnosis import Action, Diagnosis, NamedCause

# A cause is named from this confidence on.
NAMED = 0.5
# In these stages causes exclude each other: the most believed is named.
ONE_OF = ("law", "difference")
# A second look at what an earlier fault leaves tells something only with so many tokens.
ENOUGH = 200


def diagnose(case: Case) -> Diagnosis:
    """Weigh all causes on a case and say the verdict."""
    return verdict_on(case, suspicions(case))


def suspicions(case: Case) -> list[tuple[Cause, Suspicion]]:
    """Return the causes that a case speaks for, the first that must be settled first."""
    named: list[tuple[Cause, Suspicion]] = []
    for stage in STAGES:
        if stage == "difference" and any(cause.stage == "law" for cause, _ in named):
            break  # a law that is not the one that sampled explains the difference
        here = _of_stage(case, stage)
        if stage in ONE_OF:
            here = here[:1]
        for cause, suspicion in here:
            if stage in ONE_OF and named and suspicion.confidence < 0.6 and _quiet(cause):
                continue
            named.append((cause, suspicion))
            if suspicion.mended is not None:
                case = _both(case, suspicion.mended)
    return named


def _of_stage(case: Case, stage: str) -> list[tuple[Cause, Suspicion]]:
    """Weigh the causes of one stage, the most believed first."""
    signs = Signs(case)
    pair = case.trainer is not None
    if stage in ONE_OF and (not pair or len(case.tokens) < ENOUGH):
        return []
    weighed = []
    for cause in CAUSES.values():
        if cause.stage != stage or (cause.needs_two and not pair):
            continue
        suspicion = cause.weigh(signs)
        if suspicion is not None and suspicion.confidence >= NAMED:
            weighed.append((cause, suspicion))
    return sorted(weighed, key=lambda entry: -entry[1].confidence)


def _both(case: Case, mended: Case) -> Case:
    """Return a case with what two mended cases have in common: masks meet, values are mended."""
    return mended.without_tokens(~case.mask)


def _quiet(cause: Cause) -> bool:
    return cause.name in ("engine-noise", "healthy")
