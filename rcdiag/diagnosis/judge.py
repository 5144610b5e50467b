"""Weighs every cause on a case, in stages, and decides one verdict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.catalogue import CAUSES
from rcdiag.diagnosis.causes.cause import STAGES, Cause, Suspicion, fact
from rcdiag.diagnosis.causes.columns import of_both_columns
from rcdiag.diagnosis.causes.difference import beside_sampling_cause, of_few_tokens
from rcdiag.diagnosis.causes.kept_sets import KEPT_SET_SLUGS
from rcdiag.diagnosis.causes.unlogged_sampling import UNLOGGED_SLUGS
from rcdiag.diagnosis.confidence import calibrated
from rcdiag.diagnosis.features import ENGINE_NOISE, Features, Onset
from rcdiag.diagnosis.guides import beyond_guides, suite_of
from rcdiag.diagnosis.next_experiment import (
    can_be_scored,
    diagnose_again,
    few_prompts,
    next_experiment,
    shell_path,
)
from rcdiag.diagnosis.over_steps import experiment_at_rate_zero, over_steps
from rcdiag.diagnosis.ruled_out import ruled_out
from rcdiag.diagnosis.thresholds import ENOUGH, HALF, MOST
from rcdiag.diagnosis.validity import INVALID, RECORD_SAMPLED, UNKNOWN, VALID, Validity
from rcdiag.formats import effective_share, plural, rough
from rcdiag.results.diagnosis import NOTHING_WRONG, Action, Diagnosis, NamedCause
from rcdiag.statistics.extremes import impossible
from rcdiag.statistics.metrics import METRICS

# Confidence from which a cause is named, and from which its `broken` verdict decides.
NAMED, DECIDES = HALF, 0.6
# In these stages causes exclude each other: only the one with the highest confidence is named.
EXCLUSIVE_STAGES = ("distribution", "difference")
# KL per sequence, nats, below which a mismatch is negligible: by Pinsker's inequality the total
# variation is then at most 0.1, and the bias of uncorrected gradients is below their noise.
NEGLIGIBLE_KL = 0.02
# Causes that state only that the two sides differ, not why.
GENERIC = "forwards-differ"
GENERIC_CAUSES = (GENERIC, "context-differs")
# Causes named by the size of log-ratios over tokens or steps, which a record of another
# distribution may have as well: where E[ratio] cannot tell who sampled, they do not either.
BY_PATTERN = (GENERIC, "moe-routing", "weights-differ", "weights-never-synced")
# Faults in how the trainer lays out its tensors: they affect every row of a run, in all steps.
IN_EVERY_ROW = ("vocab-shard-wrong",)
NO_LOG_PROBS = "nan-log-probs"  # rows that have it are left out of all numbers
MUCH_LESS = 0.1  # a cause whose confidence is lower by this is much less probable than another
KEPT_SET_CAUSES = ("truncated-law", *KEPT_SET_SLUGS)
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
REPLAY = (
    "See what a replay over the kept ids changes: rcdiag score DUMP --model CKPT "
    "--policy old_kept=hf:float32,support=rollout -o kept.parquet"
)
# Name of an evidence entry: the residual mismatch once a fault is repaired.
RESIDUAL = "rms log-ratio without that fault"

Named = Sequence[tuple[Cause, Suspicion]]


def diagnose(case: Case) -> Diagnosis:
    """Weigh all causes on a case and return the verdict with the causes that it rests on."""
    features = Features(case)
    # Broken columns hold infinities and zeros, and what is computed from them is NaN.
    with np.errstate(all="ignore"):
        named = calibrated(features, suspicions(features))
        return diagnosis_of(features, without_traces(named, named))


def suspicions(features: Features) -> list[tuple[Cause, Suspicion]]:
    """Return the causes that the evidence supports, in the order of `STAGES`.

    If a cause can be repaired, the repaired table is weighed again for further causes. Where the
    mismatch begins at some step, only rows from that step on are judged.
    """
    named: list[tuple[Cause, Suspicion]] = []
    onset: Onset | None = None
    for stage in STAGES:
        if stage == "alignment":
            features, onset = _from_onset(features)
        if stage == "difference" and any(cause.stage == "distribution" for cause, _ in named):
            return [*named, *_beside_sampling_cause(features, named)]
        broken = any(found.verdict == "broken" and found.repaired is None for _, found in named)
        if stage in EXCLUSIVE_STAGES and broken:
            break  # a broken column that is not repaired says nothing about distributions
        here = _candidates(features, stage, onset, named)
        while here:
            cause, suspicion = _first(features, here, onset)
            named = _merged(named, cause, suspicion)
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
) -> list[tuple[Cause, Suspicion]]:
    """Return the causes of a stage that may be named, the most probable one first."""
    here = _weigh_stage(features, stage)
    pair = features.case.trainer is not None
    if stage == "difference" and not named and pair and 0 < len(features.case.tokens) < ENOUGH:
        slug, found = of_few_tokens(features)
        return [(CAUSES[slug], found)]
    if onset is not None and onset.last is not None:
        here = [entry for entry in here if entry[0].name not in IN_EVERY_ROW]
    if stage == "distribution" and not here:
        here = _weigh_outlier_rows(features)
    return _without_generic_causes(features, here, named) if stage in EXCLUSIVE_STAGES else here


def _first(features: Features, here: Named, onset: Onset | None) -> tuple[Cause, Suspicion]:
    """Return the most probable cause with its rival's confidence, its first step and verdict."""
    cause, suspicion = here[0]
    if len(here) > 1:
        suspicion = replace(suspicion, rival=here[1][1].confidence)
    if onset is not None and cause.name not in NOTHING_WRONG:
        suspicion = replace(suspicion, from_step=onset.step)
    return cause, with_verdict(features, cause, suspicion)


