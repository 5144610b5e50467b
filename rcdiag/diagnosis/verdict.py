"""One verdict from the table's evidence and from experiments with a checkpoint.

Both sources name causes, each with the probability that it is right, and experiments also refute
causes. Faults of storage, recording and alignment are found in the table alone; the experiments
then run on the repaired columns. For the remaining mismatch there are two explanations, one from
the table and one from the experiments, and `selected` takes the more probable one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.cause import EXCLUSIVE_STAGES, Suspicion
from rcdiag.diagnosis.causes.kept_sets import KEPT_SET_SLUGS
from rcdiag.diagnosis.conclusion import diagnosis_of, with_verdict
from rcdiag.diagnosis.confidence import calibrated
from rcdiag.diagnosis.experiments.outcome import Outcome
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import (
    NAMED,
    Named,
    diagnose,
    ranking_score,
    suspicions,
    without_traces,
)
from rcdiag.diagnosis.thresholds import HALF, LISTED, PART
from rcdiag.results.diagnosis import NOTHING_WRONG, Diagnosis

# Umbrella -> the narrower causes, one of which it is.
NARROWER_CAUSES = {"truncated-law": KEPT_SET_SLUGS}
# Cause from experiments -> its special case that only the table can name: experiments find which
# weights sampled, the table shows how they lag over the steps.
SPECIAL_CASES = {"stale-weights": "weights-never-synced"}


def verdict_with_experiments(
    case: Case, run: Callable[[Case], Outcome] | None
) -> tuple[Diagnosis, Outcome | None]:
    """Judge a case by its table, then by experiments: `run` tries them on the repaired table."""
    if run is None or case.prompt_ids is None:
        return diagnose(case), None
    features = Features(case)
    # As in `diagnose`: broken columns hold infinities and zeros.
    with np.errstate(all="ignore"):
        table = calibrated(features, suspicions(features))
    repairs = [one.repaired for one in table if one.cause.stage not in EXCLUSIVE_STAGES]
    repaired = next((one for one in reversed(repairs) if one is not None), case)
    outcome = run(_without_moved(case, repaired))
    judged = Features(repaired)
    tried = [with_verdict(judged, found) for found in outcome.suspicions]
    diagnosis = diagnosis_of(features, selected(table, tried, outcome) or table or tried)
    slugs = {cause.slug for cause in diagnosis.causes}
    against = dict.fromkeys([*outcome.ruled_out, *diagnosis.ruled_out])
    ruled_out = [slug for slug in against if slug not in slugs]
    return replace(diagnosis, ruled_out=ruled_out[:LISTED]), outcome


def _without_moved(case: Case, repaired: Case) -> Case:
    """Return a repaired case without the rows whose log-probs were moved, where enough remain.

    Shifts and swapped rows are repaired in one column: the two columns then fit each other, but not
    always the tokens, and the model scores tokens.
    """
    moved = np.zeros(len(case.mask), np.bool_)
    for policy, values in repaired.log_probs.items():
        moved |= (values != case.log_probs[policy]) & repaired.mask
    rows = np.bincount(case.owner[moved], minlength=len(case.lengths)) > 0
    return repaired.without_rows(rows) if 0.0 < rows.mean() <= HALF else repaired


def selected(table: Named, tried: Named, outcome: Outcome) -> list[Suspicion]:
    """Choose the causes to name: the settled ones and one explanation of the remaining mismatch.

    Of the table's explanation and that of the experiments the more probable one is taken; a narrow
    cause goes before an umbrella, or noise, that is not much more probable.
    """
    settled = [found for found in table if found.cause.stage not in EXCLUSIVE_STAGES]
    # A table that shows no fault is no evidence against a fault that experiments find.
    left = [
        found
        for found in table
        if found.cause.stage in EXCLUSIVE_STAGES
        and found.slug not in NOTHING_WRONG
        # An umbrella is refuted where all its narrower causes are refuted.
        and not set(NARROWER_CAUSES.get(found.slug, (found.slug,))) <= set(outcome.ruled_out)
    ]
    tried = _confirmed(tried, left)
    left = [found for found in left if found.slug not in {one.slug for one in tried}]
    everything = [*settled, *left, *tried]
    settled, left, tried = (without_traces(each, everything) for each in (settled, left, tried))
    broken = [
        found.confidence
        for found in settled
        if found.cause.words.verdict == "broken" and found.repaired is None
    ]
    # A broken column that cannot be repaired explains whatever the experiments find in it.
    tried = [found for found in tried if found.confidence >= max(broken, default=0.0)]
    sure = [found for found in tried if found.confidence >= NAMED]
    if _best_score(left) <= _best_score(sure):
        return _once([*settled, *sure])
    settled += [found for found in sure if found.cause.stage not in EXCLUSIVE_STAGES]
    return _once([*settled, *_beside(left, tried, outcome)])


def _confirmed(tried: Named, left: Named) -> list[Suspicion]:
    """Combine the experiments' causes with what the table says about the same causes.

    A cause that both name keeps the experiments' evidence and gets the higher of both confidences.
    If the table names a special case of it (`SPECIAL_CASES`), that case replaces it.
    """
    of_table = {found.slug: found for found in left}
    confirmed = []
    for found in tried:
        if SPECIAL_CASES.get(found.slug) in of_table:
            confirmed.append(of_table[SPECIAL_CASES[found.slug]])
        else:
            surer = max(found, of_table.get(found.slug, found), key=lambda one: one.confidence)
            confirmed.append(replace(found, confidence=surer.confidence))
    return confirmed


def _best_score(explanation: Named) -> float:
    """Return the ranking score of the cause that an explanation would name first."""
    return max(map(ranking_score, explanation), default=-1.0)


def _beside(left: Named, tried: Named, outcome: Outcome) -> list[Suspicion]:
    """Return the table's explanation, with what the experiments add to it.

    The experiments test every sampling distribution by itself. Where the named one leaves a
    residual above noise, differences of the two sides that experiments found are named as well. An
    umbrella cause gets a message on how much the experiments leave unexplained.
    """
    found, *others = left
    if any(one.cause.stage == "distribution" for one in left):
        if _explains_all(left, outcome):
            return list(left)
        more = [
            one
            for one in tried
            if one.cause.stage == "difference"
            and one.slug not in NOTHING_WRONG
            and one.confidence >= NAMED
        ]
        return [*left, *more]
    if found.cause.is_umbrella:
        found = replace(
            found,
            message=" ".join([found.message, *(one.message for one in tried)]),
            evidence=[*found.evidence, *(entry for one in tried for entry in one.evidence)],
        )
    return [found, *others]


def _explains_all(left: Named, outcome: Outcome) -> bool:
    """Tell whether a test of the table's sampling cause leaves only the engine's rounding.

    If few rows are affected, the gain of the test alone is not significant; the table then adds
    the evidence that is missing.
    """
    names = {found.slug for found in left if found.cause.stage == "distribution"}
    return any(
        test.slug in names
        and test.residual.rms < PART * test.baseline.rms
        and test.residual.within(outcome.sample.noise)
        for test in outcome.tests
    )


def _once(named: Named) -> list[Suspicion]:
    """Keep the first suspicion of each cause."""
    first: dict[str, Suspicion] = {}
    for found in named:
        first.setdefault(found.slug, found)
    return list(first.values())
