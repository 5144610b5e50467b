"""Names a best guess for a column that no experiment explains, by the pattern of its residuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rcdiag.diagnosis.causes.cause import fact
from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTest, HypothesisTester
from rcdiag.diagnosis.experiments.outcome import Outcome
from rcdiag.diagnosis.experiments.patterns import ROW_OFF, Pattern, retokenised
from rcdiag.diagnosis.experiments.rounding import LIGHTEST, by_token
from rcdiag.diagnosis.experiments.sides import fit_of_side
from rcdiag.diagnosis.experiments.thresholds import CERTAIN, MANY, SOME
from rcdiag.diagnosis.experiments.unlogged_sampling import Conclusion, make_suspicion
from rcdiag.diagnosis.thresholds import BY_ITS_ERROR, MOST, MUCH_LARGER
from rcdiag.formats import share_of

# Thresholds of the pattern of a residual; shares unless a unit is given. "Off" is defined in
# `patterns`.
BY_CHANCE = 0.25  # share of repeated contexts with several values: dropout gives 1, rounding 0
FIRST_TOKENS = 2.5  # rms of the first tokens over that of later ones: effects of a prompt fade
EVENLY = 0.1  # share of a row's tokens that are off: above it with another context, not by rounding
WORTH_SAYING = 0.1  # share of the squares that a test must explain to be listed as evidence
EVENLY_IN_REPLICA = 0.08  # share of tokens that are off in rows of a replica with other weights
OF_THE_HEAD = 0.6  # share of the squares that token ids explain if the output head differs
# Largest residual scale, in units of the engine's noise, that other experts, and quantised weights,
# may leave.
EXPERTS_NOISE, QUANTISED_NOISE = 8.0, 5.0
UNDECIDED = "the tokens do not show whether the recorded distribution sampled them"


class Guess(Struct, frozen=True):
    """A cause by elimination, and how strong the pattern of the residuals is as evidence."""

    slug: str
    words: str
    explained: float = 0.0  # share of rows, tokens or squares that follow the pattern
    z: float = 0.0  # of the pattern in standard errors, or its size in units of rounding


def name_chance(tester: HypothesisTester, pattern: Pattern) -> Conclusion | None:
    """Name dropout where equal contexts got different values."""
    share, side = pattern.differs_by_chance, tester.side
    # Dropout affects every row, but may not be visible in short ones.
    if share is None or share < BY_CHANCE or pattern.rows_off < MANY:
        return None
    if side.name != "trainer":
        return None
    message = (
        f"In {share_of(share, 'contexts that occur more than once')}, {side.policy}_log_probs "
        "differ from each other: they are random, which another model would not make them."
    )
    return "dropout-in-trainer", make_suspicion(
        fit_of_side(tester.sample, side, "pattern", explained=share),
        message,
        [fact("same context, other value", "random", value=share)],
        side="trainer",
    )


def name_unexplained(
    outcome: Outcome,
    tester: HypothesisTester,
    pattern: Pattern,
    order: Sequence[HypothesisTest],
    close: Sequence[Mapping[str, Any]],
) -> Conclusion:
    """Name the best guess for a column; `close` is the evidence of the best tests, in `order`."""
    side = tester.side
    guess = _by_elimination(tester, pattern)
    not_run = len(set(outcome.open))
    message = (
        f"{_unsuccessful(outcome.experiments_of(side), not_run)} {side.policy}_log_probs (rms "
        f"{side.residual.rms:.2g} nats from the checkpoint's); {guess.words}."
    )
    left = {side.policy: side.residual.rms}
    evidence = fact("rms of recorded - model's log-prob", guess.words, **left)
    worth = [
        dict(numbers)
        for test, numbers in zip(order[:2], close, strict=False)
        if test.explained > WORTH_SAYING
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
    return guess.slug, make_suspicion(
        fit,
        message,
        [evidence, *worth],
        side=side.name,
        share_of_rows=max(pattern.rows_off, 0.01),
        also_possible=list(dict.fromkeys(also)) or None,
        verdict=_verdict(guess, tester, not_run),
    )


def _verdict(guess: Guess, tester: HypothesisTester, not_run: int) -> str | None:
    """Return a more cautious verdict than that of the guessed cause; None: the cause's own."""
    trainer = tester.side.name == "trainer"
    noisy = tester.side.residual.scale < MUCH_LARGER * tester.sample.noise
    if guess.slug == "forwards-differ" and not noisy:
        # The trainer's column is not from its own model: importance weights cannot correct that.
        return "broken"
    by_trainer = guess.slug == "weights-differ" and trainer
    return "inconclusive" if by_trainer or not_run or guess.words == UNDECIDED else None