def _weigh_up_to(features: Features, stage: str) -> list[tuple[Cause, Suspicion]]:
    """Weigh a repaired table anew for all causes up to a stage that do not exclude each other.

    For example, another base of the logarithm shows only once a shift is undone.
    """
    return [
        entry
        for one in STAGES[: STAGES.index(stage) + 1]
        if one not in EXCLUSIVE_STAGES
        for entry in _weigh_stage(features, one)
    ]


def _beside_sampling_cause(features: Features, named: Named) -> list[tuple[Cause, Suspicion]]:
    """Return a second cause for the mismatch that the named sampling cause cannot explain."""
    cause, suspicion = next(entry for entry in named if entry[0].stage == "distribution")
    if suspicion.share_of_rows < 1:
        return []
    rest = beside_sampling_cause(features, cause.name)
    return [] if rest is None else [(CAUSES[rest[0]], rest[1])]


def _without_generic_causes(
    features: Features, here: list[tuple[Cause, Suspicion]], named: Named
) -> list[tuple[Cause, Suspicion]]:
    """Drop generic causes where nearly all rows agree after a realignment: the remaining mismatch
    is that of rows that could not be realigned.
    """
    moved = any(cause.stage == "alignment" and found.repaired is not None for cause, found in named)
    # Without a second policy there are no log-ratios, and `here` is empty.
    rms = features.location.rms_of_rows if moved and here else np.empty(0)
    rms = rms[np.isfinite(rms)]
    if not len(rms) or float(np.mean(rms < ENGINE_NOISE)) < MOST:
        return here
    return [entry for entry in here if entry[0].name not in GENERIC_CAUSES]


def _merged(named: Named, cause: Cause, suspicion: Suspicion) -> list[tuple[Cause, Suspicion]]:
    """Add a cause; if it is named already for the other column, merge both entries into one."""
    names = [one.name for one, _ in named]
    if cause.name not in names:
        return [*named, (cause, suspicion)]
    place = names.index(cause.name)
    first = named[place][1]
    both = of_both_columns(first, suspicion, suspicion.repaired)
    return [*named[:place], (cause, both), *named[place + 1 :]]


