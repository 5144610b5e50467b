"""Weighs every cause on a case, in stages: which causes are named."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.catalogue import CAUSES
from rcdiag.diagnosis.causes.cause import EXCLUSIVE_STAGES, STAGES, Suspicion, fact
from rcdiag.diagnosis.causes.columns import of_both_columns
from rcdiag.diagnosis.causes.difference import beside_sampling_cause, of_few_tokens
from rcdiag.diagnosis.causes.kept_sets import KEPT_SET_SLUGS
from rcdiag.diagnosis.causes.unlogged_sampling import UNLOGGED_SLUGS
from rcdiag.diagnosis.conclusion import NO_LOG_PROBS, diagnosis_of, with_verdict
from rcdiag.diagnosis.confidence import calibrated
from rcdiag.diagnosis.features import ENGINE_NOISE, Features, Onset
from rcdiag.diagnosis.thresholds import ENOUGH, HALF, MOST
from rcdiag.results.diagnosis import NOTHING_WRONG, Diagnosis

NAMED = HALF  # confidence from which a cause is named
# Causes that state only that the two sides differ, not why.
GENERIC = "forwards-differ"
GENERIC_CAUSES = (GENERIC, "context-differs")
# Faults in how the trainer lays out its tensors: they affect every row of a run, in all steps.
IN_EVERY_ROW = ("vocab-shard-wrong",)
MUCH_LESS = 0.1  # a cause whose confidence is lower by this is much less probable than another
# Cause -> causes that it imitates. Where it is named and not much less probable than those, they
# are dropped.
LEAVES_TRACE_OF = {
    # Tool tokens that are still in the mask make any sampling distribution look flatter, and may
    # have any values.
    "mask-includes-tool": (*UNLOGGED_SLUGS, NO_LOG_PROBS),
    # The trainer's softmax lacks a part of the vocabulary: a log-prob may be above 0.
    "vocab-shard-wrong": (NO_LOG_PROBS,),
    # A token that is alone in its kept set is certain: its log-prob is 0.
    **dict.fromkeys(KEPT_SET_SLUGS, ("zero-placeholder",)),
}

Named = Sequence[Suspicion]


def diagnose(case: Case) -> Diagnosis:
    """Weigh all causes on a case and return the verdict with the causes that it rests on."""
    features = Features(case)
    # Broken columns hold infinities and zeros, and what is computed from them is NaN.
    with np.errstate(all="ignore"):
        named = calibrated(features, suspicions(features))
        return diagnosis_of(features, without_traces(named, named))


def suspicions(features: Features) -> list[Suspicion]:
    """Return the causes that the evidence supports, in the order of `STAGES`.

    If a cause can be repaired, the repaired table is weighed again for further causes. Where the
    mismatch begins at some step, only rows from that step on are judged.
    """
    named: list[Suspicion] = []
    onset: Onset | None = None
    for stage in STAGES:
        if stage == "alignment":
            features, onset = _from_onset(features)
        if stage == "difference" and any(one.cause.stage == "distribution" for one in named):
            return [*named, *_beside_sampling_cause(features, named)]
        broken = any(found.verdict == "broken" and found.repaired is None for found in named)
        if stage in EXCLUSIVE_STAGES and broken:
            break  # a broken column that is not repaired says nothing about distributions
        here = _candidates(features, stage, onset, named)
        while here:
            suspicion = _first(features, here, onset)
            named = _merged(named, suspicion)
            if suspicion.repaired is not None:
                repaired = suspicion.repaired.without_tokens(~features.case.mask)
                features = Features(repaired, features.onset, features.within)
                here = _weigh_up_to(features, stage)
            here = [] if stage in EXCLUSIVE_STAGES else _not_yet_named(here, named)
    return named


def _from_onset(features: Features) -> tuple[Features, Onset | None]:
    """Restrict a table of two policies to the steps with a large mismatch, if it begins at one."""
    if features.case.trainer is None or not len(features.case.tokens):
        return features, None
    onset = features.location.onset
    if onset is None:
        return features, None
    # A mismatch that ends again does not grow: the steps that have it are judged as a table of
    # their own.
    known = onset if onset.last is None else None
    return Features(_steps_of_onset(features.case, onset), known, onset.within), onset


def _candidates(
    features: Features, stage: str, onset: Onset | None, named: Named
) -> list[Suspicion]:
    """Return the causes of a stage that may be named, the most probable one first."""
    here = _weigh_stage(features, stage)
    if stage == "alignment" and onset is not None:
        # A fault of storage or recording that began at the step shows only from there on.
        here = _not_yet_named(_weigh_up_to(features, stage), named)
    pair = features.case.trainer is not None
    if stage == "difference" and not named and pair and 0 < len(features.case.tokens) < ENOUGH:
        return [of_few_tokens(features)]
    if onset is not None and onset.last is not None:
        here = [found for found in here if found.slug not in IN_EVERY_ROW]
    if stage == "distribution" and not here:
        here = _weigh_outlier_rows(features)
    return _without_generic_causes(features, here, named) if stage in EXCLUSIVE_STAGES else here


def _first(features: Features, here: Named, onset: Onset | None) -> Suspicion:
    """Return the most probable cause with its rival's confidence, its first step and verdict."""
    suspicion = here[0]
    if len(here) > 1:
        suspicion = replace(suspicion, rival=here[1].confidence)
    if onset is not None and suspicion.slug not in NOTHING_WRONG:
        suspicion = replace(suspicion, from_step=onset.step)
    return with_verdict(features, suspicion)


