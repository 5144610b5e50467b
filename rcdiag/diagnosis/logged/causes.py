"""Causes that a training log can show, each by the numbers of a window of steps.

A log has only means over tokens. These show whether the recorded distribution sampled (then
E[ratio] = 1 + k3 - k1 is 1), whether the two columns belong to the same tokens, whether a column
holds log-probs at all, which of the two changed, and what grows with the steps. Where they do not
determine a single cause, an umbrella is named, or several causes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Counts
from rcdiag.diagnosis.causes.cause import CLEAR, EXACT, GUESS, LIKELY, WEAK, fact
from rcdiag.diagnosis.causes.weights import LARGEST_DRIFT
from rcdiag.diagnosis.logged.run import FLOOR, LoggedRun, Series
from rcdiag.diagnosis.logged.window import SIZES, Window, rms_of
from rcdiag.diagnosis.thresholds import FEWEST_OF_PATTERN, SURELY

# Nats, rms log-ratio: in all known healthy runs the rounding of two engines is below this.
ENGINE = 0.045  # k3 of .001, the guide of k3_kl
BEYOND_DOUBT = 3.0  # nats: mean surprisal under the trainer minus that under the sampler
OF_K3 = 0.25  # E[ratio] differs from 1 if it does significantly, and by this share of k3
# Zeros in place of log-probs of x nats lower E[ratio] by k3 / (x - 1), and x is hardly above 20.
OF_ZEROS = 1.0 / 19.0
# Probability mass that top-p, top-k and min-p leave out is within these bounds.
LEAST_LEFT_OUT, MOST_LEFT_OUT = 0.005, 0.6
# More than this no usual setting leaves out: a top_p of .8 leaves out .2 of a context at most.
USUALLY_LEFT_OUT = 0.2
# If two probabilities of a token differ by more than this, only one side is certain of it.
CERTAIN = 0.95
# Least |log| of the change of trainer's entropy / sampled surprisal: a factor of 1.25.
OTHER_ENTROPY = math.log(1.25)
# |k1|, nats, above which a few large ratios dominate means of ratios over a step.
HEAVY = 0.7
# Mean surprisals that differ by less than this share of the mismatch's size, which is at least
# APART nats rms, belong to the same values in another order.
SAME_SURPRISAL, APART = 0.05, 0.3
# A single step is beyond rounding by far if its rms log-ratio is this many times ENGINE, a k3 of
# .009: batches of one healthy run differ by less.
BY_FAR = 3.0
# Relative difference of two mean surprisals in trainers that average over micro-batches.
MICRO_BATCHES = 0.05
HALF = 0.5  # of a token's probability, or of what a number can be
# Nats: float32 rounds the log-softmax of logits near 20 by 2e-6, a fiftieth of this.
LEAST_ENTROPY = 1e-4
# Correlation of probabilities above which the values stand at their own tokens.
RELATED = 0.9
# Above this a part of the tokens stands at its own place: of two shares of rows, the larger one.
PARTLY_RELATED = 0.5
# Rows differ in both directions if |mean difference| / mean |difference| of rows is below this.
ALIKE = 0.5
# Bases of logarithms as factors of the surprisal, and the largest tolerance on the factor's log.
BASES, EXACTLY = {"2": math.log(2.0), "10": math.log(10.0)}, 0.02
# How unlike both probabilities of a token are (1 - correlation, mean difference): the most that
# rounding makes, and what is beyond it by far.
OF_ENGINE = {"pearson": (0.005, 0.1), "prob_diff": (0.01, 0.03)}
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
# Means of exponentials of log-ratios, which overflow float32 above 88 nats, and those of tokens
# that are infinite wherever E[ratio] is.
EXPONENTIALS = ("exp_abs_diff", "ppl_ratio", "chi2_token", "chi2_seq", "ratio_mean", "weight_mean")
OF_TOKENS = ("exp_abs_diff", "chi2_token", "ratio_mean")
# Means of log-ratios: where one is finite, so are the log-ratios.
OF_LOG_RATIOS = ("k1", "k2", "abs_diff", "log_ppl_diff")
FEWEST_OVERFLOWS = 2  # steps: a lone one may be of a single token
RARE = 0.05  # of a run's steps: fewer with NaN may be a batch or a metric that failed once


NO_STEPS: Counts = np.zeros(0, np.int64)


class Found(Struct, frozen=True, kw_only=True, eq=False):
    """A cause that the numbers of some steps show."""

    slug: str
    score: float
    message: str
    evidence: Sequence[dict[str, Any]]
    verdict: str | None = None  # None: as the cause's words say
    side: str | None = None
    also_possible: Sequence[str] = ()


Weigh = Callable[[Window], Found | None]
OF_FEW_TOKENS = ("zero-placeholder", "weights-differ", "context-differs")


def undecided(
    message: str, evidence: Sequence[dict[str, Any]], also_possible: Sequence[str] = OF_FEW_TOKENS
) -> Found:
    """Return the umbrella for two sides that differ where numbers leave the verdict open."""
    return Found(
        slug="forwards-differ",
        score=GUESS,
        verdict="inconclusive",
        message=message,
        evidence=evidence,
        also_possible=also_possible,
    )


def _of_k1(window: Window, reads: str) -> dict[str, Any]:
    assert window.k1 is not None
    return fact(window.key_of_k1, reads, value=float(f"{window.k1.value:.4g}"))


def _of_size(window: Window, reads: str) -> dict[str, Any]:
    """Return the evidence of the number that the size of log-ratios is estimated from."""
    name = window.of_size[0]
    return window.fact(name, reads) if name in SIZES else _of_k1(window, reads)


def _of_ratio(window: Window, means: str = "") -> dict[str, Any]:
    """Return the evidence of the mean ratio beside what is expected of it."""
    excess = window.excess
    assert excess is not None
    away, side = abs(excess.z), "above" if excess.value > 0.0 else "below"
    errors = f"{away:.0f}" if away > 10.0 else f"{away:.1f}"
    distance = (
        f", {errors} standard errors {side}" if excess.error > 0 else " in one step; expected"
    )
    reads = f"mean ratio{distance} the 1 of the distribution that sampled"
    return fact(
        window.name_of_ratio,
        f"{reads}: {means}" if means else reads,
        value=float(f"{1.0 + excess.value:.4g}"),
    )


def not_finite_in(run: LoggedRun) -> tuple[Window, Found] | None:
    """Look for steps with NaN or infinity, over the whole run; return these steps with the cause.

    Means of exponentials that overflow are none: other numbers of their steps are finite.
    """
    bad = {one.key: steps for one in run.of_mismatch if len(steps := _bad_steps(run, one))}
    if not bad:
        return None
    key = max(bad, key=lambda name: len(bad[name]))
    steps = np.unique(np.concatenate(list(bad.values())))
    share = len(bad[key]) / len(run.steps)
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    rare = share < RARE
    shown = f"`{key}` is NaN or infinite in {len(bad[key])} of {len(run.steps)} steps ({where})"
    return Window(run, steps), Found(
        slug="nan-log-probs",
        score=GUESS if rare else EXACT if share > HALF else CLEAR,
        verdict="inconclusive" if rare else None,
        message=f"{shown}: a log-prob there is NaN or infinite, or the number overflowed; the "
        "other steps are judged without it."
        if rare
        else f"{shown}: some log-probs are NaN or infinite.",
        evidence=[
            fact(name, "of the steps NaN or infinite", share=round(len(of_key) / len(run.steps), 3))
            for name, of_key in list(bad.items())[:3]
        ],
    )


def _bad_steps(run: LoggedRun, series: Series) -> Counts:
    """Return the steps at which a series is NaN or infinite."""
    bad: Counts = series.steps[~np.isfinite(series.values)]
    return np.setdiff1d(bad, _overflows(run, series))


def _overflows(run: LoggedRun, series: Series) -> Counts:
    """Return the steps at which a mean of exponentials overflows while log-ratios are finite.

    k3 contains the log-ratios, which are finite where it is. It overflows by E[ratio] alone, so not
    where another number that contains E[ratio] is finite.
    """
    name = series.quantity.name
    infinite: Counts = series.steps[np.isposinf(series.values)]
    if name == "k3":
        finite = np.intersect1d(infinite, _finite(run, OF_LOG_RATIOS))
        return np.setdiff1d(finite, _finite(run, OF_TOKENS))
    if name in EXPONENTIALS:
        return np.intersect1d(infinite, _finite(run, (*OF_LOG_RATIOS, "k3")))
    return NO_STEPS


def _finite(run: LoggedRun, names: Sequence[str]) -> Counts:
    """Return the steps at which one of some quantities is finite."""
    several = [one for name in names if (one := run.series.get(name)) is not None]
    finite = [one.steps[np.isfinite(one.values)] for one in several]
    return np.unique(np.concatenate([NO_STEPS, *finite]))


def overflow_in(run: LoggedRun) -> tuple[Window, Found] | None:
    """Look for a mean over tokens that overflows in more than one step; None without one.

    Sums over long responses may overflow by rounding, those of a token do not.
    """
    for name in ("k3", *OF_TOKENS):
        one = run.series.get(name)
        if one is None or len(steps := _overflows(run, one)) < FEWEST_OVERFLOWS:
            continue
        reads = "infinite where log-ratios are finite"
        return Window(run, steps), undecided(
            f"`{one.key}` is infinite in {len(steps)} of {len(run.steps)} steps, from step "
            f"{steps[0]} on, and log-ratios are finite: in each of them a token's ratio "
            "overflows, far beyond rounding.",
            [fact(one.key, reads, share=round(len(steps) / len(run.steps), 3))],
        )
    return None


def steps_by_far(window: Window) -> Counts:
    """Return the steps that are beyond rounding by far, though the median step is not.

    One token with a large ratio raises k3; therefore the probabilities, where they are logged, must
    be more than rounding apart in the same step.
    """
    far, rounding = [], []
    for name in dict.fromkeys((*window.of_size[:1], *OF_ENGINE)):
        one = window.series(name)
        if one is None:
            continue
        most, by_far = OF_ENGINE.get(name, (BY_FAR * ENGINE, BY_FAR * ENGINE))
        unlike = _unlike(name, one.values) if name in OF_ENGINE else rms_of(name, one.values)
        far.append(one.steps[unlike > by_far])
        rounding.append(one.steps[~(unlike > most)])
    beyond = np.intersect1d(window.steps, np.concatenate([NO_STEPS, *far]))
    return np.setdiff1d(beyond, np.concatenate([NO_STEPS, *rounding])).astype(np.int64)


def _unlike(name: str, values: Array) -> Array:
    return 1.0 - values if name == "pearson" else values


def _identical(window: Window) -> Found | None:
    """Look for a mismatch of exactly 0, which two engines never have."""
    names = [name for name in ("k3", "abs_diff", "prob_diff") if len(window.values(name))]
    if not names or any(window.values(name).any() for name in names):
        return None
    if any(window.run.series[name].rounding > FLOOR for name in names):
        return None  # such as 0.0000, which is a small mismatch too
    return Found(
        slug="columns-identical",
        score=CLEAR,
        verdict="inconclusive",
        message=f"`{window.key(names[0])}` is exactly 0 in every step: one column is a copy of the "
        "other, or both engines are the same to the last bit.",
        evidence=[window.fact(name, "exactly 0", 0.0) for name in names],
    )


def _impossible_surprisals(window: Window) -> Found | None:
    """Look for mean surprisals that log-probs cannot have: negative, or exactly 0."""
    for name, side in (("sampler_log_ppl", "recorder"), ("trainer_log_ppl", "trainer")):
        value = window.number(name)
        if value is None or value > 1e-6:
            continue
        other = window.number("trainer_log_ppl" if side == "recorder" else "sampler_log_ppl")
        on_the_mean = other is not None and abs(value + other) < SAME_SURPRISAL * other
        least = 0.0 if other is None else math.exp(-other)  # of a mean probability, by Jensen
        if abs(value) <= 1e-6:
            slug, what = "zero-placeholder", "exactly 0: zeros stand where log-probs belong"
        elif _have_factor(window, 1.0, exact=False) or (value < -1.0 and not on_the_mean):
            slug, what = "sign-flipped", "below 0: log-probs have the other sign"
        elif on_the_mean or -value < least:
            # Entropies have the mean of surprisals, but not their value in each step.
            slug, what = "entropy-recorded", "below 0, and no mean probability: minus an entropy"
        else:
            slug, what = "probabilities-stored", "between -1 and 0: minus a mean probability"
        return Found(
            slug=slug,
            score=EXACT if slug in ("zero-placeholder", "sign-flipped") else CLEAR,
            side=side,
            message=f"`{window.key(name)}` is {value:.3g}, {what}.",
            evidence=[window.fact(name, what.partition(":")[0])],
            also_possible=["sign-flipped", "probabilities-stored", "entropy-recorded"],
        )
    return None


def _worse_than_uniform(window: Window) -> Found | None:
    """Look for a trainer that scores its tokens worse than a uniform guess over the vocabulary."""
    value = window.number("trainer_log_ppl")
    vocabulary = window.run.known.vocabulary
    bound = math.log(vocabulary)
    if value is None or value <= bound:
        return None
    evidence = [window.fact("trainer_log_ppl", f"above ln({vocabulary}) = {bound:.1f}")]
    if (sampler := window.number("sampler_log_ppl")) is not None:
        evidence.append(window.fact("sampler_log_ppl", "normal" if sampler < 5 else "high too"))
    return Found(
        slug="forwards-differ",
        score=CLEAR,
        verdict="broken",
        side="trainer",
        message=f"`{window.key('trainer_log_ppl')}` is {value:.3g} nats, above the {bound:.1f} of "
        "a uniform guess: the trainer's forward pass is broken, or it reads each token's log-prob "
        "from the logits of another one.",
        evidence=evidence,
        # Not a shift of the column or an exchange of its rows, which leave the mean as it was.
        also_possible=["logits-not-shifted", "attention-to-padding", "context-differs"],
    )


def _other_tokens(window: Window) -> Found | None:
    """Look for columns whose tokens do not belong together.

    Their mean surprisals are equal: the same values stand at other tokens. Or neither distribution
    sampled: tokens of the recorded one have E[ratio] = 1, those of the trainer's have k1 < 0.
    """
    rms, pearson = window.rms, window.number("pearson")
    difference, excess = window.k1, window.excess
    if rms is None or rms < APART or difference is None:
        return None
    if pearson is not None and pearson > RELATED:
        return None
    partly = pearson is not None and pearson > PARTLY_RELATED
    evidence = [_of_size(window, "large at single tokens")]
    if abs(difference.value) < SAME_SURPRISAL * rms:
        shown = (
            f"Both columns have the same mean surprisal (`{window.key_of_k1}` "
            f"{difference.value:.2g}) but"
        )
        evidence.append(_of_k1(window, "near 0: the same values, at other tokens"))
    elif difference.z > SURELY and difference.value < HEAVY and _surely_above_1(window):
        assert excess is not None
        shown = (
            f"E[ratio] is {1.0 + excess.value:.2g}, not 1, and the trainer does not find the "
            f"tokens likelier (`{window.key_of_k1}` {difference.value:.2g}): neither distribution "
            "sampled them, and the columns"
        )
        evidence += [_of_k1(window, "surely above 0"), _of_ratio(window)]
    else:
        return None
    # A shift drops a token at the same end of each row, mostly a certain one: all rows change in
    # the same direction.
    of_rows, mean = window.number("log_ppl_abs_diff"), window.number("log_ppl_diff")
    swapped = of_rows is not None and mean is not None and abs(mean) < ALIKE * of_rows
    if of_rows is not None:
        reads = "rows differ in both directions" if swapped else "rows differ in one direction"
        evidence.append(window.fact("log_ppl_abs_diff", reads))
    if pearson is not None:
        reads = "probabilities of a token are related in part" if partly else "unrelated"
        evidence.append(window.fact("pearson", reads))
    slug, untold = "rows-swapped" if swapped else "shift-by-one", ""
    if partly and not swapped:
        slug = "shift-some-rows"
    elif of_rows is None:  # Shifted and exchanged tokens are alike in means over tokens.
        slug, untold = "forwards-differ", ", shifted or exchanged between rows"
    return Found(
        slug=slug,
        score=LIKELY,
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
    )


def _other_base(window: Window) -> Found | None:
    """Look for surprisals of which one is the other times ln 2 or ln 10, step by step.

    Few steps may have that factor by another fault; over more of them it varies.
    """
    if len(window.steps) < FEWEST_OF_PATTERN:
        return None
    for base, size in BASES.items():
        if _have_factor(window, size, exact=True):
            return Found(
                slug="log-base",
                score=CLEAR,
                verdict="broken",
                message=f"`{window.key('trainer_log_ppl')}` and `{window.key('sampler_log_ppl')}` "
                f"have the ratio of natural logarithms to those of base {base} in every step.",
                evidence=[
                    window.fact("trainer_log_ppl", f"sampler's times ln {base}, or over it"),
                    window.fact("sampler_log_ppl", "of the sampler"),
                ],
            )
    return None


def _have_factor(window: Window, size: float, *, exact: bool) -> bool:
    """Tell whether one surprisal is the other times a factor, or over it, in each step.

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