def _not_yet_named(here: Named, named: Named) -> list[tuple[Cause, Suspicion]]:
    """Keep suspicions of causes that are not named yet, or named for the other column only."""
    policies = {cause.name: suspicion.policy for cause, suspicion in named}
    return [
        (cause, suspicion)
        for cause, suspicion in here
        if cause.name not in policies
        or (
            None not in (policies[cause.name], suspicion.policy)
            and policies[cause.name] != suspicion.policy
        )
    ]


def _weigh_stage(features: Features, stage: str) -> list[tuple[Cause, Suspicion]]:
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
            weighed.append((cause, suspicion))
    if stage == "distribution":
        return sorted(weighed, key=lambda entry: -ranking_score(*entry))
    return sorted(
        weighed,
        key=lambda entry: (
            entry[0].name == GENERIC,
            is_umbrella(entry[0]),
            -entry[1].confidence,
        ),
    )


def ranking_score(cause: Cause, suspicion: Suspicion) -> float:
    """Return the score by which causes that exclude each other are ranked.

    It is the confidence, lowered by MUCH_LESS for an umbrella and by twice that for noise: a narrow
    cause goes before an umbrella that is not much more probable. The generic cause fits every
    mismatch, so it goes last, as does an umbrella that leaves the verdict open.
    """
    umbrella = is_umbrella(cause)
    if cause.name == GENERIC or (umbrella and suspicion.verdict == "inconclusive"):
        return suspicion.confidence - 1.0
    return suspicion.confidence - MUCH_LESS * (2 if cause.name in NOTHING_WRONG else umbrella)


def _weigh_outlier_rows(features: Features) -> list[tuple[Cause, Suspicion]]:
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
    where = f"In rows of {', '.join(part.engines)}" if part.engines else "In some rows"
    apart = fact("rms log-ratio", "rows of two kinds", these=part.rms, others=part.rms_of_others)
    return [
        (
            cause,
            replace(
                suspicion,
                message=f"{where} ({share:.0%} of all), which differ by {part.rms:.2g} nats rms "
                f"and the others by {part.rms_of_others:.2g}: {suspicion.message}",
                evidence=[*suspicion.evidence, apart],
                share_of_rows=share,
            ),
        )
        for cause, suspicion in _weigh_stage(
            Features(case, features.onset, "in these rows"), "distribution"
        )
        if cause.words.family != "context" and cause.name not in IN_EVERY_ROW
    ]


def is_umbrella(cause: Cause) -> bool:
    """Tell whether a cause stands for several that the table cannot tell apart."""
    return cause.words.family == "umbrellas"


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


def diagnosis_of(features: Features, named: Named) -> Diagnosis:
    """Return the diagnosis of a case whose causes are named."""
    read, features = features, _of_measured_rows(features)
    case = features.case
    pair = {"sampler": case.sampler}
    if case.trainer is not None:
        pair["trainer"] = case.trainer
    # Who sampled the rows that the last cause was judged on: the repaired rows of the steps that
    # have the mismatch.
    judged = [found.validity for _, found in named if found.validity is not None]
    validity = None
    if case.trainer is not None:
        validity = judged[-1] if judged else features.validity
    causes = _ordered_causes(features, named, validity)
    verdict = _verdict(case, causes)
    steps = over_steps(features)
    summary = _summary(features, verdict, causes, validity)
    if features is not read and [cause.slug for cause in causes[:1]] == [NO_LOG_PROBS]:
        others = [entry for entry in named if entry[0].name != NO_LOG_PROBS]
        of_others = _ordered_causes(features, others, validity)
        if case.trainer is not None and of_others:
            rows = plural(features.validity.rows, "other row")
            verb = "is" if features.validity.rows == 1 else "are"
            summary += f" The {rows} alone {verb} {_verdict(case, of_others)}: {of_others[0].slug}."
    return Diagnosis(
        verdict=verdict,
        summary=summary,
        pair=pair,
        causes=causes,
        ruled_out=ruled_out(features, [cause.slug for cause in causes]),
        next=[
            *next_experiment(case, verdict, causes),
            *experiment_at_rate_zero(features, steps, causes),
        ],
        over_steps=steps,
        judged_rows=len(case.lengths),
    )


