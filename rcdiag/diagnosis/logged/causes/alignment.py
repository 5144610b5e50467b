"""Columns whose values do not stand at the same tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.diagnosis.causes.cause import LIKELY, Suspicion
from rcdiag.diagnosis.logged.causes.found import (
    APART,
    ENGINE,
    HEAVY,
    OWN_TOKENS,
    SAME_SURPRISAL,
    k1_evidence,
    ratio_evidence,
    size_evidence,
    undecided,
)
from rcdiag.diagnosis.logged.causes.mean_ratio import surely_above_1
from rcdiag.diagnosis.logged.window import StepWindow, rms_of
from rcdiag.diagnosis.thresholds import HALF, SURELY

# Nats: float32 rounds the log-softmax of logits near 20 by 2e-6, a fiftieth of this.
LEAST_ENTROPY = 1e-4
# What to do about tokens that are shifted or exchanged, which means over tokens cannot tell apart.
COMPARE = (
    "Compare the ids and the log-probs of one response on both sides: as many of each, and its "
    "first log-prob at its first token.",
    "Join both sides on an id of the sample, never on the order of rows.",
)


def other_tokens(window: StepWindow) -> Suspicion | None:
    """Look for columns whose tokens do not belong together.

    Which of the misalignments it is shows in the means of rows and in the correlation.
    """
    rms, pearson = window.rms, window.number("pearson")
    if rms is None or rms < APART or (pearson is not None and pearson > OWN_TOKENS):
        return None
    misaligned = _misaligned(window, rms)
    if misaligned is None:
        return None
    shown, by_means = misaligned
    evidence = [size_evidence(window, "large at single tokens"), *by_means]
    # Of the two parts of the rows, the larger one stands at its own tokens.
    partly = pearson is not None and pearson > HALF
    # A shift drops a token at the same end of each row, mostly a certain one: all rows change in
    # the same direction.
    of_rows, mean = window.number("log_ppl_abs_diff"), window.number("log_ppl_diff")
    swapped = of_rows is not None and mean is not None and abs(mean) < HALF * of_rows
    if swapped and rms_of("log_ppl_abs_diff", np.array(of_rows)) < ENGINE:
        of_rows, swapped = None, False  # exchanged rows would have other means
    if of_rows is not None:
        reads = "rows differ in both directions" if swapped else "rows differ in one direction"
        evidence.append(window.fact("log_ppl_abs_diff", reads))
    if pearson is not None:
        reads = "probabilities of a token are related in part" if partly else "unrelated"
        evidence.append(window.fact("pearson", reads))
    slug, untold, actions = "rows-swapped" if swapped else "shift-by-one", "", None
    if partly and not swapped:
        slug = "shift-some-rows"
    elif of_rows is None:  # Shifted and exchanged tokens are alike in means over tokens.
        slug, untold, actions = "forwards-differ", ", shifted or exchanged between rows", COMPARE
    return Suspicion(
        slug=slug,
        confidence=LIKELY,
        verdict="broken",
        message=f"{shown} differ by {rms:.2g} nats at single tokens "
        f"(`{window.key_of_size}`): the tokens are not aligned{untold}.",
        evidence=evidence,
        also_possible=[
            "shift-by-one",
            "rows-swapped",
            "shift-some-rows",
            "shift-after-tool",
            "mask-includes-tool",
        ],
        actions=actions,
    )


def _misaligned(window: StepWindow, rms: float) -> tuple[str, list[dict[str, Any]]] | None:
    """Say what shows that the columns are of other tokens, with the evidence; None if nothing does.

    Their mean surprisals are equal: the same values stand at other tokens. Or neither distribution
    sampled: tokens of the recorded one have E[ratio] = 1, those of the trainer's have k1 < 0.
    """
    difference, excess = window.k1, window.excess
    if difference is None:
        return None
    if abs(difference.value) < SAME_SURPRISAL * rms:
        same = f"the same mean surprisal (`{difference.key}` {difference.value:.2g})"
        evidence = k1_evidence(window, "near 0: the same values, at other tokens")
        return f"Both columns have {same} but", [evidence]
    if difference.z > SURELY and difference.value < HEAVY and surely_above_1(window):
        assert excess is not None
        shown = (
            f"E[ratio] is {1.0 + excess.value:.2g}, not 1, and the trainer does not find the "
            f"tokens likelier (`{difference.key}` {difference.value:.2g}): neither distribution "
            "sampled them, and the columns"
        )
        return shown, [k1_evidence(window, "surely above 0"), ratio_evidence(window)]
    return None


def unrelated(window: StepWindow) -> Suspicion | None:
    """Look for values that are not related although log-ratios are as small as rounding.

    Where nearly all tokens are certain, log-ratios are small at any token, exchanged ones too. Then
    the correlation of probabilities is small, or the mean |log_ratio| is near the most that it can
    be, the sum of both mean surprisals: |x - y| <= x + y for x and y of one sign.
    """
    pearson, rms, share = window.number("pearson"), window.rms, _share_of_surprisals(window)
    if rms is None or rms >= ENGINE:
        return None
    if pearson is not None and pearson <= OWN_TOKENS:
        evidence = window.fact("pearson", "far below 1: other tokens, or another distribution")
        shown = f"`{window.key('pearson')}` is {pearson:.3g}, so the two probabilities"
        small = f"`{window.key_of_size}`"
    elif share is not None and share > HALF:
        evidence = window.fact("entropy", "so small that log-ratios of any tokens are small")
        shown = (
            f"`{window.key('abs_diff')}` is {window.number('abs_diff'):.2g}, {share:.0%} of the "
            f"most that `{window.key('entropy')}` {window.number('entropy'):.2g} leaves possible, "
            "so the two log-probs"
        )
        small = "it"
    else:
        return None
    return undecided(
        f"{shown} of a token are hardly related, though {small} is as small as rounding "
        "makes it. Where the policy is certain of nearly all tokens, shifted or exchanged ones "
        "look like this.",
        [evidence, size_evidence(window, "no larger than rounding")],
        ["shift-by-one", "rows-swapped", "context-differs"],
        COMPARE,
    )


def _share_of_surprisals(window: StepWindow) -> float | None:
    """Return the mean |log_ratio| over both mean surprisals; None where float32 rounds as much.

    The entropy stands for either: it is the mean surprisal of the tokens of its distribution.
    """
    size, entropy = window.number("abs_diff"), window.number("entropy")
    if size is None or entropy is None or entropy < LEAST_ENTROPY:
        return None
    return size / (2.0 * entropy)
