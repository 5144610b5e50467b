"""One verdict from the table's evidence and from experiments with a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.catalogue import CAUSES
from rcdiag.diagnosis.causes.cause import Cause, Suspicion
from rcdiag.diagnosis.causes.cause_words import words_of
from rcdiag.diagnosis.confidence import calibrated
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import (
    DECIDES,
    GENERIC_CAUSES,
    SURE,
    UNLOGGED_SAMPLING,
    diagnosis_of,
    is_umbrella,
    suspicions,
    verdict_of_cause,
)
from rcdiag.results.diagnosis import NOTHING_WRONG, Diagnosis

if TYPE_CHECKING:
    from rcdiag.diagnosis.experiments.conclude import Outcome

# What the table alone settles before any model is asked.
SETTLED = ("storage", "recording", "alignment")
LEAST_OF_SAMPLING = (
    0.75  # confidence from which on a narrow cause is kept where experiments are quiet
)
SURER_THAN_A_GUESS = 0.65  # confidence below which experiments name what they cannot explain
TRUNCATED = "truncated-law"
KEPT_SETS = {"top-p-renormalised", "top-k-renormalised", "min-p-renormalised"}
WITH_TOOLS, PLACEHOLDER = "mask-includes-tool", "zero-placeholder"
FEW_MOVED = 0.6  # share of rows
OPEN = "inconclusive"
LITTLE = 0.25  # of the rms of what is unexplained, that the distribution of few rows may leave
RULED_OUT = 12


def verdict_with_experiments(
    case: Case, run: Callable[[Case], Outcome] | None
) -> tuple[Diagnosis, Outcome | None]:
    """Judge a case by its table, then by experiments with a checkpoint on the repaired table.

    Faults of storage, recording and alignment are decided by the table; all other differences by
    the experiments `run`, where one of them explains the column.
    """
    features = Features(case)
    # As in `diagnose` of the judge: broken columns hold infinities and zeros.
    with np.errstate(all="ignore"):
        table = suspicions(features)
    if run is None or case.prompt_ids is None:
        return diagnosis_of(features, calibrated(features, table)), None
    settled = [(cause, suspicion) for cause, suspicion in table if cause.stage in SETTLED]
    repaired = next(
        (suspicion.mended for _, suspicion in reversed(settled) if suspicion.mended is not None),
        case,
    )
    outcome = run(_without_moved(case, repaired))
    judged = Features(repaired)
    tried = [
        (cause, replace(found, verdict=verdict_of_cause(judged, cause, found)))
        for cause, found in ((cause_of(slug), found) for slug, found in outcome.suspicions)
    ]
    tried = _never_synced_by_step(tried, table)
    tried = _sampling_cause_of_a_part(tried, table)
    if any(cause.name == WITH_TOOLS for cause, _ in settled):
        # Tool tokens that are still in the mask make any sampling distribution look flatter.
        tried = [entry for entry in tried if entry[0].name not in UNLOGGED_SAMPLING]
    settled = _without_certain_tokens(settled, tried)
    named = _joined(settled, tried)
    if all(cause.name in NOTHING_WRONG for cause, _ in tried):
        # The model explains nearly all tokens. That does not overrule table evidence of a sampling
        # cause, or of a difference by token, row or step.
        shown = [
            entry
            for entry in table
            if _stands_beside_engine_noise(*entry) and not _refuted(entry[0], outcome.ruled_out)
        ]
        named = [*settled, *shown] if shown else named
    else:
        # No experiment explains the columns: a table cause with the same confidence is as good.
        sure = [entry for entry in tried if entry[0].stage in SETTLED]
        guess = max(
            (suspicion.confidence for entry, suspicion in tried if entry.stage not in SETTLED),
            default=1.0,
        )
        surer = [entry for entry in table if _is_surer(*entry, guess)]
        sampling_causes = [
            entry
            for entry in table
            if entry[0].stage == "law" and entry[1].confidence >= LEAST_OF_SAMPLING
        ]
        if sampling_causes and guess < SURER_THAN_A_GUESS:
            # All sampling causes were tried: one that leaves more than noise has a second cause
            # beside it.
            all_of_it = any(_explains_all(cause, outcome) for cause, _ in sampling_causes)
            rest = [] if all_of_it else [one for one in tried if one[0].stage == "difference"]
            named = [*_joined(settled, sure), *sampling_causes, *rest]
        elif surer and (guess < SURER_THAN_A_GUESS or _generic_beside(tried, surer, outcome)):
            named = [*_joined(settled, sure), *surer]
        elif guess < DECIDES and all(is_umbrella(one) and it.verdict == OPEN for one, it in tried):
            # An umbrella from the whole table is better founded than one from a part of the rows.
            whole = [
                entry for entry in table if is_umbrella(entry[0]) and entry[1].confidence > guess
            ]
            named = [*settled, *_with_experiments(whole, tried)] if whole else named
    # What the table alone shows is as sure as without experiments.
    by_experiment = {cause.name for cause, _ in tried}
    alone = {cause.name: found.confidence for cause, found in calibrated(features, table)}
    named = [
        (cause, found)
        if cause.name in by_experiment
        else (cause, replace(found, confidence=alone[cause.name]))
        for cause, found in named or table
    ]
    diagnosis = diagnosis_of(features, named)
    against = [*outcome.ruled_out, *diagnosis.ruled_out]
    slugs = {cause.slug for cause in diagnosis.causes}
    ruled_out = [slug for slug in dict.fromkeys(against) if slug not in slugs]
    return replace(diagnosis, ruled_out=ruled_out[:RULED_OUT]), outcome


def _without_moved(case: Case, repaired: Case) -> Case:
    """Return a repaired case without the rows whose log-probs were moved, where these are few.

    Shifts and swapped rows are repaired in one column: the two columns then fit each other, but not
    always the tokens, and the model scores tokens.
    """
    moved = np.zeros(len(case.mask), np.bool_)
    for policy, values in repaired.log_probs.items():
        moved |= (values != case.log_probs[policy]) & repaired.mask
    rows = np.bincount(case.owner[moved], minlength=len(case.lengths)) > 0
    return repaired.without_rows(rows) if 0.0 < rows.mean() <= FEW_MOVED else repaired


def _without_certain_tokens(
    settled: Sequence[tuple[Cause, Suspicion]], tried: Sequence[tuple[Cause, Suspicion]]
) -> list[tuple[Cause, Suspicion]]:
    """Drop `zero-placeholder` if experiments show a kept set: its zeros are certain tokens."""
    kept = any(
        cause.name in KEPT_SETS and suspicion.confidence >= SURE for cause, suspicion in tried
    )
    return [entry for entry in settled if not (kept and entry[0].name == PLACEHOLDER)]


def _generic_beside(
    tried: Sequence[tuple[Cause, Suspicion]],
    surer: Sequence[tuple[Cause, Suspicion]],
    outcome: Outcome,
) -> bool:
    """Tell whether experiments end at umbrellas while the table supports a narrow, broken cause."""
    wide = all(is_umbrella(cause) for cause, _ in tried if cause.stage not in SETTLED)
    faults = all(cause.words.verdict == "broken" for cause, _ in surer)
    return wide and faults and not any(_refuted(cause, outcome.ruled_out) for cause, _ in surer)


def _never_synced_by_step(
    tried: Sequence[tuple[Cause, Suspicion]], table: Sequence[tuple[Cause, Suspicion]]
) -> list[tuple[Cause, Suspicion]]:
    """Turn `stale-weights` of the experiments into `weights-never-synced` where the table shows
    that the mismatch grows over the steps.
    """
    grows = [entry for entry in table if entry[0].name == "weights-never-synced"]
    return [
        grows[0] if grows and cause.name == "stale-weights" else (cause, suspicion)
        for cause, suspicion in tried
    ]


def _sampling_cause_of_a_part(
    tried: Sequence[tuple[Cause, Suspicion]], table: Sequence[tuple[Cause, Suspicion]]
) -> list[tuple[Cause, Suspicion]]:
    """Prefer the table's sampling cause of some rows to an uncertain `replica-unsynced`."""
    sampling_cause = [
        entry for entry in table if entry[0].stage == "law" and entry[1].share_of_rows < FEW_MOVED
    ]
    return [
        sampling_cause[0]
        if sampling_cause and cause.name == "replica-unsynced" and suspicion.confidence < SURE
        else (cause, suspicion)
        for cause, suspicion in tried
    ]