def _of_measured_rows(features: Features) -> Features:
    """Return the features without rows that hold values which are no log-probs.

    No number of a result is made of these rows, so none of the diagnosis is.
    """
    case = features.case
    pair = [case.sampler, *([case.trainer] if case.trainer is not None else [])]
    bad = np.any([impossible(case.log_probs[policy]) for policy in pair], axis=0) & case.mask
    rows = np.bincount(case.owner[bad], minlength=len(case.lengths)) > 0
    if not rows.any() or rows.all():
        return features
    return Features(case.without_rows(rows))


def without_traces(entries: Named, everything: Named) -> list[tuple[Cause, Suspicion]]:
    """Drop causes that a named cause imitates (`LEAVES_TRACE_OF`) and is not much less probable."""
    explained = {
        trace: found.confidence
        for cause, found in everything
        for trace in LEAVES_TRACE_OF.get(cause.name, ())
    }
    return [
        (cause, found)
        for cause, found in entries
        if cause.name not in explained or explained[cause.name] <= found.confidence - MUCH_LESS
    ]


def _ordered_causes(
    features: Features, named: Named, validity: Validity | None
) -> list[NamedCause]:
    """Return the named causes, first those that decide the verdict.

    Engine noise is not a second cause beside a fault: it becomes evidence that the fault explains
    everything else.
    """
    causes = [_named_cause(features, cause, suspicion, validity) for cause, suspicion in named]
    order = ("broken", "inconclusive", "correctable", "healthy")
    faults = [cause for cause in causes if cause.slug not in NOTHING_WRONG]
    harmless = [cause for cause in causes if cause.slug in NOTHING_WRONG]
    if not faults:
        return harmless
    faults.sort(key=lambda cause: (order.index(cause.verdict), -cause.confidence))
    if faults[0].verdict == "healthy":
        return [*faults, *(replace(cause, actions=[]) for cause in harmless)]
    residual = [
        {**one.evidence[0], "name": RESIDUAL} for one in harmless if one.slug == "engine-noise"
    ]
    first, *others = faults
    evidence = [*first.evidence[:1], *residual, *first.evidence[1:]]
    return [replace(first, evidence=evidence), *others]


def with_verdict(features: Features, cause: Cause, suspicion: Suspicion) -> Suspicion:
    """Return a suspicion with the verdict that its cause gives on a case, and who sampled there."""
    verdict = verdict_of_cause(features, cause, suspicion)
    judged = cause.stage in EXCLUSIVE_STAGES and features.case.trainer is not None
    return replace(suspicion, verdict=verdict, validity=features.validity if judged else None)


def verdict_of_cause(features: Features, cause: Cause, suspicion: Suspicion) -> str:
    """Return the verdict that a cause alone gives on a case.

    A difference without structure is judged by E[ratio]. If E[ratio] shows that the recorded
    distribution did not sample, there must be a second fault besides the difference of the two
    forward passes, and the verdict is `broken`.
    """
    verdict = suspicion.verdict or cause.words.verdict
    if verdict == "guides" or (verdict == "healthy" and cause.stage == "difference"):
        verdict = by_size(features)
    if features.case.trainer is None:
        return verdict
    if cause.stage != "difference" or verdict not in ("healthy", "correctable"):
        return verdict
    valid = features.validity
    by_experiment = suspicion.fit is not None
    by_cause = by_experiment or cause.name not in BY_PATTERN or suspicion.verdict is not None
    if valid.overrules_cause or (valid.answer == UNKNOWN and not by_cause):
        return "inconclusive"
    if verdict == "healthy" and few_prompts(features.case):
        return "inconclusive"
    return "broken" if valid.answer == INVALID else verdict


