"""Causes by the mean ratio, which is 1 if the recorded distribution sampled."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.causes.cause import LIKELY, WEAK, Suspicion
from rcdiag.diagnosis.logged.causes.found import (
    ENGINE,
    FEWEST_BEYOND,
    HEAVY,
    SAME_SURPRISAL,
    k1_evidence,
    ratio_evidence,
    size_evidence,
    undecided,
)
from rcdiag.diagnosis.logged.window import Estimate, StepWindow, rms_of
from rcdiag.diagnosis.thresholds import HALF, NEARLY_ALL, PART, SURELY

OF_K3 = 0.25  # E[ratio] differs from 1 if it does significantly, and by this share of k3
# Zeros in place of log-probs of x nats lower E[ratio] by k3 / (x - 1), and x is hardly above 20.
OF_ZEROS = 1.0 / 19.0
# Tokens: no step has as many. One in R sampled tokens has a ratio of R at most, by Markov's
# inequality, since the mean is 1.
TOKENS_OF_A_STEP = 1e8
# Probability mass that top-p, top-k and min-p leave out is within these bounds.
LEAST_LEFT_OUT, MOST_LEFT_OUT = 0.005, 0.6


def not_the_sampler(window: StepWindow) -> Suspicion | None:
    """Look for tokens that the trainer finds likelier than the policy that is said to sample."""
    k1, excess, rms = window.k1, window.excess, window.rms
    if k1 is None or rms is None or rms < ENGINE or k1.z > -SURELY:
        return None
    # If the trainer's distribution sampled, -k1 is a KL, about as large as a small k3. A few large
    # ratios alone raise k3, and E[ratio] with it, but not -k1.
    if -k1.value < min(OF_K3 * rms**2 / 2.0, SAME_SURPRISAL * rms):
        return None
    if excess is not None and not surely_above_1(window):
        return None
    evidence = [k1_evidence(window, "below 0: the trainer finds the tokens likelier")]
    if excess is not None:
        evidence.append(ratio_evidence(window))
    finds = (
        "The trainer finds the sampled tokens likelier than the recorded policy does, by "
        f"{-k1.value:.2g} nats a token (`{k1.key}`)"
    )
    # A sharper temperature raises no probability by a large factor, so that k3 stays below -k1; a
    # flatter one lowers none. To another model single tokens are far more and far less likely.
    least = window.number("least_ratio")
    if rms**2 / 2.0 > -k1.value and (least is None or least < HALF):
        return Suspicion(
            slug="forwards-differ",
            confidence=WEAK,
            verdict="broken",
            message=f"{finds}, and single tokens by far more: the recorded distribution is not the "
            "one that sampled, nor a copy of it at another temperature, as happens when a draft "
            "model's log-probs are recorded.",
            evidence=[
                *evidence,
                size_evidence(window, "more than a lower temperature makes"),
            ],
            side="recorder",
            also_possible=["draft-recorded", "weights-differ", "temperature-raw-recorded"],
        )
    return Suspicion(
        slug="temperature-raw-recorded",
        confidence=LIKELY,
        verdict="broken",
        message=f"{finds}: the recorded distribution is not the one that sampled, as happens when "
        "log-probs are recorded before the temperature.",
        evidence=evidence,
        side="recorder",
        also_possible=["draft-recorded", "entropy-recorded", "log-probs-divided", "penalty"],
    )


def weights_above_1(window: StepWindow) -> Suspicion | None:
    """Look for bounded weights with a mean above 1, impossible if the recorded policy sampled.

    Log-probs that are rounded after sampling raise it by their k3, which is below that of ENGINE.
    """
    least = window.least_excess
    if least is None or least.z < SURELY or least.value < ENGINE**2 / 2.0:
        return None
    key, smallest = window.key("weight_mean"), window.number("least_weight")
    return Suspicion(
        slug="forwards-differ",
        confidence=WEAK,
        verdict="broken",
        side="recorder",
        message="The recorded distribution did not sample these tokens: if it had, ratios would "
        "have the mean 1 and truncated weights at most that, but "
        f"`{key}` is {window.number('weight_mean'):.3g}. A lower bound adds no more than the "
        f"smallest weight (`{window.key('least_weight')}` {smallest:.2g}). Log-probs from before "
        "the temperature, of a draft model or of other tokens do this; weights do not correct it.",
        evidence=[
            window.fact("weight_mean", "above 1: the recorded distribution did not sample"),
            window.fact("least_weight", "no lower bound explains it"),
        ],
        also_possible=["temperature-raw-recorded", "draft-recorded", "shift-by-one"],
    )


def ratio_of_no_sample(window: StepWindow) -> Suspicion | None:
    """Look for token ratios too large for the tokens of a step, had the recorded policy sampled.

    A single step may have one by chance.
    """
    one = window.series("ratio_max")
    values = window.values("ratio_max")
    count = int((values > TOKENS_OF_A_STEP).sum())
    if one is None or count < FEWEST_BEYOND:
        return None
    return undecided(
        f"`{one.key}` is up to {np.nanmax(values):.2g}, and above {TOKENS_OF_A_STEP:.0e} in "
        f"{count} steps. If the recorded distribution had sampled, at most one token in that many "
        "would have such a ratio: a few recorded log-probs are not of the distribution that "
        "sampled.",
        [window.fact("ratio_max", "more than a step has tokens", float(np.nanmax(values)))],
    )


def kept_set(window: StepWindow) -> Suspicion | None:
    """Look for a mean ratio below 1: the trainer has probability mass outside the kept sets."""
    excess, k1, rms = window.excess, window.k1, window.rms
    if excess is None or k1 is None or rms is None or k1.value > HEAVY:
        return None
    k3 = rms**2 / 2.0
    left_out = -excess.value  # the probability that the trainer gives to tokens left out
    if excess.z > -SURELY or not max(OF_K3 * k3, LEAST_LEFT_OUT) < left_out < MOST_LEFT_OUT:
        return None
    least = float(rms_of("ratio_mean", np.array(1.0 - left_out))) ** 2 / 2.0
    if window.number("k3") is not None and k3 < HALF * least:
        return undecided(
            f"`{excess.key}` is {1.0 - left_out:.3g}, so that k3 is {least:.2g} or more "
            f"by Jensen's inequality (k3 >= m - 1 - ln m for a mean ratio m), and "
            f"`{window.key('k3')}` is {k3:.2g}: the keys are of different tokens, or one of them "
            "is no mean over tokens.",
            [ratio_evidence(window), window.fact("k3", "impossible beside this mean ratio")],
        )
    # If two probabilities of a token differ by NEARLY_ALL, only one side is certain of it.
    # Renormalised over a set with the probability q, a probability grows by 1 - q at most. Where
    # all tokens have the same q, k3 = q - 1 - ln q is less than 1 - q.
    largest, squares = window.number("prob_diff_max"), window.estimate("chi2_token")
    none_above_1 = squares is not None and squares.value <= excess.value  # ratio^2 <= ratio
    if (largest is not None and largest > NEARLY_ALL) or (left_out < k3 and none_above_1):
        return _certain_tokens(window, excess)
    if left_out < k3:
        return None
    if left_out > PART:  # No usual setting does: a top_p of .8 leaves out .2 at most.
        return _divided_or_kept_set(window)
    return Suspicion(
        slug="truncated-law",
        confidence=LIKELY,
        verdict="broken",
        message=f"`{excess.key}` is {1.0 + excess.value:.3f}, below 1: the trainer gives "
        "part of its probability to tokens that the sampler's top-p, top-k or min-p left out, and "
        "the recorded log-probs are renormalised over the rest.",
        evidence=[
            ratio_evidence(window, "the probability of the kept tokens"),
            k1_evidence(window, "above k3"),
        ],
        side="recorder",
        also_possible=["top-p-renormalised", "top-k-renormalised", "min-p-renormalised", "penalty"],
    )


def _divided_or_kept_set(window: StepWindow) -> Suspicion:
    """Return log-probs divided by T and a narrow kept set as one answer: their means are alike.

    Renormalised over a set with the probability q, log-probs differ by ln q; divided by T instead
    of the logits, by the log of sum p^(1/T). Both are one number for each context, below 0.
    """
    ratio = ratio_evidence(window, "less than a usual top-p, top-k or min-p leaves")
    return Suspicion(
        slug="forwards-differ",
        confidence=WEAK,
        verdict="broken",
        message=f"`{ratio['name']}` is {ratio['value']:.3f}, far below 1: log-probs of one "
        "side were divided by the temperature instead of the logits, or a narrow top-p, top-k or "
        "min-p left so much of the trainer's probability out. Means over tokens cannot tell which.",
        evidence=[ratio, k1_evidence(window, "above k3")],
        also_possible=["log-probs-divided", "truncated-law", "top-p-renormalised"],
    )


def _certain_tokens(window: StepWindow, excess: Estimate) -> Suspicion:
    """Tokens whose recorded probability is about 1 where the trainer's is not."""
    shown = {
        "prob_diff_max": "the largest distance of both probabilities of a token",
        "chi2_token": "E[ratio^2] is below 1 as well",
    }
    keys = ", ".join(f"`{window.key(name)}`" for name in shown if window.series(name))
    return Suspicion(
        slug="zero-placeholder",
        confidence=WEAK,
        verdict="broken",
        message=f"`{excess.key}` is below 1, and ratios of single tokens are further "
        f"below than a kept set explains ({keys}): zeros are recorded where no log-prob is.",
        evidence=[
            *(window.fact(name, reads) for name, reads in shown.items() if window.series(name)),
            k1_evidence(window, "above k3"),
        ],
        also_possible=["top-one-recorded", "truncated-law"],
    )


def surely_above_1(window: StepWindow) -> bool:
    """Tell whether E[ratio] is above 1 surely, and by a share of k3 that counts."""
    excess, rms = window.excess, window.rms
    if excess is None or rms is None:
        return False
    return excess.z > SURELY and excess.value > OF_K3 * rms**2 / 2.0


def is_near_1(window: StepWindow) -> bool:
    """Tell whether E[ratio] is 1 within its error, or away from it by a small share of k3."""
    excess = window.excess
    if excess is None:
        return False
    by_error = SURELY * excess.error if excess.error > 0 else 0.0
    return abs(excess.value) < max(OF_K3 * (window.rms or 1.0) ** 2 / 2.0, by_error)


def below_as_by_zeros(window: StepWindow) -> bool:
    """Tell whether E[ratio] is below 1 surely, and by the share of k3 that zeros leave at least."""
    excess, rms = window.excess, window.rms
    if excess is None or rms is None:
        return False
    return excess.z < -SURELY and -excess.value > OF_ZEROS * rms**2 / 2.0