def _unsuccessful(ran: int, not_run: int) -> str:
    """Say that no experiment explains a column."""
    if not not_run:
        return "No experiment explains"
    if not ran:
        return f"No time was left for any of {not_run} experiments on"
    return f"None of {ran} experiments, with {not_run} more to run, explains"


def _by_elimination(tester: HypothesisTester, pattern: Pattern) -> Guess:
    """Return the cause that the pattern of the residuals suggests, the clearest pattern first."""
    share = retokenised(tester)
    if share is not None and share > MOST:
        words = "rows deviate from where their text encodes to other tokens"
        return Guess("retokenised", words, explained=share)
    guess = _by_rows(tester, pattern)
    if guess is None:
        by_side = _of_sampler if tester.side.name == "sampler" else _of_trainer
        guess = by_side(tester, pattern)
    return guess


def _by_rows(tester: HypothesisTester, pattern: Pattern) -> Guess | None:
    """Return the cause that is suggested by which rows are off, and where in them."""
    sampler, off = tester.side.name == "sampler", pattern.rows_off
    if pattern.turns_later:
        return Guess("context-stripped", "only turns after a tool's output deviate", 1.0)
    if pattern.first_tokens > FIRST_TOKENS:
        part = 1.0 - 1.0 / pattern.first_tokens
        return Guess("context-differs", "the first tokens of responses deviate most", part)
    if sampler and pattern.ends_in_rows > SOME:
        words = "each row deviates up to some token and agrees from there on"
        return Guess("in-flight-update", words, pattern.ends_in_rows)
    if pattern.by_prompt and pattern.rows_even > EVENLY:
        words = "of each prompt either all rows deviate or none"
        return Guess("context-differs", words, pattern.rows_even)
    if sampler and pattern.by_engine:
        return Guess("replica-unsynced", "the rows of some engines deviate", 1.0)
    # More than a few rows but not most of them: one replica may have other weights.
    if sampler and ROW_OFF < off < MOST and pattern.rows_even > EVENLY_IN_REPLICA:
        return Guess("replica-unsynced", f"{share_of(off)} deviate", pattern.rows_even)
    return None


def _of_sampler(tester: HypothesisTester, pattern: Pattern) -> Guess:
    """Return the likeliest cause of a sampler's column that is off in all rows alike."""
    side, sample = tester.side, tester.sample
    times = side.residual.scale / sample.noise
    of_ids = by_token(side.residual, sample.token[side.known], sample.owner[side.known])
    if of_ids is not None and of_ids > OF_THE_HEAD:
        words = "most of the residual depends on the token's id, as with another output head"
        return Guess("weights-differ", words, of_ids)
    if tester.forward.tensors.experts and times < EXPERTS_NOISE:
        return Guess("moe-routing", "a few tokens deviate a lot, as with other experts")
    if times < QUANTISED_NOISE and not sample.rounding.is_heavier_in(side.residual):
        return Guess("quantised-weights", "the noise is a few times that of bfloat16")
    excess = pattern.recorded_excess
    if excess < -CERTAIN:
        words = "the tokens are of the trainer's distribution, not of the recorded one"
        return Guess("draft-recorded", words, z=-excess)
    sampled = "the recorded distribution sampled the tokens"
    return Guess("weights-differ", sampled if excess > BY_ITS_ERROR else UNDECIDED, z=excess)


def _of_trainer(tester: HypothesisTester, pattern: Pattern) -> Guess:
    """Return the likeliest cause of a trainer's column that is off in all rows alike."""
    if pattern.begins_in_rows > SOME:
        words = "each row agrees up to some token and deviates from there on"
        return Guess("context-differs", words, pattern.begins_in_rows)
    if abs(pattern.reward) > BY_ITS_ERROR:
        words = "log-probs moved in the direction of the advantage"
        return Guess("old-after-update", words, z=abs(pattern.reward))
    noisy = tester.side.residual.scale < MUCH_LARGER * tester.sample.noise
    if noisy and not tester.forward.tensors.experts:
        words = "a few contexts deviate a lot and all others by rounding, as with other weights"
        times = tester.side.residual.tail / max(tester.sample.rounding.tail, LIGHTEST)
        return Guess("weights-differ", words, 1.0 - 1.0 / max(times, 1.0) ** 2, times)
    return Guess("forwards-differ", "the trainer's forward pass differs from the checkpoint's")
