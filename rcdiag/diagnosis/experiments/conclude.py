"""Runs the experiments on both sides of a case and turns them into causes, the likeliest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.experiments.checkpoint_causes import (
    cause_by_row,
    cause_of_weights,
    single_checkpoint,
)
from rcdiag.diagnosis.experiments.fit import Estimate
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    Coders,
    HypothesisTest,
    HypothesisTester,
    no_coders,
)
from rcdiag.diagnosis.experiments.missing_eos import cause_in_missing_eos
from rcdiag.diagnosis.experiments.order import (
    common_margin,
    explains,
    ranked,
    run_with_passes,
    run_without_passes,
)
from rcdiag.diagnosis.experiments.patterns import Pattern, only_rows_off, pattern_of, retokenised
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side, rescore, rows_in_time
from rcdiag.diagnosis.experiments.rounding import by_token
from rcdiag.diagnosis.experiments.sides import EXACT, at_temperature, side_of
from rcdiag.diagnosis.experiments.unlogged_sampling import cause_in_sampling, make_suspicion
from rcdiag.diagnosis.experiments.weights_by_row import (
    WeightsByRow,
    weights_by_row,
)
from rcdiag.diagnosis.features.declared import Declared
from rcdiag.engines.changes import Forward
from rcdiag.formats import share_of

Suspicions = list[tuple[str, Suspicion]]

# share of a row's tokens that are off: other contexts exceed it, coarse rounding does not
EVEN = 0.1
ALIKE = 0.4  # rms of the columns' difference over that of their distance from the model
DOUBTFUL = 0.7  # confidence of rounding where what is left has another shape
WHOLE = 0.8  # confidence of an experiment that explains a column, or of a clear pattern
OF_WEIGHTS = {
    "stale-weights",
    "weights-never-synced",
    "replica-unsynced",
    "in-flight-update",
    "partial-sync",
    "draft-recorded",
    "weights-differ",
}
KEPT_SETS = {"top-p-renormalised", "top-k-renormalised", "min-p-renormalised", "truncated-law"}
OF_THE_HEAD = 0.6  # share of the squares that follows the token's id, where the head is another
FEW_TIMES = 3.0  # an engine's noise, up to which a trainer may be off for reasons of rounding
MATTERS = 1e-3  # nats, rms, by which a test must move a column that is explained already
MUCH = 0.5  # nats per token by which a test beats an expected column that is near already
PARTLY = 0.8  # share of squares from which on a test explains most
WORTH_SAYING = 0.1  # share of squares from which on what a test explains is evidence
UNDECIDED = "the tokens do not show whether the recorded distribution sampled them"
UNFINISHED = 0.5  # confidence of what nothing explains while experiments are left to run


class Outcome(Struct):
    """The result of the experiments on a case."""

    sample: RescoredSample
    sides: list[Side]
    suspicions: Suspicions = field(default_factory=list)
    ruled_out: list[str] = field(default_factory=list)
    tests: list[HypothesisTest] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    weights: dict[str, WeightsByRow] = field(default_factory=dict)  # by side
    temperature: Estimate | None = None  # of the tokens
    steps: list[int] | None = None  # training steps whose rows were read; None: of all


class ExperimentOptions(Struct, frozen=True, kw_only=True):
    """What the user provides beside the table and the trainer's model."""

    checkpoints: Sequence[Path] = ()
    coders: Coders = no_coders  # of the checkpoint's tokenizer
    rows: int = 256
    deadline: float | None = None  # time.monotonic()
    progress: Callable[[str], None] = lambda text: None


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
    in_ends = cause_in_missing_eos(sample, forward)
    outcome.suspicions += [one for one in (in_sampling, in_ends) if one is not None]
    if _agree_against_model(sides):
        _conclude_both(outcome, forward, given)
    else:
        for index, side in enumerate(sides):
            _conclude_side(
                outcome, side, sides[1 - index] if len(sides) > 1 else None, forward, given
            )
    if not outcome.suspicions and all(side.explained for side in sides):
        outcome.suspicions.append(_name_noise(sample, sides))
    outcome.suspicions.sort(key=lambda one: -one[1].confidence)
    named = {slug for slug, _ in outcome.suspicions}
    outcome.ruled_out = _ruled_out(outcome, named)
    return outcome


# Columns that agree with each other.