def _surely_above_1(window: Window) -> bool:
    """Tell whether E[ratio] is above 1 surely, and by a share of k3 that counts."""
    excess, rms = window.excess, window.rms
    if excess is None or rms is None:
        return False
    return excess.z > SURELY and excess.value > OF_K3 * rms**2 / 2.0


def _not_the_sampler(window: Window) -> Found | None:
    """Look for tokens that the trainer finds likelier than the policy that is said to sample."""
    k1, excess, rms = window.k1, window.excess, window.rms
    if k1 is None or rms is None or rms < ENGINE or k1.z > -SURELY:
        return None
    # If the trainer's distribution sampled, -k1 is a KL, about as large as a small k3. A few large
    # ratios alone raise k3, and E[ratio] with it, but not -k1.
    if -k1.value < min(OF_K3 * rms**2 / 2.0, SAME_SURPRISAL * rms):
        return None
    if excess is not None and not _surely_above_1(window):
        return None
    evidence = [_of_k1(window, "below 0: the trainer finds the tokens likelier")]
    if excess is not None:
        evidence.append(_of_ratio(window))
    finds = (
        "The trainer finds the sampled tokens likelier than the recorded policy does, by "
        f"{-k1.value:.2g} nats a token (`{window.key_of_k1}`)"
    )
    # A sharper temperature raises no probability by a large factor, so that k3 stays below -k1; a
    # flatter one lowers none. To another model single tokens are far more and far less likely.
    least = window.number("least_ratio")
    if rms**2 / 2.0 > -k1.value and (least is None or least < HALF):
        return Found(
            slug="forwards-differ",
            score=WEAK,
            verdict="broken",
            message=f"{finds}, and single tokens by far more: the recorded distribution is not the "
            "one that sampled, nor a copy of it at another temperature, as happens when a draft "
            "model's log-probs are recorded.",
            evidence=[
                *evidence,
                _of_size(window, "more than a lower temperature makes"),
            ],
            side="recorder",
            also_possible=["draft-recorded", "weights-differ", "temperature-raw-recorded"],
        )
    return Found(
        slug="temperature-raw-recorded",
        score=LIKELY,
        verdict="broken",
        message=f"{finds}: the recorded distribution is not the one that sampled, as happens when "
        "log-probs are recorded before the temperature.",
        evidence=evidence,
        side="recorder",
        also_possible=["draft-recorded", "entropy-recorded", "log-probs-divided", "penalty"],
    )


