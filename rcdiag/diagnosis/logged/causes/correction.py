"""What a mismatch costs: weights, effective sample size and rejection."""

from __future__ import annotations

import math

from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.logged.causes.found import undecided
from rcdiag.diagnosis.logged.window import SIZES, StepWindow
from rcdiag.diagnosis.thresholds import LARGER

# Quantities that are 1 without a mismatch. In long responses the rounding of two engines moves them
# away from 1, but from one step to the next by LEFT_ONE at most.
ONE_AT_BEST, LEFT_ONE = ("ratio_mean", "weight_mean", "ess"), 0.1
# Range of each number in which a mismatch costs little: the mean weight, ESS and veto by verl's
# check of its correction (docs/advance/rollout_is.md of 2025-10-27, docs/algo/rollout_corr.md),
# which also wants less than .1 masked. E[ratio^2] of 2 is a raw ESS of .5; near 0, no ratio is
# left.
COSTS_LITTLE = {
    "ess": (0.5, math.inf),
    "weight_mean": (0.5, 2.0),
    "ratio_mean": (0.5, 2.0),
    "rejected": (0.0, 0.1),
    "rejected_above": (0.0, 0.1),
    "rejected_below": (0.0, 0.1),
    "veto": (0.0, 0.1),
    "chi2_token": (-0.2, 1.0),
    "chi2_seq": (-0.99, math.inf),
}
# A lower mean weight makes the update smaller by a factor that counts.
LEAST_WEIGHT = 1.0 / LARGER
# Of these the ones that rounding lowers in long responses, where weights are of responses.
OF_RESPONSES = ("ess", "weight_mean", "chi2_seq")


def mean_weight(window: StepWindow) -> str | None:
    """Return the quantity that is the mean of the weights in the loss; None without one.

    A mean ratio is one where the trainer logs no other.
    """
    names = ("weight_mean", "ratio_mean")
    return next((name for name in names if window.number(name) is not None), None)


def shrinks_update(window: StepWindow) -> str | None:
    """Return the quantity of a mean weight that makes the update much smaller; None without one."""
    name = mean_weight(window)
    value = None if name is None else window.number(name)
    return name if value is not None and value <= LEAST_WEIGHT else None


def least_of_tokens(window: StepWindow) -> float | None:
    """Return the least mean weight that tokens can have beside the logged mismatch; None: unknown.

    By Jensen's inequality E[ratio] >= exp(-E|log_ratio|), also with bounds around 1; tokens whose
    weights a bound may set to 0 count as 0.
    """
    if not window.of_size or window.of_size[0] not in SIZES or window.rms is None:
        return None
    size = window.number("abs_diff")
    cut = ("share_cut", "share_above", "share_below", "rejected", "veto")
    zeroed = sum(window.number(name) or 0.0 for name in cut)
    return math.exp(-(window.rms if size is None else size)) - zeroed


def said_of_weights(window: StepWindow) -> str:
    """Say how much smaller a mean weight makes the update, and what to do about it."""
    name = mean_weight(window)
    assert name is not None
    value, least = window.number(name), least_of_tokens(window)
    assert value is not None
    said = f"`{window.key(name)}` is {value:.3g}"
    if value > LEAST_WEIGHT:
        return f"{said}: the weights leave the size of an update as it is"
    factor = f"{1.0 / value:.2g} times smaller" if value > 0.0 else "0"
    said += f": a loss with these weights makes an update that is {factor}"
    if least is None or value > least or window.run.known.of_tokens:
        return said
    length = window.number("response_length")
    of = "" if length is None else f" of {length:,.0f} tokens"
    return (
        f"{said}. Weights of tokens have a mean of {least:.2g} or more at this mismatch: these are "
        f"products over responses{of}. Take weights of tokens, or the geometric mean of a response"
    )


def other_weight(window: StepWindow) -> Suspicion | None:
    """Look for a jump of mean weight, mean ratio or ESS away from 1 while log-ratios stay small.

    A few tokens that differ a lot cause this, such as placeholders of 0. So does rounding in the
    weights of sequences that become much longer; therefore the verdict stays open.
    """
    if window.before is None:
        return None
    for name in ONE_AT_BEST:
        then, now = window.before.number(name), window.number(name)
        if then is None or now is None or abs(then - 1.0) > LEFT_ONE:
            continue
        if abs(now - then) > LEFT_ONE:
            key = window.key(name)
            small = ", though log-ratios are small on the mean" if window.of_size else ""
            return undecided(
                f"`{key}` goes from {then:.3g} to {now:.3g}{small}: a few tokens "
                "differ a lot, or responses are much longer than before.",
                [window.fact(name, f"{then:.3g} before")],
            )
    return None


def costs_much(window: StepWindow) -> Suspicion | None:
    """Look for weights, an ESS or a rejected share that are not those of a run without a mismatch.

    They count whatever the mean log-ratio is; a few tokens or long responses may cause them.
    """
    for name, (low, high) in COSTS_LITTLE.items():
        value = window.number(name)
        if value is None or low <= value <= high or _by_length(window, name, value):
            continue
        wanted = f"{low:g} to {high:g}" if high < math.inf else f"{low:g} or more"
        small = f" `{window.key_of_size}` is small nevertheless:" if window.of_size else ""
        return undecided(
            f"`{window.key(name)}` is {value:.3g} where {wanted} is usual.{small} a few "
            "tokens may differ a lot, the weights may be of long responses, or the keys of "
            "different tokens.",
            [window.fact(name, f"outside {wanted}")],
        )
    return None


def rejects_some(window: StepWindow) -> Suspicion | None:
    """Look for a number of rejected responses, if the log lacks the total to make it a share."""
    count = window.number("rejected_count")
    if not count:
        return None
    key = window.key("rejected_count")
    return undecided(
        f"`{key}` is {count:.3g}: rejection leaves these responses out of the other "
        "numbers, which are therefore smaller than the mismatch. The log does not say of how many "
        f"responses; NeMo-RL's `num_valid_samples`, the number that is left, would.",
        [window.fact("rejected_count", "left out of the other numbers")],
    )


def _by_length(window: StepWindow, name: str, value: float) -> bool:
    """Tell whether the length of responses explains a low number of their weights.

    The log-ratio of a response of T tokens with independent errors has the variance v = 2 k3 T, and
    raw weights have the ESS exp(-v); bounds raise it. The mean weight with a bound of 1 or more
    and E[ratio^2] over few responses are no lower for v of 1 or more. If no token has a ratio as
    low as the number, many tokens make it.
    """
    length, rms = window.number("response_length"), window.rms
    if name not in OF_RESPONSES or window.run.known.of_tokens or length is None or rms is None:
        return False
    low, _ = COSTS_LITTLE[name]
    largest = window.largest
    if name == "weight_mean" and largest is not None and low < math.exp(-largest[1]):
        return value < low
    # Trainers clip sums of log-ratios, so that 1 + chi2 is compared with its bound, not its value.
    left = 1.0 + low if name == "chi2_seq" else value
    return value < low and left > math.exp(-(rms**2) * length)
