"""One verdict from the table's evidence and from experiments with a checkpoint.

Both sources name causes, each with the probability that it is right, and experiments also refute
causes. Faults of storage, recording and alignment are found in the table alone; the experiments
then run on the repaired columns. For the remaining mismatch there are two explanations, one from
the table and one from the experiments, and `selected` takes the more probable one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.cause import Cause, Suspicion
from rcdiag.diagnosis.causes.kept_sets import KEPT_SET_SLUGS
from rcdiag.diagnosis.confidence import calibrated
from rcdiag.diagnosis.experiments.outcome import Outcome, cause_of
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import (
    EXCLUSIVE_STAGES,
    NAMED,
    Named,
    diagnose,
    diagnosis_of,
    is_umbrella,
    ranking_score,
    suspicions,
    with_verdict,
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
    repairs = [found.repaired for cause, found in table if cause.stage not in EXCLUSIVE_STAGES]
    repaired = next((one for one in reversed(repairs) if one is not None), case)
    outcome = run(_without_moved(case, repaired))
    judged = Features(repaired)
    tried = [
        (cause, with_verdict(judged, cause, found))
        for cause, found in ((cause_of(slug), found) for slug, found in outcome.suspicions)
    ]
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


def selected(table: Named, tried: Named, outcome: Outcome) -> list[tuple[Cause, Suspicion]]:
    """Choose the causes to name: the settled ones and one explanation of the remaining mismatch.

    Of the table's explanation and that of the experiments the more probable one is taken; a narrow
    cause goes before an umbrella, or noise, that is not much more probable.
    """
    settled = [entry for entry in table if entry[0].stage not in EXCLUSIVE_STAGES]
    # A table that shows no fault is no evidence against a fault that experiments find.
    left = [
        entry
        for entry in table
        if entry[0].stage in EXCLUSIVE_STAGES
        and entry[0].name not in NOTHING_WRONG
        # An umbrella is refuted where all its narrower causes are refuted.
        and not set(NARROWER_CAUSES.get(entry[0].name, (entry[0].name,))) <= set(outcome.ruled_out)
    ]
    tried = _confirmed(tried, left)
    left = [entry for entry in left if entry[0].name not in {cause.name for cause, _ in tried}]
    everything = [*settled, *left, *tried]
    settled, left, tried = (without_traces(each, everything) for each in (settled, left, tried))
    broken = [
        found.confidence
        for cause, found in settled
        if cause.words.verdict == "broken" and found.repaired is None
    ]
    # A broken column that cannot be repaired explains whatever the experiments find in it.
    tried = [entry for entry in tried if entry[1].confidence >= max(broken, default=0.0)]
    sure = [entry for entry in tried if entry[1].confidence >= NAMED]
    if _best_score(left) <= _best_score(sure):
        return _once([*settled, *sure])
    settled += [entry for entry in sure if entry[0].stage not in EXCLUSIVE_STAGES]
    return _once([*settled, *_beside(left, tried, outcome)])


def _confirmed(tried: Named, left: Named) -> list[tuple[Cause, Suspicion]]:
    """Combine the experiments' causes with what the table says about the same causes.

    A cause that both name keeps the experiments' evidence and gets the higher of both confidences.
    If the table names a special case of it (`SPECIAL_CASES`), that case replaces it.
    """
    of_table = {cause.name: (cause, found) for cause, found in left}
    confirmed = []
    for cause, found in tried:
        if SPECIAL_CASES.get(cause.name) in of_table:
            confirmed.append(of_table[SPECIAL_CASES[cause.name]])
        elif cause.name in of_table:
            surer = max(found.confidence, of_table[cause.name][1].confidence)
            confirmed.append((cause, replace(found, confidence=surer)))
        else:
            confirmed.append((cause, found))
    return confirmed


def _best_score(explanation: Named) -> float:
    """Return the ranking score of the cause that an explanation would name first."""
    return max((ranking_score(*entry) for entry in explanation), default=-1.0)


def _beside(left: Named, tried: Named, outcome: Outcome) -> list[tuple[Cause, Suspicion]]:
    """Return the table's explanation, with what the experiments add to it.

    The experiments test every sampling distribution by itself. Where the named one leaves a
    residual above noise, differences of the two sides that experiments found are named as well. An
    umbrella cause gets a message on how much the experiments leave unexplained.
    """
    (cause, found), *others = left
    if any(one.stage == "distribution" for one, _ in left):
        if _explains_all(left, outcome):
            return list(left)
        more = [
            entry
            for entry in tried
            if entry[0].stage == "difference"
            and entry[0].name not in NOTHING_WRONG
            and entry[1].confidence >= NAMED
        ]
        return [*left, *more]
    if is_umbrella(cause):
        found = replace(
            found,
            message=" ".join([found.message, *(one.message for _, one in tried)]),
            evidence=[*found.evidence, *(entry for _, one in tried for entry in one.evidence)],
        )
    return [(cause, found), *others]


def _explains_all(left: Named, outcome: Outcome) -> bool:
    """Tell whether a test of the table's sampling cause leaves only the engine's rounding.

    If few rows are affected, the gain of the test alone is not significant; the table then adds
    the evidence that is missing.
    """
    names = {cause.name for cause, _ in left if cause.stage == "distribution"}
    return any(
        test.slug in names
        and test.residual.rms < PART * test.baseline.rms
        and test.residual.within(outcome.sample.noise)
        for test in outcome.tests
    )


def _once(entries: Sequence[tuple[Cause, Suspicion]]) -> list[tuple[Cause, Suspicion]]:
    """Keep the first entry of each cause."""
    first: dict[str, tuple[Cause, Suspicion]] = {}
    for cause, found in entries:
        first.setdefault(cause.name, (cause, found))
    return list(first.values())