def _weights_above_1(window: Window) -> Found | None:
    """Look for bounded weights whose mean is above 1, which it is not if the record sampled.

    Log-probs that are rounded after sampling raise it by their k3, which is below that of ENGINE.
    """
    least = window.least_excess
    if least is None or least.z < SURELY or least.value < ENGINE**2 / 2.0:
        return None
    key, smallest = window.key("weight_mean"), window.number("least_weight")
    return Found(
        slug="forwards-differ",
        score=WEAK,
        verdict="broken",
        side="recorder",
        message="The recorded distribution did not sample these tokens: else weights, whose upper "
        f"bound only lowers them, had a mean of 1 at most, and `{key}` is "
        f"{window.number('weight_mean'):.3g}. A lower bound adds no more than the smallest weight "
        f"(`{window.key('least_weight')}` {smallest:.2g}). So it is with log-probs before the "
        "temperature, a draft model's, or those of other tokens; weights do not correct that.",
        evidence=[
            window.fact("weight_mean", "above 1: the recorded distribution did not sample"),
            window.fact("least_weight", "no lower bound explains it"),
        ],
        also_possible=["temperature-raw-recorded", "draft-recorded", "shift-by-one"],
    )


def _kept_set(window: Window) -> Found | None:
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
            f"`{window.name_of_ratio}` is {1.0 - left_out:.3g}, so that k3 is {least:.2g} or more "
            f"by Jensen's inequality (k3 >= m - 1 - ln m for a mean ratio m), and "
            f"`{window.key('k3')}` is {k3:.2g}: the keys are of different tokens, or one of them "
            "is no mean over tokens.",
            [_of_ratio(window), window.fact("k3", "impossible beside this mean ratio")],
        )
    # Renormalised over a set with the probability q, a probability grows by 1 - q at most. Where
    # all tokens have the same q, k3 = q - 1 - ln q is less than 1 - q.
    largest, squares = window.number("prob_diff_max"), window.estimate("chi2_token")
    none_above_1 = squares is not None and squares.value <= excess.value  # ratio^2 <= ratio
    if (largest is not None and largest > CERTAIN) or (left_out < k3 and none_above_1):
        return _certain_tokens(window)
    if left_out < k3:
        return None
    if left_out > USUALLY_LEFT_OUT:
        return _divided_or_kept_set(window)
    return Found(
        slug="truncated-law",
        score=LIKELY,
        verdict="broken",
        message=f"`{window.name_of_ratio}` is {1.0 + excess.value:.3f}, below 1: the trainer gives "
        "part of its probability to tokens that the sampler's top-p, top-k or min-p left out, and "
        "the recorded log-probs are renormalised over the rest.",
        evidence=[
            _of_ratio(window, "the probability of the kept tokens"),
            _of_k1(window, "above k3"),
        ],
        side="recorder",
        also_possible=["top-p-renormalised", "top-k-renormalised", "min-p-renormalised", "penalty"],
    )