def _stands_beside_engine_noise(cause: Cause, suspicion: Suspicion) -> bool:
    """Tell whether a table cause is kept although the model explains both columns."""
    if cause.name in GENERIC_CAUSES:
        return False
    least = {
        "law": LEAST_OF_SAMPLING,
        "difference": SURE if is_umbrella(cause) else LEAST_OF_SAMPLING,
    }.get(cause.stage)
    return least is not None and cause.name not in NOTHING_WRONG and suspicion.confidence >= least


def _with_experiments(
    whole: Sequence[tuple[Cause, Suspicion]], tried: Sequence[tuple[Cause, Suspicion]]
) -> list[tuple[Cause, Suspicion]]:
    """Add message and evidence of the unsuccessful experiments to the table's cause."""
    (cause, suspicion), *others = whole
    words = [one.message for _, one in tried]
    evidence = [entry for _, one in tried for entry in one.evidence]
    message = " ".join([suspicion.message, *words])
    return [
        (cause, replace(suspicion, message=message, evidence=[*suspicion.evidence, *evidence])),
        *others,
    ]


def _refuted(cause: Cause, ruled_out: Sequence[str]) -> bool:
    """Tell whether experiments ruled out a cause, or all causes that an umbrella stands for."""
    stands_for = KEPT_SETS if cause.name == TRUNCATED else {cause.name}
    return stands_for <= set(ruled_out)


