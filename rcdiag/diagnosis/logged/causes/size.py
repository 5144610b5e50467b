"""Causes by the size of the mismatch: none, that of rounding, beyond it, or in a few steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rcdiag.diagnosis.case import Array, Counts
from rcdiag.diagnosis.causes.cause import CLEAR, GUESS, WEAK, Suspicion, cause_of
from rcdiag.diagnosis.causes.lag import LARGEST_DRIFT
from rcdiag.diagnosis.logged.causes.correction import shrinks_update
from rcdiag.diagnosis.logged.causes.found import (
    ENGINE,
    FAR,
    HEAVY,
    MICRO_BATCHES,
    NO_STEPS,
    k1_evidence,
    ratio_evidence,
    undecided,
)
from rcdiag.diagnosis.logged.causes.mean_ratio import below_as_by_zeros, is_near_1
from rcdiag.diagnosis.logged.run import FLOOR
from rcdiag.diagnosis.logged.window import SIZES, StepWindow, rms_of
from rcdiag.diagnosis.thresholds import FEW, HALF, LARGE, RARE
from rcdiag.formats import number, percentage, rough

# Nats: float32 has no probability below e^-87.3 at full precision.
LEAST_LOG_PROB = -float(np.log(np.finfo(np.float32).tiny))
# How unlike both probabilities of a token are (1 - correlation, mean difference): the most that
# rounding makes, and what is beyond it by far.
OF_ENGINE = {"pearson": (0.005, 0.1), "prob_diff": (0.01, 0.03)}
OF_ENGINE_BY_FAR = {name: by_far for name, (_, by_far) in OF_ENGINE.items()}
# The same two numbers where log-ratios have LARGEST_DRIFT nats rms.
OF_DRIFT = {"pearson": 0.1, "prob_diff": 0.1}
# Nats: half a step of bfloat16 at logits of 16 to 32, the most by which one rounding moves a logit.
# A bfloat16 sampler and a bfloat16 trainer with equal weights were measured at .05
# (github.com/huggingface/trl/issues/6789).
HALF_A_STEP = 0.0625
# Causes without an upper size, which stale weights have.
OF_ANY_SIZE = (
    "weights-differ",
    "weights-never-synced",
    "context-differs",
    "shift-by-one",
    "rows-swapped",
    "reference-as-old",
)
READ_ONE = (
    "Read a generated response: garbled text means broken weights or kernels of the sampler; sound "
    "text, other contexts or columns, or a broken forward pass of the trainer."
)


def identical(window: StepWindow) -> Suspicion | None:
    """Look for a mismatch of exactly 0, which two engines never have."""
    names = [name for name in ("k3", "abs_diff", "prob_diff") if len(window.values(name))]
    if not names or any(window.values(name).any() for name in names):
        return None
    if any(window.run.series[name].rounding > FLOOR for name in names):
        return None  # such as 0.0000, which is a small mismatch too
    return Suspicion(
        slug="columns-identical",
        confidence=CLEAR,
        verdict="inconclusive",
        message=f"`{window.key(names[0])}` is exactly 0 in every step: one column is a copy of the "
        "other, or both engines are the same to the last bit.",
        evidence=[window.fact(name, "exactly 0", 0.0) for name in names],
        also_possible=[],
    )


def other_forward(window: StepWindow) -> Suspicion | None:
    """Report a mismatch beyond rounding whose cause means over tokens do not determine."""
    found = _what_differs(window)
    if found is None:
        return None
    names, differ = found
    excess, k1 = window.excess, window.k1
    known = excess is not None and (k1 is None or abs(k1.value) <= HEAVY)
    near = known and is_near_1(window)
    below = near and below_as_by_zeros(window)
    sampled = near and not below
    perhaps = _within_bfloat16(window)
    reads = "more than rounding in most runs" if perhaps else "beyond the rounding of two engines"
    evidence = [window.fact(name, reads) for name in names] or [k1_evidence(window, reads)]
    if excess is not None:
        far = "" if known else "a few tokens dominate it"
        near_it = "as zeros in place of log-probs make it" if below else "near it for this mismatch"
        evidence.append(ratio_evidence(window, near_it if near else far))
    if below:
        return undecided(
            f"{differ}, beyond rounding, and the mean ratio is below 1 by more than chance: zeros "
            "may stand in place of a few log-probs, which weights do not correct, or top-p, top-k "
            "or min-p left some probability out.",
            evidence,
            ["zero-placeholder", "truncated-law", "weights-differ", "context-differs"],
        )
    if _beyond_drift(window):
        # Mean surprisal under the trainer minus that under the sampler: its tokens are RARE there.
        # Where it is not logged it is k3 if the recorded distribution sampled; if not, broken too.
        away = (window.number("k3") or 0.0) if k1 is None else k1.value
        doubtless = away > -RARE or (known and not near)
        return Suspicion(
            slug="forwards-differ",
            confidence=WEAK if doubtless or sampled else GUESS,
            verdict="broken" if doubtless else "inconclusive",
            message=f"{differ}, more than a step or two of updates makes: other weights, contexts "
            "or tokens; means over tokens cannot tell which.",
            evidence=evidence,
            also_possible=OF_ANY_SIZE,
            actions=(READ_ONE, *cause_of("forwards-differ").words.mend),
        )
    return _of_a_small_one(differ, evidence, sampled=sampled, perhaps=perhaps)


def _what_differs(window: StepWindow) -> tuple[list[str], str] | None:
    """Return the quantities that are beyond rounding and a sentence on them; None without any."""
    rms = window.rms
    if rms is not None and rms >= ENGINE:
        differ = f"The two sides differ by {rms:.2g} nats at a token (`{window.key_of_size}`)"
        return [name for name in SIZES if window.number(name) is not None], differ
    names = [
        name
        for name in OF_ENGINE
        if (value := window.number(name)) is not None and beyond_rounding(name, value)
    ]
    if not names:
        return None
    first = f"`{window.key(names[0])}` is {window.number(names[0]):.3g}"
    return names, f"The two sides differ: {first}"


def _within_bfloat16(window: StepWindow) -> bool:
    """Tell whether bfloat16 on both sides can make a size beyond that of most engines."""
    if window.rms is None or window.rms < ENGINE or _more_unlike(window, OF_ENGINE_BY_FAR):
        return False
    return (window.error_of_logits or window.rms) <= HALF_A_STEP


def _beyond_drift(window: StepWindow) -> bool:
    """Tell whether a mismatch is larger than weights a step or two behind make it."""
    if window.rms is None:
        return _more_unlike(window, OF_DRIFT)
    return window.rms > LARGEST_DRIFT


def _more_unlike(window: StepWindow, limits: Mapping[str, float]) -> bool:
    """Tell whether the probabilities of a token are more unlike than the limits, by quantity."""
    return any(
        (value := window.number(name)) is not None and bool(_unlike(name, np.array(value)) > most)
        for name, most in limits.items()
    )


def _of_a_small_one(
    differ: str, evidence: Sequence[dict[str, Any]], *, sampled: bool, perhaps: bool
) -> Suspicion:
    """Report a mismatch that a step or two of updates may make, and `perhaps` bfloat16."""
    tail = (
        "importance weights are valid"
        if sampled
        else "the log does not show whether the recorded distribution sampled"
    )
    message = (
        f"{differ}, beyond rounding, and {tail}: other weights, precision or contexts; means over "
        "tokens cannot tell which."
    )
    possible = [
        "stale-weights",
        "weights-differ",
        "quantised-weights",
        "moe-routing",
        "context-differs",
    ]
    if perhaps:
        message = (
            f"{differ}: more than the rounding of two engines in most runs, but bfloat16 on both "
            f"sides, or experts, can make as much; {tail}. A re-score of some responses with equal "
            "weights tells."
        )
        possible = ["engine-noise", "moe-routing", "bf16-logits", "stale-weights", "weights-differ"]
    return Suspicion(
        slug="forwards-differ",
        confidence=WEAK if sampled and not perhaps else GUESS,
        verdict="correctable" if sampled else "inconclusive",
        message=message,
        evidence=evidence,
        also_possible=possible,
    )


def few_tokens(window: StepWindow) -> Suspicion | None:
    """Look for a few tokens with large log-ratios that carry a mean over all tokens.

    A mean exp(|log_ratio|) of e^D, or a mean square that is D times the mean |log_ratio|, takes
    tokens that differ by D nats. By Markov's inequality at most mean / D of all tokens do, a share
    that is above a half for normal log-ratios.
    """
    size, k3 = window.number("abs_diff"), window.number("k3")
    exponential, spread = window.number("exp_abs_diff"), window.number("abs_diff_std")
    less = ""
    if exponential is not None and exponential > math.e:
        tail, beyond = "exp_abs_diff", math.log(exponential)
        if k3 is not None and 1.0 + k3 < HALF * exponential:
            less = " To the trainer they are that much less likely."
    elif size and spread is not None:
        tail, beyond = "abs_diff_std", (size**2 + spread**2) / size
    else:
        return None
    # A token that differs by D nats has a k3 of D - 1 + e^-D at least.
    mean, each = ("abs_diff", beyond) if size else ("k3", beyond - 1.0 + math.exp(-beyond))
    carried = window.number(mean)
    if carried is None or beyond < LARGE or carried > FEW * each:
        return None
    share, nats = percentage(carried / each), f"{rough(beyond)} nats or more"
    return undecided(
        f"`{window.key(tail)}` {number(window.number(tail))} beside `{window.key(mean)}` "
        f"{number(carried)}: a few tokens carry the mismatch. Some differ by {nats}, and at most "
        f"{share} of all do.{less} Other weights or another precision would spread over all "
        "tokens; a dump shows which ones these few are.",
        [
            window.fact(tail, f"of tokens that differ by {nats}"),
            window.fact(mean, f"of all tokens: at most {share} differ as much"),
        ],
        ("zero-placeholder", "special-token-ids", "mask-includes-tool", "context-differs"),
    )


def beyond_rounding(name: str, value: float) -> bool:
    """Tell whether a quantity has a value that the rounding of two engines does not make."""
    if name in OF_ENGINE:
        return bool(_unlike(name, np.array(value)) > OF_ENGINE[name][0])
    return bool(rms_of(name, np.array(value)) > ENGINE)


def steps_by_far(window: StepWindow) -> Counts:
    """Return the steps that are beyond rounding by far, though the median step is not.

    One token with a large ratio raises k3; therefore the probabilities, where they are logged, must
    be more than rounding apart in the same step.
    """
    far, rounding = [], []
    for name in dict.fromkeys((*window.of_size[:1], *OF_ENGINE)):
        one = window.series(name)
        if one is None:
            continue
        most, by_far = OF_ENGINE.get(name, (FAR, FAR))
        unlike = _unlike(name, one.values) if name in OF_ENGINE else rms_of(name, one.values)
        far.append(one.steps[unlike > by_far])
        rounding.append(one.steps[~(unlike > most)])
    beyond = np.intersect1d(window.steps, np.concatenate([NO_STEPS, *far]))
    return np.setdiff1d(beyond, np.concatenate([NO_STEPS, *rounding])).astype(np.int64)


def _unlike(name: str, values: Array) -> Array:
    return 1.0 - values if name == "pearson" else values


def beyond_by_far(window: StepWindow) -> Suspicion | None:
    """Look for a number that is beyond rounding by far though the first size of the log is not.

    A few large log-ratios raise a standard deviation or a mean of exponentials, but hardly k3; or
    the keys are of different tokens.
    """
    names: tuple[str, ...]
    by_surprisals = _apart_in_the_mean(window)
    if by_surprisals is not None:
        names, reads = ("trainer_log_ppl", "sampler_log_ppl"), f"{by_surprisals:.2g} nats apart"
    else:
        names, reads = _of_by_far(window), "beyond rounding by far"
    if not names or not window.of_size:
        return None
    keys = " and ".join(f"`{window.key(name)}` {window.number(name):.3g}" for name in names)
    verb = "are" if len(names) > 1 else "is"
    return undecided(
        f"{keys} {verb} {reads}, which `{window.key_of_size}` does not show: a few tokens differ "
        "a lot, or the keys are of different tokens or of another model.",
        [window.fact(name, reads) for name in names],
    )


def _of_by_far(window: StepWindow) -> tuple[str, ...]:
    """Return the quantities by which log-ratios are beyond rounding by far."""
    found = []
    for name in (*SIZES, "k1", "log_ppl_diff", "log_ppl_abs_diff", "ratio_mean"):
        value = window.number(name)
        if value is None or (name == "ratio_mean" and not (window.has_ratio and value > 0.0)):
            continue
        if rms_of(name, np.array(value)) > FAR:
            found.append(name)
    return tuple(found)


def _apart_in_the_mean(window: StepWindow) -> float | None:
    """Return the distance of both mean surprisals, nats, where micro-batches do not explain it."""
    trainer, sampler = window.number("trainer_log_ppl"), window.number("sampler_log_ppl")
    if trainer is None or sampler is None:
        return None
    distance = abs(trainer - sampler)
    return distance if distance > MICRO_BATCHES * max(trainer, 1.0) else None


def beyond_float32(window: StepWindow) -> Suspicion | None:
    """Look for a token to which one side gives a probability that float32 has not.

    No sampler draws such a token. Engines and trainers put numbers such as -9999 where a log-prob
    is missing; of a million tokens a few of them hardly raise a mean.
    """
    one, largest = window.series("abs_diff_max"), window.largest
    if one is None or largest is None or largest[1] <= LEAST_LOG_PROB:
        return None
    return undecided(
        f"`{one.key}` is up to {largest[1]:.4g} nats: one side gives a sampled token a "
        "probability below the least one of float32, as where a number stands in place of a "
        "missing log-prob.",
        [window.fact("abs_diff_max", "no difference of two log-probs of a sampled token")],
        ("nan-log-probs", "zero-placeholder", "context-differs"),
    )


def noise(window: StepWindow) -> Suspicion | None:
    """Report a mismatch that is no larger than the rounding of two engines.

    A mean log_ratio by itself is 0 for exchanged tokens too, so that it leaves the verdict open.
    """
    if window.k3_below_zero is not None:
        return None
    of_tokens = [
        name for name in (*SIZES, "pearson", "prob_diff") if window.number(name) is not None
    ]
    if not of_tokens and not window.of_size:
        return None
    if of_tokens:
        name = of_tokens[0]
        key, value = window.key(name), window.number(name)
    else:
        assert window.k1 is not None
        name, key, value = "k1", window.k1.key, window.k1.value
    size = f"`{key}` is {value:.{4 if name == 'pearson' else 2}g}"
    if not value and (rounding := window.run.series[name].rounding):
        size = f"`{key}` is below {rounding:.2g}"
    means_alone = not of_tokens and "weight_mean" not in window.of_size
    evidence = [window.fact(one, "rounding") for one in of_tokens]
    if not of_tokens:
        evidence = [k1_evidence(window, "rounding")]
    verdict: str | None = None
    message = f"{size}: the size of the rounding of two engines."
    if (weight := shrinks_update(window)) is not None:
        verdict = "correctable"
        message = (
            f"{message[:-1]}, but the weights in the loss have a mean of "
            f"{window.number(weight):.3g} (`{window.key(weight)}`), which makes updates smaller."
        )
        evidence.append(window.fact(weight, "far below 1"))
    if means_alone:
        verdict = "inconclusive"
        message = (
            f"{size}: on the mean no more than the rounding of two engines. A mean does not show "
            "tokens or rows that are exchanged, and the log has no size of single log-ratios."
        )
    return Suspicion(
        slug="engine-noise",
        confidence=GUESS if means_alone else CLEAR,
        verdict=verdict,
        message=message,
        evidence=evidence,
        also_possible=["shift-by-one", "rows-swapped"]
        if means_alone
        else ["bf16-logits", "healthy"],
    )