def _divided_or_kept_set(window: Window) -> Found:
    """Return log-probs divided by T and a narrow kept set as one answer: their means are alike.

    Renormalised over a set with the probability q, log-probs differ by ln q; divided by T instead
    of the logits, by the log of sum p^(1/T). Both are one number for each context, below 0.
    """
    ratio = _of_ratio(window, "less than a usual top-p, top-k or min-p leaves")
    return Found(
        slug="forwards-differ",
        score=WEAK,
        verdict="broken",
        message=f"`{window.name_of_ratio}` is {ratio['value']:.3f}, far below 1: log-probs of one "
        "side were divided by the temperature instead of the logits, or a narrow top-p, top-k or "
        "min-p left so much of the trainer's probability out. Means over tokens cannot tell which.",
        evidence=[ratio, _of_k1(window, "above k3")],
        also_possible=["log-probs-divided", "truncated-law", "top-p-renormalised"],
    )


def _certain_tokens(window: Window) -> Found:
    """Tokens whose recorded probability is about 1 where the trainer's is not."""
    shown = {
        "prob_diff_max": "the largest distance of both probabilities of a token",
        "chi2_token": "E[ratio^2] is below 1 as well",
    }
    keys = ", ".join(f"`{window.key(name)}`" for name in shown if window.series(name))
    return Found(
        slug="zero-placeholder",
        score=WEAK,
        verdict="broken",
        message=f"`{window.name_of_ratio}` is below 1, and ratios of single tokens are further "
        f"below than a kept set explains ({keys}): zeros are recorded where no log-prob is.",
        evidence=[
            *(window.fact(name, reads) for name, reads in shown.items() if window.series(name)),
            _of_k1(window, "above k3"),
        ],
        also_possible=["top-one-recorded", "truncated-law"],
    )


