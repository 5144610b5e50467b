"""Causes that mean surprisals of the sampled tokens, or the entropy beside them, show."""

from __future__ import annotations

import math

import numpy as np

from rcdiag.diagnosis.causes.cause import CLEAR, EXACT, WEAK, Suspicion
from rcdiag.diagnosis.logged.causes.found import (
    ENGINE,
    FEWEST_BEYOND,
    HEAVY,
    SAME_SURPRISAL,
)
from rcdiag.diagnosis.logged.run import LoggedRun
from rcdiag.diagnosis.logged.window import StepWindow
from rcdiag.diagnosis.thresholds import EQUAL, FEWEST_OF_PATTERN, HALF

# Bases of logarithms as factors of the surprisal, and the largest tolerance on the factor's log.
BASES, EXACTLY = {"2": math.log(2.0), "10": math.log(10.0)}, 0.02
# Least |log| of the change of trainer's entropy / sampled surprisal: a factor of 1.25.
OTHER_ENTROPY = math.log(1.25)


def impossible_surprisals(window: StepWindow) -> Suspicion | None:
    """Look for mean surprisals that log-probs cannot have: negative, or exactly 0."""
    for name, side in (("sampler_log_ppl", "recorder"), ("trainer_log_ppl", "trainer")):
        value = window.number(name)
        if value is None or value > EQUAL:
            continue
        other = window.number("trainer_log_ppl" if side == "recorder" else "sampler_log_ppl")
        on_the_mean = other is not None and abs(value + other) < SAME_SURPRISAL * other
        least = 0.0 if other is None else math.exp(-other)  # of a mean probability, by Jensen
        if abs(value) <= EQUAL:
            slug, what = "zero-placeholder", "exactly 0: zeros stand where log-probs belong"
        elif _have_factor(window, 1.0, exact=False) or (value < -1.0 and not on_the_mean):
            slug, what = "sign-flipped", "below 0: log-probs have the other sign"
        elif on_the_mean or -value < least:
            # Entropies have the mean of surprisals, but not their value in each step.
            slug, what = "entropy-recorded", "below 0, and no mean probability: minus an entropy"
        else:
            slug, what = "probabilities-stored", "between -1 and 0: minus a mean probability"
        return Suspicion(
            slug=slug,
            confidence=EXACT if slug in ("zero-placeholder", "sign-flipped") else CLEAR,
            side=side,
            message=f"`{window.key(name)}` is {value:.3g}, {what}.",
            evidence=[window.fact(name, what.partition(":")[0])],
            also_possible=["sign-flipped", "probabilities-stored", "entropy-recorded"],
        )
    return None


def worse_than_uniform_in(run: LoggedRun) -> tuple[StepWindow, Suspicion] | None:
    """Look for steps in which the trainer scores its tokens worse than a uniform guess.

    A uniform guess over the vocabulary has ln(vocabulary) nats at each token. A mismatch that grows
    passes it in its last steps alone, so the whole run is searched.
    """
    one = run.series.get("trainer_log_ppl")
    bound = math.log(run.known.vocabulary)
    if one is None:
        return None
    steps = one.steps[np.isfinite(one.values) & (one.values > bound)]
    if len(steps) < min(FEWEST_BEYOND, len(one.steps)):
        return None
    window = StepWindow(run, steps)
    evidence = [window.fact("trainer_log_ppl", f"above ln({run.known.vocabulary}) = {bound:.1f}")]
    if (sampler := window.number("sampler_log_ppl")) is not None:
        evidence.append(
            window.fact("sampler_log_ppl", "normal" if sampler < HALF * bound else "high too")
        )
    return window, Suspicion(
        slug="forwards-differ",
        confidence=CLEAR,
        verdict="broken",
        side="trainer",
        message=f"`{one.key}` is {window.number('trainer_log_ppl'):.3g} nats in "
        f"{len(steps)} of {len(run.steps)} steps, from step {steps[0]} on, above the {bound:.1f} "
        "of a uniform guess: the trainer's forward pass is broken, or it reads each token's "
        "log-prob from the logits of another one.",
        evidence=evidence,
        # Not a shift of the column or an exchange of its rows, which leave the mean as it was.
        also_possible=["logits-not-shifted", "attention-to-padding", "context-differs"],
    )


def other_base(window: StepWindow) -> Suspicion | None:
    """Look for surprisals of which one is the other times ln 2 or ln 10, step by step.

    Few steps may have that factor by another fault; over more of them it varies.
    """
    if len(window.steps) < FEWEST_OF_PATTERN:
        return None
    for base, size in BASES.items():
        if _have_factor(window, size, exact=True):
            return Suspicion(
                slug="log-base",
                confidence=CLEAR,
                verdict="broken",
                message=f"`{window.key('trainer_log_ppl')}` and `{window.key('sampler_log_ppl')}` "
                f"have the ratio of natural logarithms to those of base {base} in every step.",
                evidence=[
                    window.fact(
                        "trainer_log_ppl", f"ln {base} or 1 / ln {base} times the sampler's"
                    ),
                    window.fact("sampler_log_ppl", "of the sampler"),
                ],
                also_possible=[],
            )
    return None


def _have_factor(window: StepWindow, size: float, *, exact: bool) -> bool:
    """Tell whether one surprisal is the other times a factor, or divided by it, in each step.

    Signs do not count. Where it is `exact`, no more than rounding may be between them, which moves
    a mean surprisal by the k3 of ENGINE at most.
    """
    trainer, sampler = window.values("trainer_log_ppl"), window.values("sampler_log_ppl")
    if not len(trainer) or len(trainer) != len(sampler) or not (trainer * sampler != 0.0).all():
        return False
    factor = np.abs(np.log(np.abs(trainer / sampler)))
    rounding = ENGINE**2 / 2.0 / np.minimum(np.abs(trainer), np.abs(sampler))
    most = np.minimum(rounding, EXACTLY) if exact else EXACTLY
    return bool((np.abs(factor - abs(math.log(size))) < most).all())


def other_temperature(window: StepWindow) -> Suspicion | None:
    """Look for a change of the trainer's entropy relative to the surprisal of sampled tokens.

    Without a fault both estimate the same quantity, one as a mean over tokens and the other over
    responses: their ratio need not be 1, but it stays constant.
    """
    k1, rms, before = window.k1, window.rms, window.before
    if k1 is None or rms is None or rms < ENGINE or not 0.0 < k1.value < HEAVY:
        return None
    if before is None or before.rms is None or before.rms >= ENGINE:
        return None  # The mismatch was there before the factor changed.
    now, then = _entropy_over_surprisal(window), _entropy_over_surprisal(before)
    if now is None or then is None or abs(math.log(now / then)) < OTHER_ENTROPY:
        return None
    flatter = now > then
    return Suspicion(
        slug="trainer-without-temperature" if flatter else "sampler-ignores-temperature",
        confidence=WEAK,
        verdict="broken",
        message="The trainer's entropy divided by the sampler's mean surprisal "
        f"(`{window.key('entropy')}` / `{window.key('sampler_log_ppl')}`) went from {then:.2f} to "
        f"{now:.2f}: the two sides use different temperatures.",
        evidence=[
            window.fact("entropy", "of the trainer's distribution"),
            window.fact("sampler_log_ppl", "of the distribution that sampled"),
        ],
        also_possible=["sampler-ignores-temperature", "forwards-differ"],
    )


def _entropy_over_surprisal(window: StepWindow) -> float | None:
    entropy, surprisal = window.number("entropy"), window.number("sampler_log_ppl")
    if entropy is None or surprisal is None or min(entropy, surprisal) <= 0.0:
        return None
    return entropy / surprisal
