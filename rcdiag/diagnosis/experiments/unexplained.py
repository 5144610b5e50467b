"""Names a best guess for a column that no experiment explains.

The column and the model's are judged as a table of two policies: a context, a turn, an engine or an
update shows there as in any table. Where that names no narrow cause, the side decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rcdiag.diagnosis.causes.cause import Suspicion, fact
from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTest, HypothesisTester
from rcdiag.diagnosis.experiments.outcome import Outcome
from rcdiag.diagnosis.experiments.patterns import (
    recorded_excess,
    retokenised,
    rows_off,
)
from rcdiag.diagnosis.experiments.rounding import LIGHTEST
from rcdiag.diagnosis.experiments.sides import as_table, fit_of_side
from rcdiag.diagnosis.experiments.thresholds import OUTLYING
from rcdiag.diagnosis.experiments.unlogged_sampling import make_suspicion
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.judge import GENERIC, suspicions
from rcdiag.diagnosis.thresholds import BY_ITS_ERROR, MANY_TIMES, MOST, MUCH_LARGER, PART
from rcdiag.results.diagnosis import NOTHING_WRONG

UNDECIDED = "The tokens do not show whether the recorded distribution sampled them."


class Guess(Struct, frozen=True):
    """A cause by elimination, and how strong its evidence is."""

    slug: str
    message: str
    explained: float = 0.0  # share of rows or squares, or the table's confidence
    z: float = 0.0  # standard errors, or the size in units of rounding
    evidence: Sequence[dict[str, Any]] = ()
    verdict: str | None = None  # None: the cause's own


def name_chance(tester: HypothesisTester) -> Suspicion | None:
    """Name dropout where the same token after the same context got different values."""
    sample, side = tester.sample, tester.side
    # Dropout affects every row, but may not be visible in short ones.
    if side.name != "trainer" or rows_off(sample, side).mean() < MOST:
        return None
    repeated = Features(as_table(sample, side)).repeated_tokens
    if repeated is None or not repeated.trainer_is_random:
        return None
    _, apart = repeated.apart
    message = (
        "Where two rows have the same token after the same context, its "
        f"{side.policy}_log_probs differ by {apart:.2g} nats (median of "
        f"{len(repeated.trainer):,} pairs): they are random, which another model would not make "
        "them."
    )
    return make_suspicion(
        "dropout-in-trainer",
        fit_of_side(sample, side, "pattern", explained=1.0),
        message,
        [fact("same context, other value", "random", nats=apart)],
        side="trainer",
    )


def name_unexplained(
    outcome: Outcome,
    tester: HypothesisTester,
    order: Sequence[HypothesisTest],
    close: Sequence[Mapping[str, Any]],
) -> Suspicion:
    """Name the best guess for a column; `close` is the evidence of the best tests, in `order`."""
    side = tester.side
    guess = _by_elimination(tester)
    not_run = len(set(outcome.open))
    message = (
        f"{_unsuccessful(outcome.experiments_of(side), not_run)} {side.policy}_log_probs (rms "
        f"{side.residual.rms:.2g} nats from the checkpoint's). {guess.message}"
    )
    left = {side.policy: side.residual.rms}
    evidence = fact("rms of recorded - model's log-prob", "more than rounding", **left)
    worth = [
        dict(numbers)
        for test, numbers in zip(order[:2], close, strict=False)
        if test.explained > PART
    ]
    also = [test.slug for test in order[:3] if test.slug != guess.slug]
    fit = fit_of_side(
        tester.sample,
        side,
        "pattern",
        explained=guess.explained,
        z=guess.z,
        lead=-order[0].z if order else 0.0,
        not_run=outcome.not_run(side),
    )
    return make_suspicion(
        guess.slug,
        fit,
        message,
        [evidence, *guess.evidence, *worth],
        side=side.name,
        share_of_rows=max(float(rows_off(tester.sample, side).mean()), 0.01),
        also_possible=list(dict.fromkeys(also)) or None,
        verdict=_verdict(guess, tester, not_run),
    )


def _verdict(guess: Guess, tester: HypothesisTester, not_run: int) -> str | None:
    """Return a more cautious verdict than that of the guessed cause; None: the cause's own."""
    trainer = tester.side.name == "trainer"
    noisy = tester.side.residual.scale < MUCH_LARGER * tester.sample.noise
    if guess.slug == GENERIC and not noisy:
        # The trainer's column is not from its own model: importance weights cannot correct that.
        return "broken"
    by_trainer = guess.slug == "weights-differ" and trainer
    return "inconclusive" if by_trainer or not_run or guess.message == UNDECIDED else guess.verdict


def _unsuccessful(ran: int, not_run: int) -> str:
    """Say that no experiment explains a column."""
    if not not_run:
        return "No experiment explains"
    if not ran:
        return f"No time was left for any of {not_run} experiments on"
    return f"None of {ran} experiments, with {not_run} more to run, explains"


def _by_elimination(tester: HypothesisTester) -> Guess:
    """Return the cause that the column suggests beside the model's, the narrowest first."""
    share = retokenised(tester)
    if share is not None and share > MOST:
        message = "Rows deviate from where their text encodes to other tokens."
        return Guess("retokenised", message, explained=share)
    by_side = _of_sampler if tester.side.name == "sampler" else _of_trainer
    return _as_a_table(tester) or by_side(tester)


def _as_a_table(tester: HypothesisTester) -> Guess | None:
    """Return the cause of the recorded column beside the model's, judged as a table of the two.

    None where the table shows only that the two differ.
    """
    for found in suspicions(Features(as_table(tester.sample, tester.side))):
        # Experiments have tried the other causes of the stage `distribution`.
        stage, family = found.cause.stage, found.cause.words.family
        of_context = stage == "distribution" and family == "context"
        if found.slug in (GENERIC, *NOTHING_WRONG) or not (of_context or stage == "difference"):
            continue
        return Guess(
            found.slug,
            found.message,
            found.confidence,
            evidence=[dict(entry) for entry in found.evidence],
            verdict=found.verdict,
        )
    return None


def _of_sampler(tester: HypothesisTester) -> Guess:
    """Return the likeliest cause of a sampler's column that is off in all rows alike."""
    side, sample = tester.side, tester.sample
    times = side.residual.scale / sample.noise
    if tester.forward.tensors.experts and times < OUTLYING:
        return Guess("moe-routing", "A few tokens deviate a lot, as with other experts.")
    if times < MANY_TIMES and not sample.rounding.is_heavier_in(side.residual):
        return Guess("quantised-weights", "The noise is a few times that of bfloat16.")
    excess = recorded_excess(tester)
    sampled = "The recorded distribution sampled the tokens."
    return Guess("weights-differ", sampled if excess > BY_ITS_ERROR else UNDECIDED, z=excess)


def _of_trainer(tester: HypothesisTester) -> Guess:
    """Return the likeliest cause of a trainer's column that is off in all rows alike."""
    noisy = tester.side.residual.scale < MUCH_LARGER * tester.sample.noise
    if noisy and not tester.forward.tensors.experts:
        message = "A few contexts deviate a lot and all others by rounding, as with other weights."
        times = tester.side.residual.tail / max(tester.sample.rounding.tail, LIGHTEST)
        return Guess("weights-differ", message, 1.0 - 1.0 / max(times, 1.0) ** 2, times)
    return Guess(GENERIC, "The trainer's forward pass differs from the checkpoint's.")