def _other_temperature(window: Window) -> Found | None:
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
    return Found(
        slug="trainer-without-temperature" if flatter else "sampler-ignores-temperature",
        score=WEAK,
        verdict="broken",
        message=f"The trainer's entropy over the surprisal of the sampled tokens "
        f"(`{window.key('entropy')}` / `{window.key('sampler_log_ppl')}`) went from {then:.2f} to "
        f"{now:.2f}: the two sides use different temperatures.",
        evidence=[
            window.fact("entropy", "of the trainer's distribution"),
            window.fact("sampler_log_ppl", "of the distribution that sampled"),
        ],
        also_possible=["sampler-ignores-temperature", "forwards-differ"],
    )


def _entropy_over_surprisal(window: Window) -> float | None:
    entropy, surprisal = window.number("entropy"), window.number("sampler_log_ppl")
    if entropy is None or surprisal is None or min(entropy, surprisal) <= 0.0:
        return None
    return entropy / surprisal


def _other_forward(window: Window) -> Found | None:
    """Report a mismatch beyond rounding whose cause means over tokens do not determine."""
    rms = window.rms
    names = [name for name in SIZES if window.number(name) is not None]
    if rms is not None and rms >= ENGINE:
        size = f"{rms:.2g} nats at a token (`{window.key_of_size}`)"
    elif names := _unlike_rounding(window):
        size = f"`{window.key(names[0])}` {window.number(names[0]):.3g}"
    else:
        return None
    excess, k1 = window.excess, window.k1
    known = excess is not None and (k1 is None or abs(k1.value) <= HEAVY)
    near = known and _is_near_1(window)
    below = near and _below_as_by_zeros(window)
    sampled = near and not below
    reads = "beyond the rounding of two engines"
    evidence = [window.fact(name, reads) for name in names] or [_of_k1(window, reads)]
    if excess is not None:
        far = "" if known else "a few tokens dominate it"
        near_it = "as zeros in place of log-probs make it" if below else "near it for this mismatch"
        evidence.append(_of_ratio(window, near_it if near else far))
    if below:
        return undecided(
            f"The two sides differ by {size}, beyond rounding, and the mean ratio is below 1 by "
            "more than chance: zeros may stand in place of a few log-probs, which weights do not "
            "correct, or top-p, top-k or min-p left some probability out.",
            evidence,
            ["zero-placeholder", "truncated-law", "weights-differ", "context-differs"],
        )
    if (rms or 0.0) > LARGEST_DRIFT:
        away = 0.0 if window.k1 is None else window.k1.value
        doubtless = away > BEYOND_DOUBT or (known and not near)
        return Found(
            slug="forwards-differ",
            score=WEAK if doubtless or sampled else GUESS,
            verdict="broken" if doubtless else "inconclusive",
            message=f"The two sides differ by {size}, more than stale weights explain: other "
            "contexts, another model, or columns that do not belong together.",
            evidence=evidence,
            also_possible=["context-differs", "shift-by-one", "rows-swapped", "reference-as-old"],
        )
    tail = (
        "importance weights are valid"
        if sampled
        else "the log does not show whether the recorded distribution sampled"
    )
    return Found(
        slug="forwards-differ",
        score=WEAK if sampled else GUESS,
        verdict="correctable" if sampled else "inconclusive",
        message=f"The two sides differ by {size}, beyond rounding, and {tail}: other weights, "
        "precision or contexts; means over tokens cannot tell which.",
        evidence=evidence,
        also_possible=["stale-weights", "weights-differ", "quantised-weights", "context-differs"],
    )