def _agree_against_model(sides: Sequence[Side]) -> bool:
    """Tell whether both columns differ from the model in the same way.

    A fault of one side moves one column. If both move alike, both were computed with other weights,
    or from other tokens than those in the table.
    """
    if len(sides) < 2 or any(side.explained for side in sides):
        return False
    one, other = sides
    known = one.known & other.known
    if not known.any():
        return False
    off = [np.clip((side.recorded - side.expected)[known], -5.0, 5.0) for side in sides]
    apart = _rms(off[0] - off[1])
    return apart < ALIKE * min(_rms(values) for values in off)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _conclude_both(outcome: Outcome, forward: Forward, given: ExperimentOptions) -> None:
    """Explain two columns that differ from the model in the same way, using the sampler's."""
    before = len(outcome.suspicions)
    one, other = outcome.sides
    _conclude_side(outcome, one, None, forward, given)
    made = outcome.suspicions[before:]
    names = f"{one.policy}_log_probs and {other.policy}_log_probs"
    if made and {slug for slug, _ in made} <= KEPT_SETS:
        # The trainer renormalises as the sampler does: both columns are of the distribution that
        # sampled.
        kept = made[0][1]
        words = f"{names} agree with each other, both renormalised over kept sets. {kept.message}"
        outcome.suspicions[before:] = [
            (
                "engine-noise",
                make_suspicion(
                    0.85,
                    words,
                    [dict(one) for one in kept.evidence],
                    side="none",
                    verdict="healthy",
                ),
            )
        ]
        return
    weights = {slug for slug, _ in made} <= OF_WEIGHTS
    fallen_short = all(suspicion.confidence < WHOLE for _, suspicion in made)
    if made and not (weights or fallen_short):
        outcome.suspicions[before:] = [
            (
                slug,
                replace(
                    suspicion,
                    message=f"{names} agree with each other and not with the stored tokens' "
                    f"context: {suspicion.message}",
                    side="recorder",
                ),
            )
            for slug, suspicion in made
        ]
        return
    found = outcome.weights.get(one.name)
    name = None if found is None else single_checkpoint(found)
    reads = "not the given model's" if name is None else f"{name}'s, not the given model's"
    outcome.suspicions[before:] = [
        (
            "engine-noise",
            make_suspicion(
                0.6 if name is None else 0.85,
                f"{names} agree with each other; their weights are {reads}.",
                [
                    {
                        "name": "rms of recorded - the given model's log-prob",
                        one.policy: one.residual.rms,
                        other.policy: other.residual.rms,
                        "reads": f"weights of both: {reads}",
                    }
                ],
                side="none",
            ),
        )
    ]


def _name_noise(sample: RescoredSample, sides: Sequence[Side]) -> tuple[str, Suspicion]:
    """Name the noise where the model explains both columns."""
    exact = all(side.residual.scale <= EXACT for side in sides)
    largest = max(side.residual.rms for side in sides)
    reads = "float32 rounding" if exact else "within the noise of an engine in bfloat16"
    doubt = next((words for side in sides if (words := doubt_of(sample, side))), None)
    evidence = [
        {
            "name": "rms of recorded - honest log-prob",
            **{side.policy: side.residual.rms for side in sides},
            "reads": reads,
        }
    ]
    message = f"The checkpoint explains every column to {largest:.2g} nats (rms)."
    if doubt is not None:
        return "engine-noise", make_suspicion(
            DOUBTFUL,
            f"{message} That is as much as an engine in bfloat16 rounds, but {doubt}.",
            evidence,
            side="none",
            also_possible=["weights-differ", "context-differs"],
        )
    return ("healthy" if exact else "engine-noise"), make_suspicion(
        0.95, message, evidence, side="none"
    )


def doubt_of(sample: RescoredSample, side: Side) -> str | None:
    """Say how a residual of the size of rounding differs from rounding; None if it does not."""
    residual, rounding = side.residual, sample.rounding
    if residual.scale <= EXACT:
        return None
    if rounding.is_heavier_in(residual):
        return "few tokens are off by more than rounding puts them off"
    if rounding.follows_ids_in(residual, sample.token[side.known], sample.owner[side.known]):
        return "more of it follows the token's id than of rounding does"
    return None


# One side.