def _named_cause(
    features: Features, cause: Cause, suspicion: Suspicion, validity: Validity | None
) -> NamedCause:
    words = cause.words
    verdict = suspicion.verdict or words.verdict
    evidence = [dict(entry) for entry in suspicion.evidence]
    if validity is not None and cause.stage == "difference":
        # Who sampled decides the verdict: it stands second, where every screen shows it.
        own = [entry for entry in evidence if entry["name"].startswith(("E[ratio]", "kappa"))]
        others = [entry for entry in evidence if entry not in own]
        evidence = [*others[:1], *(own or [validity.evidence]), *others[1:]]
    if validity is not None and validity.answer == VALID and verdict == "broken":
        # No weights repair it although the record sampled: they correct towards the wrong column.
        reads = f"{RECORD_SAMPLED}, but `{features.case.trainer}` is a wrong target for weights"
        evidence = [
            {**entry, "reads": reads} if RECORD_SAMPLED in entry.get("reads", "") else entry
            for entry in evidence
        ]
    possible = words.look_alikes if suspicion.also_possible is None else suspicion.also_possible
    return NamedCause(
        slug=words.slug,
        verdict=verdict,
        confidence=round(suspicion.confidence, 3),
        side=suspicion.side or words.side,
        share_of_rows=round(float(suspicion.share_of_rows), 4),
        message=suspicion.message,
        evidence=evidence,
        actions=_repair_actions(features, cause, verdict),
        also_possible=[slug for slug in possible if slug != words.slug],
        from_step=suspicion.from_step,
    )


def _repair_actions(features: Features, cause: Cause, verdict: str) -> list[Action]:
    """Return the actions that repair a cause, the most useful first."""
    slug, case = cause.words.slug, features.case
    # A cause by the size of too few log-ratios is a guess: more rows are the first thing to do.
    of_pair = cause.stage == "difference" and case.trainer is not None
    by_few = of_pair and len(case.tokens) < ENOUGH
    guessed = slug in NOTHING_WRONG or by_few
    if verdict == "healthy" or (verdict == "inconclusive" and guessed):
        return []
    actions = [_action(features, text) for text in cause.words.mend[:2]]
    sampler, trainer = features.declared.sampler.model, features.declared.trainer.model
    differ = features.declared.weights_differ and slug == "stale-weights"
    if differ and sampler and trainer and can_be_scored(features.case):
        command = (
            f"{diagnose_again(features.case)} --model {shell_path(trainer)} --checkpoint "
            f"{shell_path(sampler, 'OLDER')}"
        )
        return [*actions[:1], Action(text="Confirm", command=command), *actions[1:]]
    kept = features.kept_sets
    if slug in KEPT_SET_CAUSES and kept is not None and kept.replay is None:
        actions.append(_action(features, REPLAY))
    details = Action(text="See how in your trainer", command=f"rcdiag explain {slug}")
    return [*actions, details]


def _action(features: Features, text: str) -> Action:
    """Return an action from a cause's text; a command after a colon gets this table's paths."""
    says, colon, command = text.partition(": rcdiag ")
    if not colon:
        return Action(text=text)
    if not can_be_scored(features.case):
        return Action(text=f"{says}, with `prompt_ids` in the table.")
    again, source = diagnose_again(features.case), features.case.source
    command = f"rcdiag {command.removesuffix('.')}".replace("rcdiag diagnose DUMP", again)
    command = command.replace("DUMP", source)
    return Action(
        text=says, command=command.replace("CKPT", shell_path(features.declared.trainer.model))
    )