def _is_near_1(window: Window) -> bool:
    """Tell whether E[ratio] is 1 within its error, or away from it by a small share of k3."""
    excess = window.excess
    if excess is None:
        return False
    by_error = SURELY * excess.error if excess.error > 0 else 0.0
    return abs(excess.value) < max(OF_K3 * (window.rms or 1.0) ** 2 / 2.0, by_error)


def _below_as_by_zeros(window: Window) -> bool:
    """Tell whether E[ratio] is below 1 surely, and by the share of k3 that zeros leave at least."""
    excess, rms = window.excess, window.rms
    if excess is None or rms is None:
        return False
    return excess.z < -SURELY and -excess.value > OF_ZEROS * rms**2 / 2.0


def _unlike_rounding(window: Window) -> list[str]:
    """Return the quantities of probabilities that are further off than rounding brings them."""
    return [
        name
        for name, (most, _) in OF_ENGINE.items()
        if (value := window.number(name)) is not None and _unlike(name, np.array(value)) > most
    ]


def _unrelated(window: Window) -> Found | None:
    """Look for values that are not related although log-ratios are as small as rounding.

    Where nearly all tokens are certain, log-ratios are small at any token, exchanged ones too. Then
    the correlation of probabilities is small, or the mean |log_ratio| is near the most that it can
    be, the sum of both mean surprisals: |x - y| <= x + y for x and y of one sign.
    """
    pearson, rms, share = window.number("pearson"), window.rms, _share_of_surprisals(window)
    if rms is None or rms >= ENGINE:
        return None
    if pearson is not None and pearson <= RELATED:
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
        [evidence, _of_size(window, "no larger than rounding")],
        ["shift-by-one", "rows-swapped", "context-differs"],
    )