def _conclude_side(
    outcome: Outcome, side: Side, other: Side | None, forward: Forward, given: ExperimentOptions
) -> None:
    """Explain one side's column."""
    if side.residual.scale <= EXACT and side.residual.outlying(EXACT) < 1e-3:
        return
    if not side.explained and other is not None and other.explained:
        side = at_temperature(outcome.sample, side, other.temperature)
    tester = HypothesisTester(
        outcome.sample,
        side,
        forward,
        other=other,
        checkpoints=given.checkpoints,
        coders=given.coders,
        deadline=given.deadline,
    )
    stated = Declared.of(outcome.sample.case).weights_differ and not side.explained
    if stated and given.checkpoints:
        # If fingerprints say that weights differ, test checkpoints before anything else.
        named = _try_checkpoints(outcome, tester, given, stated=True)
        if named is not None:
            outcome.tests += run_without_passes(tester).tests
            outcome.suspicions.append(named)
            return
    quick = run_without_passes(tester)
    tests = list(quick.tests)
    outcome.tests += tests
    outcome.open += quick.open
    found = [test for test in tests if explains(test, tester.sample.noise)]
    if side.explained:
        strong = _strong(found, side)
        if not strong and outcome.sample.rounding.is_heavier_in(side.residual):
            # A heavy tail has a cause of its own: another context, say, moves the first tokens.
            passed = run_with_passes(tester, given.progress)
            outcome.tests += passed.tests
            outcome.open += passed.open
            noise = tester.sample.noise
            strong = _strong([test for test in passed.tests if explains(test, noise)], side)
        if strong:
            outcome.suspicions.append(_name_best(ranked(strong), tester))
        return
    if not found and given.checkpoints and not stated and not tester.out_of_time:
        named = _try_checkpoints(outcome, tester, given)
        if named is not None:
            outcome.suspicions.append(named)
            return
    pattern: Pattern | None = None
    by_chance: tuple[str, Suspicion] | None = None
    if not found:
        of_some = _in_some_rows(outcome, tester)
        if of_some is not None:
            outcome.suspicions.append(of_some)
            return
        pattern = pattern_of(tester)
        by_chance = _by_chance(tester, pattern)
        passed = run_with_passes(tester, given.progress, of_batch=by_chance is not None)
        tests += passed.tests
        outcome.tests += passed.tests
        outcome.open += passed.open
        found = [test for test in tests if explains(test, tester.sample.noise)]
    order = ranked(found or [test for test in tests if test.is_significant])
    if not found and by_chance is not None and not (order and order[0].explained > PARTLY):
        outcome.suspicions.append(by_chance)
        return
    if found or (order and order[0].explained > PARTLY):
        other_weights = order[0].slug == "stale-weights"
        of_rows = cause_by_row(tester, order[0]) if other_weights else None
        outcome.suspicions.append(of_rows or _name_best(order, tester))
        return
    names = {test.experiment for test in outcome.tests if test.side == side.name}
    ran = Counted(ran=len(names), not_run=len(set(outcome.open)))
    outcome.suspicions.append(_name_unexplained(tester, pattern or pattern_of(tester), order, ran))


def _strong(tests: Sequence[HypothesisTest], side: Side) -> list[HypothesisTest]:
    """Return significant tests where the unchanged model already explains nearly everything."""
    return [
        test
        for test in tests
        if test.z > 6.0
        and (test.explained > 0.7 or test.gain > MUCH)
        and _rms(test.predicted - side.expected[test.at]) > MATTERS
    ]


def _in_some_rows(outcome: Outcome, tester: HypothesisTester) -> tuple[str, Suspicion] | None:
    """Name the cause of a subset of rows if only these are off; None if nothing explains them."""
    part = only_rows_off(tester.sample, tester.side)
    if part is None:
        return None
    share = len(part.rows) / len(tester.sample.rows)
    sides = [side_of(part, side.name, side.policy) for side in outcome.sides]
    mine = next(side for side in sides if side.name == tester.side.name)
    if mine.explained:
        _, named = cause_in_sampling(part, sides)
    else:
        # They are compared at the temperature of the other rows.
        mine = at_temperature(part, mine, tester.side.temperature)
        few = replace(tester, sample=part, side=mine)
        found = [test for test in run_without_passes(few).tests if explains(test, part.noise)]
        named = _name_best(ranked(found), few) if found else None
    if named is None:
        return None
    slug, suspicion = named
    return slug, replace(
        suspicion,
        message=f"In {share_of(share)}, which alone are off: {suspicion.message}",
        share_of_rows=share,
    )


def _try_checkpoints(
    outcome: Outcome, tester: HypothesisTester, given: ExperimentOptions, *, stated: bool = False
) -> tuple[str, Suspicion] | None:
    """Score the rows with all checkpoints, and name whose weights made a column; None for none.

    Unless metadata declare other weights, the worst rows are scored first: if no checkpoint
    explains any of them, the others are not scored.
    """
    given.progress(f"weights of {len(given.checkpoints)} checkpoints")
    sample = outcome.sample
    some = None if stated or len(sample.rows) < 2 * len(tester.confirm) else tester.confirm
    weights = weights_by_row(sample, tester.side, tester.forward, given.checkpoints, some)
    if some is not None and weights.by_other_weights.any():
        weights = weights_by_row(sample, tester.side, tester.forward, given.checkpoints)
    outcome.weights[tester.side.name] = weights
    scored = np.flatnonzero(np.isin(sample.owner, weights.rows))
    for name, column in list(zip(weights.names, weights.columns, strict=True))[1:]:
        words = f"weights of {name}"
        test = tester.test("checkpoints", "stale-weights", words, column[scored], scored)
        outcome.tests.append(replace(test, slug=_slug(test, tester)))
    return cause_of_weights(tester, weights) if len(weights.rows) == len(sample.rows) else None


