"""What a mismatch costs: weights, effective sample size and rejection."""

from __future__ import annotations

import math

from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.logged.causes.found import undecided
from rcdiag.diagnosis.logged.window import StepWindow

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
# Of these the ones that rounding lowers in long responses, where weights are of responses.
OF_RESPONSES = ("ess", "weight_mean", "chi2_seq")


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
    """Look for a number of rejected responses without that of all, so that no share is known."""
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
    """Tell whether rounding explains a low number of weights of responses by their length.

    The log-ratio of a response of T tokens with independent errors has the variance v = 2 k3 T, and
    raw weights have the ESS exp(-v); bounds raise it. The mean weight with a bound of 1 or more
    and E[ratio^2] over few responses are no lower for v of 1 or more.
    """
    length, rms = window.number("response_length"), window.rms
    if name not in OF_RESPONSES or window.run.known.of_tokens or length is None or rms is None:
        return False
    low, _ = COSTS_LITTLE[name]
    # Trainers clip sums of log-ratios, so that 1 + chi2 is compared with its bound, not its value.
    left = 1.0 + low if name == "chi2_seq" else value
    return value < low and left > math.exp(-(rms**2) * length)