def _share_of_surprisals(window: Window) -> float | None:
    """Return the mean |log_ratio| over both mean surprisals; None where float32 rounds as much.

    The entropy stands for either: it is the mean surprisal of the tokens of its distribution.
    """
    size, entropy = window.number("abs_diff"), window.number("entropy")
    if size is None or entropy is None or entropy < LEAST_ENTROPY:
        return None
    return size / (2.0 * entropy)


def _other_weight(window: Window) -> Found | None:
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


def _costs_much(window: Window) -> Found | None:
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


def _rejects_some(window: Window) -> Found | None:
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


def _by_length(window: Window, name: str, value: float) -> bool:
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


def beyond_by_far(window: Window) -> Found | None:
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


def _of_by_far(window: Window) -> tuple[str, ...]:
    """Return the quantities by which log-ratios are beyond rounding by far."""
    found = []
    for name in (*SIZES, "k1", "log_ppl_diff", "log_ppl_abs_diff", "ratio_mean"):
        value = window.number(name)
        if value is None or (name == "ratio_mean" and not (window.has_ratio and value > 0.0)):
            continue
        if rms_of(name, np.array(value)) > BY_FAR * ENGINE:
            found.append(name)
    return tuple(found)


def _apart_in_the_mean(window: Window) -> float | None:
    """Return the distance of both mean surprisals, nats, where micro-batches do not explain it."""
    trainer, sampler = window.number("trainer_log_ppl"), window.number("sampler_log_ppl")
    if trainer is None or sampler is None:
        return None
    distance = abs(trainer - sampler)
    return distance if distance > MICRO_BATCHES * max(trainer, 1.0) else None


