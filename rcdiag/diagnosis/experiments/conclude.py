"""Runs the experiments on both sides of a case and turns them into causes, the likeliest first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case, rms
from rcdiag.diagnosis.causes.cause import Suspicion, fact
from rcdiag.diagnosis.causes.kept_sets import KEPT_SET_SLUGS
from rcdiag.diagnosis.causes.temperatures import TEMPERATURE_SLUGS
from rcdiag.diagnosis.causes.unlogged_sampling import UNLOGGED_SLUGS
from rcdiag.diagnosis.confidence import calibrated
from rcdiag.diagnosis.experiment_fit import NO_RIVAL
from rcdiag.diagnosis.experiments.checkpoint_causes import single_checkpoint
from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTester
from rcdiag.diagnosis.experiments.missing_eos import cause_in_missing_eos
from rcdiag.diagnosis.experiments.one_side import conclude_side
from rcdiag.diagnosis.experiments.order import (
    EXPERIMENTS,
    explains,
    run_with_recorded_experts,
)
from rcdiag.diagnosis.experiments.outcome import ExperimentOptions, Outcome
from rcdiag.diagnosis.experiments.recorded_experts import cause_in_experts
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side, rescore, rows_in_time
from rcdiag.diagnosis.experiments.sides import EXACT, fit_of_side, side_of
from rcdiag.diagnosis.experiments.thresholds import LARGEST_DIFFERENCE
from rcdiag.diagnosis.experiments.unlogged_sampling import cause_in_sampling, make_suspicion
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.thresholds import BY_ITS_ERROR, HALF, LARGER, MOST, PART, SURELY
from rcdiag.engines.changes import Forward

# Families of causes of which the likelihood of the tokens selects one.
OF_TOKENS = (TEMPERATURE_SLUGS, UNLOGGED_SLUGS)
OF_WEIGHTS = {
    "stale-weights",
    "weights-never-synced",
    "replica-unsynced",
    "in-flight-update",
    "partial-sync",
    "draft-recorded",
    "weights-differ",
}


def run_experiments(
    case: Case, forward: Forward, given: ExperimentOptions | None = None
) -> Outcome:
    """Run the experiments that separate the causes of a mismatch."""
    given = given or ExperimentOptions()
    sample = rescore(
        case,
        rows_in_time(case, forward, given.rows, given.deadline, len(given.checkpoints)),
        forward,
    )
    if not len(sample) or not sample.usable.any():
        return Outcome(sample, [])
    names = [("sampler", case.sampler)] + ([("trainer", case.trainer)] if case.trainer else [])
    sides = [
        side_of(sample, name, policy)
        for name, policy in names
        if policy is not None and np.isfinite(sample.recorded(policy)[sample.usable]).any()
    ]
    outcome = Outcome(sample, sides)
    if not sides:
        return outcome
    outcome.temperature, in_sampling = cause_in_sampling(sample, sides)
    named = [in_sampling, cause_in_missing_eos(sample, forward)]
    tester = HypothesisTester(sample, sides[0], forward, deadline=given.deadline)
    experts = outcome.record(run_with_recorded_experts(tester))
    named += [cause_in_experts(sample, sides[0], test) for test in experts]
    if _agree_against_model(sides):
        named += _conclude_both(outcome, forward, given)
    else:
        for index, side in enumerate(sides):
            if index == 0 and any(explains(test, sample.noise) for test in experts):
                continue  # the sampler's recorded experts explain this column
            other = sides[1 - index] if len(sides) > 1 else None
            named.append(conclude_side(outcome, side, other, forward, given))
    found = [one for one in named if one is not None]
    if not found and all(side.explained for side in sides):
        found = [_name_noise(sample, sides)]
    with np.errstate(all="ignore"):
        judged = calibrated(Features(case), found)
    outcome.suspicions = sorted(judged, key=lambda one: -one.confidence)
    outcome.ruled_out = _ruled_out(outcome)
    return outcome


def _ruled_out(outcome: Outcome) -> list[str]:
    """List causes that experiments tried and that explain none of the columns."""
    possible = {found.slug for found in outcome.suspicions}
    possible |= {slug for name in outcome.open for slug in EXPERIMENTS[name].slugs}
    possible |= {test.slug for test in outcome.tests if test.explained > PART and test.gain > 0.0}
    tried = [test.slug for test in outcome.tests]
    for found in outcome.suspicions:
        # The likelihood of the tokens rules out the other distributions of the family.
        if found.fit is not None and found.fit.z > SURELY:
            tried += [other for family in OF_TOKENS if found.slug in family for other in family]
    return [slug for slug in dict.fromkeys(tried) if slug not in possible]


# Columns that the unchanged model explains.


def _name_noise(sample: RescoredSample, sides: Sequence[Side]) -> Suspicion:
    """Name the noise where the model explains both columns."""
    exact = all(side.residual.scale <= EXACT for side in sides)
    worst = max(sides, key=lambda side: side.residual.rms)
    reads = "float32 rounding" if exact else "within the noise of an engine in bfloat16"
    doubt = next((words for side in sides if (words := doubt_of(sample, side))), None)
    left = {side.policy: side.residual.rms for side in sides}
    evidence = [fact("rms of recorded - model's log-prob", reads, **left)]
    message = f"The checkpoint explains every column to {worst.residual.rms:.2g} nats (rms)."
    possible = None
    if doubt is not None:
        message += f" That is the size of bfloat16 rounding, but {doubt}."
        possible = ["weights-differ", "context-differs"]
    fits = [fit_of_side(sample, side, "unchanged", explained=1.0) for side in sides]
    fit = replace(
        fits[0],
        scale=max(one.scale for one in fits),
        tail=max(one.tail for one in fits),
        by_token=max(one.by_token for one in fits),
    )
    slug = "healthy" if exact and doubt is None else "engine-noise"
    return make_suspicion(slug, fit, message, evidence, side="none", also_possible=possible)


def doubt_of(sample: RescoredSample, side: Side) -> str | None:
    """Say how a residual of the size of rounding differs from rounding; None if it does not."""
    residual, rounding = side.residual, sample.rounding
    if residual.scale <= EXACT:
        return None
    if rounding.is_heavier_in(residual):
        return "a few tokens deviate by more than rounding does"
    if rounding.follows_ids_in(residual, sample.token[side.known], sample.owner[side.known]):
        return "it depends more on the token's id than rounding does"
    return None


# Columns that agree with each other.


def _agree_against_model(sides: Sequence[Side]) -> bool:
    """Tell whether both columns differ from the model in the same way.

    A fault of one side changes one column, and makes `_apart` about 1. If both deviate in the same
    way, both were computed with other weights, or from other tokens than those in the table.
    """
    if len(sides) < 2 or any(side.explained for side in sides):
        return False
    apart = _apart(sides)
    return apart is not None and apart < HALF


def _apart(sides: Sequence[Side]) -> float | None:
    """Return rms(difference of the columns) / rms(distance of the nearer column from the model).

    None without tokens that both columns know.
    """
    one, other = sides
    known = one.known & other.known
    if not known.any():
        return None
    off = [
        np.clip((side.recorded - side.expected)[known], -LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
        for side in sides
    ]
    nearer = min(rms(values) for values in off)
    return rms(off[0] - off[1]) / max(nearer, 1e-12)


def _conclude_both(
    outcome: Outcome, forward: Forward, given: ExperimentOptions
) -> list[Suspicion | None]:
    """Explain two columns that differ from the model in the same way, using the sampler's."""
    one, other = outcome.sides
    named = conclude_side(outcome, one, None, forward, given)
    names = f"{one.policy}_log_probs and {other.policy}_log_probs"
    if named is None:
        return [_name_agreement(outcome, names)]
    assert named.fit is not None
    if named.slug in KEPT_SET_SLUGS:
        # The trainer renormalises as the sampler does: both columns are of the distribution that
        # sampled.
        words = f"{names} agree with each other, both renormalised over kept sets. {named.message}"
        fit, evidence = replace(named.fit, kind="unchanged"), [dict(one) for one in named.evidence]
        return [
            make_suspicion("engine-noise", fit, words, evidence, side="none", verdict="healthy")
        ]
    # Noise between two columns of the same weights may explain more than the named cause.
    if named.fit.kind == "pattern":
        falls_short = named.fit.explained < MOST
    else:
        falls_short = named.fit.lead < BY_ITS_ERROR or named.fit.scale > LARGER
    if named.slug in OF_WEIGHTS or falls_short:
        return [_name_agreement(outcome, names)]
    words = f"{names} agree with each other but not with the tokens in the table: "
    return [replace(named, message=f"{words}{named.message}", side="recorder")]


def _name_agreement(outcome: Outcome, names: str) -> Suspicion:
    """Name the noise between two columns of the same weights, which are not the model's."""
    one, other = outcome.sides
    weights = outcome.weights.get(one.name)
    name = None if weights is None else single_checkpoint(weights)
    reads = "not the given model's" if name is None else f"{name}'s, not the given model's"
    fit = fit_of_side(
        outcome.sample,
        one,
        "unchanged",
        explained=1.0 - (_apart(outcome.sides) or 0.0) ** 2,
        lead=0.0 if name is None else NO_RIVAL,
        not_run=outcome.not_run(one),
    )
    evidence = fact(
        "rms of recorded - the given model's log-prob",
        f"weights of both: {reads}",
        **{one.policy: one.residual.rms, other.policy: other.residual.rms},
    )
    message = f"{names} agree with each other; their weights are {reads}."
    return make_suspicion("engine-noise", fit, message, [evidence], side="none")