def _weigh_up_to(features: Features, stage: str) -> list[Suspicion]:
    """Weigh a repaired table anew for all causes up to a stage that do not exclude each other.

    For example, another base of the logarithm shows only once a shift is undone.
    """
    return [
        found
        for one in STAGES[: STAGES.index(stage) + 1]
        if one not in EXCLUSIVE_STAGES
        for found in _weigh_stage(features, one)
    ]


def _beside_sampling_cause(features: Features, named: Named) -> list[Suspicion]:
    """Return a second cause for the mismatch that the named sampling cause cannot explain."""
    found = next(one for one in named if one.cause.stage == "distribution")
    rest = None if found.share_of_rows < 1 else beside_sampling_cause(features, found.slug)
    return [] if rest is None else [rest]


def _without_generic_causes(
    features: Features, here: list[Suspicion], named: Named
) -> list[Suspicion]:
    """Drop generic causes where nearly all rows agree after a realignment: the remaining mismatch
    is that of rows that could not be realigned.
    """
    moved = any(one.cause.stage == "alignment" and one.repaired is not None for one in named)
    # Without a second policy there are no log-ratios, and `here` is empty.
    rms = features.location.rms_of_rows if moved and here else np.empty(0)
    rms = rms[np.isfinite(rms)]
    if not len(rms) or float(np.mean(rms < ENGINE_NOISE)) < MOST:
        return here
    return [found for found in here if found.slug not in GENERIC_CAUSES]


def _merged(named: Named, suspicion: Suspicion) -> list[Suspicion]:
    """Add a cause; if it is named already for the other column, merge both into one."""
    names = [one.slug for one in named]
    if suspicion.slug not in names:
        return [*named, suspicion]
    place = names.index(suspicion.slug)
    both = of_both_columns(named[place], suspicion, suspicion.repaired)
    return [*named[:place], both, *named[place + 1 :]]


def _not_yet_named(here: Named, named: Named) -> list[Suspicion]:
    """Keep suspicions of causes that are not named yet, or named for the other column only."""
    policies = {found.slug: found.policy for found in named}
    return [
        found
        for found in here
        if found.slug not in policies
        or (
            None not in (policies[found.slug], found.policy)
            and policies[found.slug] != found.policy
        )
    ]


