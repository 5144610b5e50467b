"""What the named causes of a table or log say together: its verdict, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.cause import EXCLUSIVE_STAGES, Suspicion, cause_of
from rcdiag.diagnosis.causes.cause_words import CauseWords
from rcdiag.diagnosis.causes.kept_sets import KEPT_SET_SLUGS
from rcdiag.diagnosis.features import Features
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
from rcdiag.diagnosis.thresholds import ENOUGH, HALF
from rcdiag.diagnosis.validity import INVALID, RECORD_SAMPLED, UNKNOWN, VALID, Validity
from rcdiag.formats import effective_share, plural, rough
from rcdiag.results.diagnosis import NOTHING_WRONG, Action, Diagnosis, NamedCause
from rcdiag.statistics.extremes import impossible
from rcdiag.statistics.metrics import METRICS

DECIDES = 0.6  # confidence of a cause from which its `broken` verdict decides
ORDER = ("broken", "inconclusive", "correctable", "healthy")  # of causes, by their verdict
# KL per sequence, nats, below which a mismatch is negligible: by Pinsker's inequality the total
# variation is then at most 0.1, and the bias of uncorrected gradients is below their noise.
NEGLIGIBLE_KL = 0.02
# Causes named by the size of log-ratios over tokens or steps, which a record of another
# distribution may have as well: where E[ratio] cannot tell who sampled, they do not either.
BY_PATTERN = ("forwards-differ", "moe-routing", "weights-differ", "weights-never-synced")
NO_LOG_PROBS = "nan-log-probs"  # rows that have it are left out of all numbers
KEPT_SET_CAUSES = ("truncated-law", *KEPT_SET_SLUGS)
REPLAY = (
    "See what a replay over the kept ids changes: rcdiag score DUMP --model CKPT "
    "--policy old_kept=hf:float32,support=rollout -o kept.parquet"
)
# Name of an evidence entry: the residual mismatch once a fault is repaired.
RESIDUAL = "rms log-ratio without that fault"


def named_cause(
    found: Suspicion, actions: Sequence[Action], evidence: Iterable[Mapping[str, Any]]
) -> NamedCause:
    """Return a cause as results show it, with what to do about it."""
    words = found.cause.words
    possible = words.look_alikes if found.also_possible is None else found.also_possible
    return NamedCause(
        slug=found.slug,
        verdict=found.verdict or words.verdict,
        confidence=round(found.confidence, 3),
        side=found.side or words.side,
        share_of_rows=round(float(found.share_of_rows), 4),
        message=found.message,
        evidence=[dict(entry) for entry in evidence],
        actions=list(actions),
        also_possible=[slug for slug in possible if slug != found.slug],
        from_step=found.from_step,
    )


def gravity(cause: NamedCause | Suspicion) -> tuple[int, float]:
    """Return the place of a cause among others: by its verdict, then by its confidence."""
    assert cause.verdict is not None
    return ORDER.index(cause.verdict), -cause.confidence


def verdict_of(causes: Sequence[NamedCause]) -> str:
    """Return the verdict that causes give together; `broken` takes a cause that is likely."""
    if any(cause.verdict == "broken" and cause.confidence >= DECIDES for cause in causes):
        return "broken"
    if not causes or any(cause.verdict in ("broken", "inconclusive") for cause in causes):
        return "inconclusive"
    return "correctable" if any(cause.verdict == "correctable" for cause in causes) else "healthy"


def see_how(words: CauseWords) -> list[Action]:
    """Name the command that shows how engines and trainers repair a cause; none if it has none."""
    if not words.mend_in:
        return []
    return [Action(text="See how in your trainer", command=f"rcdiag explain {words.slug}")]


def with_verdict(features: Features, found: Suspicion) -> Suspicion:
    """Return a suspicion with the verdict that its cause gives on a case, and what it rests on."""
    judged = found.cause.stage in EXCLUSIVE_STAGES and features.case.trainer is not None
    return replace(
        found,
        verdict=verdict_of_cause(features, found),
        validity=features.validity if judged else None,
    )


def verdict_of_cause(features: Features, found: Suspicion) -> str:
    """Return the verdict that a cause alone gives on a case.

    A difference without structure is judged by E[ratio]. If E[ratio] shows that the recorded
    distribution did not sample, there must be a second fault besides the difference of the two
    forward passes, and the verdict is `broken`.
    """
    cause = found.cause
    verdict = found.verdict or cause.words.verdict
    if verdict == "guides" or (verdict == "healthy" and cause.stage == "difference"):
        verdict = by_size(features)
    if features.case.trainer is None:
        return verdict
    if cause.stage != "difference" or verdict not in ("healthy", "correctable"):
        return verdict
    valid = features.validity
    by_experiment = found.fit is not None
    by_cause = by_experiment or cause.name not in BY_PATTERN or found.verdict is not None
    if valid.overrules_cause or (valid.answer == UNKNOWN and not by_cause):
        return "inconclusive"
    if verdict == "healthy" and few_prompts(features.case):
        return "inconclusive"
    return "broken" if valid.answer == INVALID else verdict


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


def diagnosis_of(features: Features, named: Sequence[Suspicion]) -> Diagnosis:
    """Return the diagnosis of a case whose causes are named."""
    read, features = features, _of_measured_rows(features)
    case = features.case
    pair = {"sampler": case.sampler}
    if case.trainer is not None:
        pair["trainer"] = case.trainer
    # Who sampled the rows that the last cause was judged on: the repaired rows of the steps that
    # have the mismatch.
    judged = [found.validity for found in named if found.validity is not None]
    validity = None
    if case.trainer is not None:
        validity = judged[-1] if judged else features.validity
    causes = _ordered_causes(features, named, validity)
    verdict = _verdict(case, causes)
    steps = over_steps(features)
    summary = _summary(features, verdict, causes, validity)
    if features is not read and [cause.slug for cause in causes[:1]] == [NO_LOG_PROBS]:
        others = [found for found in named if found.slug != NO_LOG_PROBS]
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


def _ordered_causes(
    features: Features, named: Sequence[Suspicion], validity: Validity | None
) -> list[NamedCause]:
    """Return the named causes, first those that decide the verdict.

    Engine noise is not a second cause beside a fault: it becomes evidence that the fault explains
    everything else.
    """
    causes = [
        named_cause(found, _repairs(features, found), _evidence(features, found, validity))
        for found in named
    ]
    faults = sorted((one for one in causes if one.slug not in NOTHING_WRONG), key=gravity)
    harmless = [cause for cause in causes if cause.slug in NOTHING_WRONG]
    if not faults:
        return harmless
    if faults[0].verdict == "healthy":
        return [*faults, *(replace(cause, actions=[]) for cause in harmless)]
    residual = [
        {**one.evidence[0], "name": RESIDUAL} for one in harmless if one.slug == "engine-noise"
    ]
    first, *others = faults
    evidence = [*first.evidence[:1], *residual, *first.evidence[1:]]
    return [replace(first, evidence=evidence), *others]


def _evidence(
    features: Features, found: Suspicion, validity: Validity | None
) -> list[Mapping[str, Any]]:
    """Return the evidence for a cause, with what shows who sampled."""
    evidence = list(found.evidence)
    if validity is None:
        return evidence
    if found.cause.stage == "difference":
        # Who sampled decides the verdict: it stands second, where every screen shows it.
        own = [entry for entry in evidence if entry["name"].startswith(("E[ratio]", "kappa"))]
        others = [entry for entry in evidence if entry not in own]
        evidence = [*others[:1], *(own or [validity.evidence]), *others[1:]]
    if validity.answer == VALID and found.verdict == "broken":
        # The recorded distribution sampled, but weights would correct towards a wrong target.
        reads = f"{RECORD_SAMPLED}, but `{features.case.trainer}` is a wrong target for weights"
        evidence = [
            {**entry, "reads": reads} if RECORD_SAMPLED in entry.get("reads", "") else entry
            for entry in evidence
        ]
    return evidence


def _repairs(features: Features, found: Suspicion) -> list[Action]:
    """Return the actions that repair a cause, the most useful first."""
    slug, case, words = found.slug, features.case, found.cause.words
    verdict = found.verdict or words.verdict
    # A cause by the size of too few log-ratios is a guess: more rows are the first thing to do.
    of_pair = found.cause.stage == "difference" and case.trainer is not None
    guessed = slug in NOTHING_WRONG or (of_pair and len(case.tokens) < ENOUGH)
    if verdict == "healthy" or (verdict == "inconclusive" and guessed):
        return []
    actions = [_action(features, text) for text in (found.actions or words.mend)[:2]]
    sampler, trainer = features.declared.sampler.model, features.declared.trainer.model
    differ = features.declared.weights_differ and slug == "stale-weights"
    if differ and sampler and trainer and can_be_scored(case):
        command = (
            f"{diagnose_again(case)} --model {shell_path(trainer)} --checkpoint "
            f"{shell_path(sampler, 'OLDER')}"
        )
        return [*actions[:1], Action(text="Confirm", command=command), *actions[1:]]
    kept = features.kept_sets
    if slug in KEPT_SET_CAUSES and kept is not None and kept.replay is None:
        actions.append(_action(features, REPLAY))
    return [*actions, *see_how(words)]


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


def _verdict(case: Case, causes: Sequence[NamedCause]) -> str:
    """Return the verdict on a table.

    With one policy nothing was compared. With fewer than ENOUGH tokens nothing was but their
    storage, which may be harmless whatever else differs.
    """
    verdict = verdict_of(causes)
    compared = case.trainer is not None and len(case.tokens) >= ENOUGH
    return verdict if compared or verdict == "broken" else "inconclusive"


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
    if verdict == "healthy" or cause_of(causes[0].slug).stage != "difference":
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