def _name_best(order: Sequence[HypothesisTest], tester: HypothesisTester) -> tuple[str, Suspicion]:
    """Name the cause of the best test, with a confidence by its margin over the others."""
    best = order[0]
    slug = _slug(best, tester)
    rivals = [test for test in order[1:] if _slug(test, tester) != slug]
    close = [test for test in rivals if common_margin(best, test, tester) < 3.0]
    whole = explains(best, tester.sample.noise)
    confidence = 0.97 if whole and not close else 0.7 if whole else 0.75 if not close else 0.5
    message = (
        f"{best.setting[0].upper()}{best.setting[1:]} explains {tester.side.policy}_log_probs: rms "
        f"of what is left falls from {best.baseline.rms:.2g} to {best.residual.rms:.2g} nats, by "
        f"{best.z:.0f} standard errors."
    )
    return slug, make_suspicion(
        confidence,
        message,
        [_evidence(test, tester) for test in [best, *close[:2]]],
        side=_side_at_fault(slug, tester),
        also_possible=list(dict.fromkeys(_slug(test, tester) for test in close)),
    )


def _slug(test: HypothesisTest, tester: HypothesisTester) -> str:
    """Return the cause of a test, which for weights depends on whose they are."""
    if test.slug != "stale-weights":
        return test.slug
    if tester.side.name == "trainer":
        return "reference-as-old" if test.experiment == "checkpoints" else "old-after-update"
    # The weights that sampled give the tokens a higher log-prob than other weights do.
    ahead = test.predicted - tester.side.expected[test.at]
    _, row = np.unique(tester.sample.owner[test.at], return_inverse=True)
    sums = np.bincount(row, np.clip(ahead, -5.0, 5.0))
    z = float(sums.sum() / max(np.sqrt(np.sum(sums**2)), 1e-12))
    return "draft-recorded" if z < -3.0 else "stale-weights"


def _side_at_fault(slug: str, tester: HypothesisTester) -> str:
    """Return who is at fault: who recorded what, where the column alone is wrong."""
    recorders = ("recorded", "stored", "swapped", "shift", "cumulative", "sign", "base", "draft")
    if tester.side.name == "sampler" and any(word in slug for word in recorders):
        return "recorder"
    return tester.side.name


def _evidence(test: HypothesisTest, tester: HypothesisTester) -> dict[str, Any]:
    """Return the numbers of a test."""
    return {
        "name": test.setting,
        "rms of the honest column": test.baseline.rms,
        "rms left": test.residual.rms,
        "z": test.z,
        **test.values,
        "reads": _reads(test, tester.sample.noise),
    }


def _reads(test: HypothesisTest, noise: float) -> str:
    """Say how much of a column a test explains."""
    if explains(test, noise):
        return "explained"
    return f"explains {max(test.explained, 0.0):.0%} of the squares"


def _by_chance(tester: HypothesisTester, pattern: Pattern) -> tuple[str, Suspicion] | None:
    """Name dropout where equal contexts got different values."""
    share = pattern.differs_by_chance
    if share is None or share < 0.25 or pattern.rows_off < 0.7 or tester.side.name != "trainer":
        return None
    return "dropout-in-trainer", make_suspicion(
        0.85,
        f"In {share_of(share, 'contexts that occur more than once')}, "
        f"{tester.side.policy}_log_probs differ from each other: they were made by chance, not by "
        "another model.",
        [{"name": "same context, other value", "value": share, "reads": "made by chance"}],
        side="trainer",
    )


# What nothing explains.


class Counted(Struct, frozen=True, kw_only=True):
    """How many experiments ran on a column, and for how many no time was left."""

    ran: int
    not_run: int

    @property
    def words(self) -> str:
        """Say that none of them explains the column."""
        if not self.not_run:
            return "No experiment explains"
        if not self.ran:
            return f"No time was left for any of {self.not_run} experiments on"
        return f"None of {self.ran} experiments, with {self.not_run} more to run, explains"