def by_size(features: Features) -> str:
    """Return `healthy` where the mismatch is negligible, else `correctable`.

    Negligible means KL per sequence below NEGLIGIBLE_KL and no per-token number beyond its guide:
    short sequences can pass the first and fail the second.
    """
    if features.case.trainer is None or not len(features.case.tokens):
        return "healthy"
    tokens = features.case.tokens
    rows = max(int((tokens.per_row > 0).sum()), 1)
    little = features.log_ratios.k3 * len(tokens) / rows <= NEGLIGIBLE_KL
    return "healthy" if little and not beyond_guides(suite_of(features.case)) else "correctable"


def _verdict(case: Case, causes: Sequence[NamedCause]) -> str:
    """Return the verdict that the causes give together.

    With one policy nothing was compared. With fewer than ENOUGH tokens nothing was but their
    storage, which may be harmless whatever else differs.
    """
    if any(cause.verdict == "broken" and cause.confidence >= DECIDES for cause in causes):
        return "broken"
    doubtful = any(cause.verdict in ("broken", "inconclusive") for cause in causes)
    if not causes or doubtful or case.trainer is None or len(case.tokens) < ENOUGH:
        return "inconclusive"
    return "correctable" if any(cause.verdict == "correctable" for cause in causes) else "healthy"


def _usefulness(features: Features, validity: Validity) -> str:
    """Say how many effective sequences importance weights leave: valid weights may be useless."""
    ess = METRICS["ess_seq"].value(suite_of(features.case))
    rows = int((features.case.tokens.per_row > 0).sum())
    of = "diagnosed sequence" if features.case.drawn else "sequence"
    found = f"leave an ESS of {effective_share(ess, rows)} of {plural(rows, of)}"
    # Weights of whole sequences are then of little use.
    little = ess.value is not None and ess.value < HALF
    ending = f"but {found}: remove the cause first" if little else f"and {found}"
    if validity.answer == VALID:
        return f"Importance weights are valid {ending}."
    return f"By the cause importance weights are valid {ending}. {validity.sentence}"


def _summary(
    features: Features, verdict: str, causes: Sequence[NamedCause], validity: Validity | None
) -> str:
    """Summarise the diagnosis in one or two sentences."""
    case = features.case
    if validity is None:
        found = f". {causes[0].message}" if causes else "; its values look valid."
        return (
            f"Only one log-prob column (`{case.sampler}`) was found, so nothing was compared{found}"
        )
    if verdict == "inconclusive" and len(case.tokens) < ENOUGH:
        both = f"{len(case.tokens):,} sampled tokens with log-probs of both sides"
        few = f"{both} are too few to judge."
        return " ".join([few, *(cause.message for cause in causes[:1])])
    message = f"{_steps_prefix(features, causes[0])}{causes[0].message}"
    if verdict == "correctable":
        return f"{message} {_usefulness(features, validity)}"
    # Causes that only experiments name are differences of the two forward passes.
    slug = causes[0].slug
    if verdict == "healthy" or (slug in CAUSES and CAUSES[slug].stage != "difference"):
        return message
    if validity.answer == INVALID:
        return f"{message} {validity.sentence}"
    if verdict == "broken" and validity.answer == VALID:
        return f"{message} Weights would correct towards `{case.trainer}`, which is wrong here."
    if causes[0].slug in NOTHING_WRONG and not validity.overrules_cause:
        return f"Nearly all tokens are of one prompt, which says little about others. {message}"
    # What would settle it stands first, where no screen cuts it.
    by_cause = validity.answer == VALID
    return f"{message} {validity.sentence}" if by_cause else f"{validity.sentence} {message}"


def _steps_prefix(features: Features, cause: NamedCause) -> str:
    """Say in which steps a cause shows; empty where it shows in all."""
    onset = features.location.onset
    if cause.from_step is None:
        return ""
    if onset is None:
        return f"From step {cause.from_step} on: "
    steps, times = onset.within[0].upper() + onset.within[1:], rough(onset.times)
    if onset.last is None:
        if onset.first == len(onset.steps.labels) - 1:
            steps = f"At step {onset.step}, the last,"
        return f"{steps} k3 is {times} times its median before. "
    return f"{steps} alone k3 is {times} times its median elsewhere. "