def _explains_all(cause: Cause, outcome: Outcome) -> bool:
    """Tell whether a test of the table's cause leaves only the engine's rounding.

    If few rows are off, its gain alone is not significant, but the table is evidence too.
    """
    return any(
        test.slug == cause.name
        and test.residual.rms < LITTLE * test.baseline.rms
        and test.residual.within(outcome.sample.noise)
        for test in outcome.tests
    )


def _is_surer(cause: Cause, suspicion: Suspicion, guess: float) -> bool:
    """Tell whether a narrow table cause has at least the confidence of the experiments' guess."""
    differs = cause.stage in ("law", "difference") and cause.name not in NOTHING_WRONG
    return differs and not is_umbrella(cause) and suspicion.confidence >= guess


def cause_of(slug: str) -> Cause:
    """Return the cause of a slug; one that only experiments detect has nothing but words."""
    if slug in CAUSES:
        return CAUSES[slug]
    return Cause(words=words_of(slug), stage="difference", weigh=lambda features: None)


def _joined(
    settled: Sequence[tuple[Cause, Suspicion]], tried: Sequence[tuple[Cause, Suspicion]]
) -> list[tuple[Cause, Suspicion]]:
    """Combine causes settled by the table with those of experiments.

    If the table shows a fault without repair, only confident experiments are added; an experiment
    that explains everything outweighs an uncertain table cause.
    """
    whole = [(cause, suspicion) for cause, suspicion in tried if suspicion.confidence >= SURE]
    faults = [cause for cause, _ in whole if cause.name not in NOTHING_WRONG]
    kept = [
        (cause, suspicion)
        for cause, suspicion in settled
        if suspicion.confidence >= SURE or not faults or cause.name in {one.name for one in faults}
    ]
    unmended = any(
        suspicion.mended is None and cause.words.verdict == "broken" for cause, suspicion in kept
    )
    names = {cause.name for cause, _ in kept}
    others = whole if unmended else tried
    added = [(cause, suspicion) for cause, suspicion in others if cause.name not in names]
    if kept and any(cause.name not in NOTHING_WRONG for cause, _ in kept):
        added = [one for one in added if one[0].name not in NOTHING_WRONG]
    return [*kept, *added]