def _name_unexplained(
    tester: HypothesisTester, pattern: Pattern, order: Sequence[HypothesisTest], count: Counted
) -> tuple[str, Suspicion]:
    """Name the best guess for a column that no experiment explains."""
    slug, confidence, words = _by_elimination(tester, pattern)
    if count.not_run:
        confidence = min(confidence, UNFINISHED)
    close = [test.slug for test in order[:3]]
    # The trainer's column is not from its own model: importance weights cannot correct that.
    noisy = tester.side.residual.scale < FEW_TIMES * tester.sample.noise
    wrong = slug == "forwards-differ" and not noisy
    by_trainer = slug == "weights-differ" and tester.side.name == "trainer"
    unsettled = by_trainer or count.not_run > 0 or words == UNDECIDED
    message = (
        f"{count.words} {tester.side.policy}_log_probs (rms {tester.side.residual.rms:.2g} nats "
        f"from the checkpoint's); {words}."
    )
    evidence = [
        {
            "name": "rms of recorded - honest log-prob",
            tester.side.policy: tester.side.residual.rms,
            "reads": words,
        },
        *(_evidence(test, tester) for test in order[:2] if test.explained > WORTH_SAYING),
    ]
    return slug, make_suspicion(
        confidence,
        message,
        evidence,
        side=tester.side.name,
        share_of_rows=max(pattern.rows_off, 0.01),
        also_possible=list(dict.fromkeys(one for one in close if one != slug)) or None,
        verdict="broken" if wrong else "inconclusive" if unsettled else None,
    )


def _by_elimination(tester: HypothesisTester, pattern: Pattern) -> tuple[str, float, str]:
    """Return cause, confidence and reason from the pattern of the residuals."""
    side, noise = tester.side, tester.sample.noise
    sampler = side.name == "sampler"
    experts = bool(tester.forward.tensors.experts)
    share = retokenised(tester)
    if share is not None and share > 0.8:
        return "retokenised", 0.85, "rows are off from where their text encodes to other tokens"
    if pattern.turns_later:
        return "context-stripped", 0.6, "only turns after a tool's output are off"
    if pattern.first_tokens > 2.5:
        return "context-differs", 0.7, "the first tokens of responses are off most"
    if sampler and pattern.ends_in_rows > 0.3:
        return "in-flight-update", 0.7, "rows are off up to a token of their own"
    if pattern.by_prompt and pattern.rows_even > EVEN:
        return "context-differs", 0.6, "all rows of a prompt are off, or none"
    if sampler and pattern.by_engine:
        return "replica-unsynced", 0.85, "rows are off by the engine that made them"
    if 0.03 < pattern.rows_off < 0.8 and pattern.rows_even > 0.08 and sampler:
        return "replica-unsynced", 0.55, f"{share_of(pattern.rows_off)} are off"
    of_ids = by_token(
        side.residual, tester.sample.token[side.known], tester.sample.owner[side.known]
    )
    if sampler and of_ids is not None and of_ids > OF_THE_HEAD:
        words = "most of it follows the token's id, as the rows of an output head do"
        return "weights-differ", 0.7, words
    if sampler and experts and side.residual.scale < 8.0 * noise:
        return "moe-routing", 0.6, "few tokens are off by much, as other experts make them"
    heavier = tester.sample.rounding.is_heavier_in(side.residual)
    if sampler and side.residual.scale < 5.0 * noise and not heavier:
        return "quantised-weights", 0.5, "noise is a few times that of bfloat16"
    if not sampler and pattern.begins_in_rows > 0.3:
        return "context-differs", 0.6, "rows are off from a token of their own on"
    if not sampler and abs(pattern.reward) > 3.0:
        return "old-after-update", 0.7, "tokens moved with their advantage"
    if not sampler and not experts and side.residual.scale < FEW_TIMES * noise:
        words = "few contexts are off by much and all others to rounding, as by other weights"
        return "weights-differ", 0.6, words
    if sampler and pattern.recorded_excess < -6.0:
        return (
            "draft-recorded",
            0.5,
            "the tokens are of the trainer's distribution, not of the recorded one",
        )
    if sampler and pattern.recorded_excess > 3.0:
        return "weights-differ", 0.6, "the recorded distribution sampled the tokens"
    if sampler:
        return "weights-differ", 0.5, UNDECIDED
    return "forwards-differ", 0.65, "the trainer's forward pass was another"


def _ruled_out(outcome: Outcome, named: set[str]) -> list[str]:
    """List causes that were tried on a column that they do not explain."""
    tried: dict[str, bool] = {}
    for test in outcome.tests:
        tried[test.slug] = tried.get(test.slug, False) or (test.explained > 0.3 and test.gain > 0.0)
    return [slug for slug, possible in tried.items() if not possible and slug not in named]