def _weigh_stage(features: Features, stage: str) -> list[Suspicion]:
    """Weigh the causes of one stage and sort them, the one to be named first.

    Causes that exclude each other are weighed only in a table of two policies with ENOUGH tokens.
    """
    case = features.case
    pair = case.trainer is not None
    if not len(case.mask):
        return []  # all responses are empty
    if stage in EXCLUSIVE_STAGES and (not pair or len(case.tokens) < ENOUGH):
        return []
    if stage == "distribution" and features.at_few_tokens:
        return []  # another distribution moves tokens in all contexts, some more and some less
    weighed = []
    for cause in CAUSES.values():
        if cause.stage != stage or (cause.needs_two and not pair):
            continue
        suspicion = cause.weigh(features)
        if suspicion is not None and suspicion.confidence >= NAMED:
            weighed.append(replace(suspicion, slug=cause.name))
    if stage == "distribution":
        return sorted(weighed, key=lambda found: -ranking_score(found))
    return sorted(
        weighed,
        key=lambda found: (found.slug == GENERIC, found.cause.is_umbrella, -found.confidence),
    )


def ranking_score(suspicion: Suspicion) -> float:
    """Return the score by which causes that exclude each other are ranked.

    It is the confidence, lowered by MUCH_LESS for an umbrella and by twice that for noise: a narrow
    cause goes before an umbrella that is not much more probable. The generic cause fits every
    mismatch, so it goes last, as does an umbrella that leaves the verdict open.
    """
    umbrella = suspicion.cause.is_umbrella
    if suspicion.slug == GENERIC or (umbrella and suspicion.verdict == "inconclusive"):
        return suspicion.confidence - 1.0
    return suspicion.confidence - MUCH_LESS * (2 if suspicion.slug in NOTHING_WRONG else umbrella)


def _weigh_outlier_rows(features: Features) -> list[Suspicion]:
    """Weigh the causes in the sampling distribution on the outlier rows alone.

    A replica with, say, another temperature looks like one with other weights while the many
    correct rows are averaged in.
    """
    if features.case.trainer is None or not len(features.case.tokens):
        return []
    part = features.location.outlier_rows
    if part is None:
        return []
    share = float(part.rows.mean())
    case = features.case.take(part.rows)
    if part.engines:  # the declared temperature holds for the correct engines
        case = replace(case, facts=replace(case.facts, temperature=None))
    where = f"In rows of {part.which}" if part.engines else "In some rows"
    apart = fact("rms log-ratio", "rows of two kinds", these=part.rms, others=part.rms_of_others)
    return [
        replace(
            found,
            message=f"{where} ({share:.0%} of all), which differ by {part.rms:.2g} nats rms "
            f"and the others by {part.rms_of_others:.2g}: {found.message}",
            evidence=[*found.evidence, apart],
            share_of_rows=share,
        )
        for found in _weigh_stage(Features(case, features.onset, "in these rows"), "distribution")
        if found.cause.words.family != "context" and found.slug not in IN_EVERY_ROW
    ]


def _steps_of_onset(case: Case, onset: Onset) -> Case:
    """Restrict rows and sampling parameters of the case to the steps with a large mismatch."""
    step = case.facts.step
    if step is None:
        return case
    last = step.max() if onset.last_step is None else onset.last_step
    outside = (step < onset.step) | (step > last)
    stated = {
        name: getattr(case.facts, name) for name in ("temperature", "top_p", "top_k", "min_p")
    }
    inside = {
        name: np.where(outside, np.nan, values)
        for name, values in stated.items()
        if values is not None
    }
    return replace(case.without_rows(outside), facts=replace(case.facts, **inside))


def without_traces(suspected: Named, everything: Named) -> list[Suspicion]:
    """Drop causes that a named cause imitates (`LEAVES_TRACE_OF`) and is not much less probable."""
    explained = {
        trace: found.confidence
        for found in everything
        for trace in LEAVES_TRACE_OF.get(found.slug, ())
    }
    return [
        found
        for found in suspected
        if found.slug not in explained or explained[found.slug] <= found.confidence - MUCH_LESS
    ]