def _noise(window: Window) -> Found | None:
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
        name, key, value = "k1", window.key_of_k1, window.k1.value
    size = f"`{key}` is {value:.{4 if name == 'pearson' else 2}g}"
    if not value and (rounding := window.run.series[name].rounding):
        size = f"`{key}` is below {rounding:.2g}"
    means_alone = not of_tokens and "weight_mean" not in window.of_size
    evidence = [window.fact(one, "rounding") for one in of_tokens]
    if not of_tokens:
        evidence = [_of_k1(window, "rounding")]
    return Found(
        slug="engine-noise",
        score=GUESS if means_alone else CLEAR,
        verdict="inconclusive" if means_alone else None,
        message=f"{size}: on the mean no more than the rounding of two engines. A mean does not "
        "show tokens or rows that are exchanged, and the log has no size of single log-ratios."
        if means_alone
        else f"{size}: the size of the rounding of two engines.",
        evidence=evidence,
        also_possible=["shift-by-one", "rows-swapped"]
        if means_alone
        else ["bf16-logits", "healthy"],
    )


# In the order in which they are tried: the first one that a window shows is named.
LOG_CAUSES: tuple[Weigh, ...] = (
    _impossible_surprisals,
    _identical,
    _other_base,
    _worse_than_uniform,
    _other_tokens,
    _not_the_sampler,
    _weights_above_1,
    _kept_set,
    _other_temperature,
    _unrelated,
    _other_forward,
    _other_weight,
    _costs_much,
    _rejects_some,
    beyond_by_far,
    _noise,
)


def found_in(window: Window) -> Found | None:
    """Return the first cause that a window of steps shows; None if it has no mismatch metric."""
    return next((found for weigh in LOG_CAUSES if (found := weigh(window)) is not None), None)
