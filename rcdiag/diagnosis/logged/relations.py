"""Relations between the numbers of one log, as rules of the concern `log`.

If a relation fails, two keys are not of the same tokens, or one of them does not compare two
distributions. If it holds, causes can be ruled out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rcdiag.diagnosis.logged.causes.correction import (
    LEAST_WEIGHT,
    LEFT_ONE,
    mean_weight,
    said_of_weights,
)
from rcdiag.diagnosis.logged.causes.found import ENGINE, HEAVY, MICRO_BATCHES
from rcdiag.diagnosis.logged.causes.size import LEAST_LOG_PROB
from rcdiag.diagnosis.logged.window import RANGES, StepWindow
from rcdiag.diagnosis.rules import Rule
from rcdiag.diagnosis.thresholds import FEW, LARGE, ROUNDING
from rcdiag.results.guide import PROPOSAL, Guide

IDENTITY = "both are means over the same rows"
SAMPLED = "E[ratio] is 1 under the distribution that sampled"
# J. Fellman, Econometrica 44 (1976), 823: a change of x that grows with x, by a factor that falls
# with x, lowers the coefficient of variation.
BOUNDED = "bounds on weights never lower the ESS (Fellman, Econometrica 44, 1976)"
CERTAIN_POLICY = "first order in the error; sum of p^2 >= exp(-entropy) by Jensen's inequality"
IMPROBABLE = "J. Liu, Y. Li et al., When Speed Kills Stability, richardli.xyz/rl-collapse (2025)"
MARKOV = "Markov's inequality on k3 >= 0"


def _of_uniform(window: StepWindow) -> float | None:
    value = window.number("trainer_log_ppl")
    return None if value is None else value / math.log(window.run.known.vocabulary)


def _difference(window: StepWindow) -> float | None:
    left = window.estimate("trainer_log_ppl", "sampler_log_ppl", "log_ppl_diff")
    size = window.number("trainer_log_ppl")
    return None if left is None or size is None else abs(left.value) / max(abs(size), 1.0)


def _mean_ratio(window: StepWindow) -> float | None:
    return None if window.excess is None else 1.0 + window.excess.value


def _mean_weight(window: StepWindow) -> float | None:
    name = mean_weight(window)
    return None if name is None else window.number(name)


def _said_mean_ratio(window: StepWindow) -> str:
    assert window.excess is not None
    return (
        f"`{window.excess.key}` is {_mean_ratio(window):.4g}; it is about 1 if the recorded "
        f"distribution sampled, and about {1.0 + (window.rms or 0.0) ** 2:.4g} if the trainer's did"
    )


def _excess(window: StepWindow) -> float | None:
    """Return (E[ratio] - 1) / E[log_ratio^2].

    None where log-ratios are rounding, and where |k1| is so large that a few tokens make the mean
    ratio, and 2 k3 is not their mean square any more.
    """
    if window.excess is None or window.rms is None or window.rms < ENGINE:
        return None
    if window.k1 is not None and abs(window.k1.value) > HEAVY:
        return None
    return window.excess.value / window.rms**2


def _below_zero(name: str) -> Callable[[StepWindow], float | None]:
    return lambda window: None if (value := window.number(name)) is None else min(value, 0.0)


def _k3_below_zero(window: StepWindow) -> float | None:
    logged = window.k3_below_zero
    return logged if logged is not None else _below_zero("k3")(window)


def _out_of_range(window: StepWindow) -> dict[str, float]:
    return {name: value for name, value in window.impossible.items() if name != "k3"}


def _beyond_range(window: StepWindow) -> float | None:
    """Return by how much the number furthest out of its range is beyond the range's end."""
    beyond = []
    for name, value in _out_of_range(window).items():
        low, high = RANGES[window.run.series[name].quantity.unit]
        beyond.append(max(low - value, value - high))
    return max(beyond, default=None)


def _said_out_of_range(window: StepWindow) -> str:
    found = _out_of_range(window)
    several = [f"`{window.run.series[x].key}` ({value:.4g})" for x, value in found.items()]
    verb = "is" if len(several) == 1 else "are"
    beyond = (
        "above 1: in percent? Left out; divide by 100"
        if max(found.values()) > 1.0
        else ("lower than possible. Left out")
    )
    return f"{', '.join(several)} {verb} {beyond}"


def _largest(window: StepWindow) -> float | None:
    return None if window.largest is None else window.largest[1]


def _said_largest(window: StepWindow) -> str:
    assert window.largest is not None
    key, bound = window.largest
    beside = f", {bound / window.rms:.2g} times the rms log-ratio" if window.rms else ""
    return f"`{key}`: no token differs by more than {bound:.3g} nats{beside}"


def _of_certainty(window: StepWindow) -> float | None:
    """Return the entropy divided by the largest one that fits the mean surprisal."""
    entropy = window.number("entropy")
    surprisal = window.number("trainer_log_ppl")
    surprisal = window.number("sampler_log_ppl") if surprisal is None else surprisal
    if entropy is None or surprisal is None or surprisal <= 0.0:
        return None
    mean, of_all = math.exp(-surprisal), math.log(window.run.known.vocabulary)
    if entropy > of_all or surprisal >= of_all:  # such as a sum over tokens
        return None
    of_two = -mean * math.log(mean) - (1.0 - mean) * math.log1p(-mean)
    return entropy / (of_two + (1.0 - mean) * of_all)


def _gradient(window: StepWindow) -> float | None:
    """Return the factor of the gradient's norm where the mismatch grew beyond rounding."""
    before, now, then = window.before, window.number("grad_norm"), _before(window, "grad_norm")
    if before is None or before.rms is None or window.rms is None or now is None or not then:
        return None
    return now / then if before.rms < ENGINE <= window.rms else None


def _before(window: StepWindow, name: str) -> float | None:
    return None if window.before is None else window.before.number(name)


def _keys(window: StepWindow, *names: str) -> str:
    return " and ".join(f"`{window.key(name)}`" for name in names if window.series(name))


def _unlike(window: StepWindow) -> float | None:
    pearson = window.number("pearson")
    return None if pearson is None else 1.0 - pearson


def _raw_ess(window: StepWindow) -> float | None:
    """Return the ESS of raw ratios of tokens, E[ratio]^2 / E[ratio^2]."""
    ratio, chi2 = _mean_ratio(window), window.number("chi2_token")
    return None if ratio is None or chi2 is None or chi2 <= -1.0 else ratio**2 / (1.0 + chi2)


def _raw_over_applied(window: StepWindow) -> float | None:
    raw, ess = _raw_ess(window), window.number("ess")
    if raw is None or not ess or window.run.known.of_tokens is False:
        return None
    return raw / ess


def _over_least(window: StepWindow) -> float | None:
    ess, least = window.number("ess"), window.run.known.least_ess
    limits = least is not None and least > FEW  # a lower one is below any ESS of a usable run
    return ess / least if ess is not None and least is not None and limits else None


def _beyond_bounds(window: StepWindow) -> float | None:
    """Return the least k3 that the shares beyond the bounds imply, divided by the logged k3."""
    k3, known = window.number("k3"), window.run.known
    if not k3 or known.of_tokens is not True:
        return None
    least, found = 0.0, False
    for name, bound in (("share_above", known.upper), ("share_below", known.lower)):
        share = window.number(name)
        if share is not None and bound:
            least, found = least + share * (bound - 1.0 - math.log(bound)), True
    return least / k3 if found else None


def _against_veto(window: StepWindow) -> float | None:
    """Return the share of steps in which the least ratio and the veto contradict each other."""
    veto, least, share = window.run.known.veto, window.values("least_ratio"), window.values("veto")
    if veto is None or not len(least) or len(least) != len(share):
        return None
    return float(np.mean((least < veto) != (share > 0.0)))


LOG_RULES: tuple[Rule[StepWindow], ...] = (
    Rule(
        name="log.mean-weight",
        says="Mean of the weights that multiply the loss. Ratios have the mean 1, and bounds lower "
        "it: at .06 an update is as small as one with a learning rate 17 times smaller. Weights of "
        "tokens have a mean of exp(-mean |log_ratio|) or more; products over long responses fall "
        "far below it, however small the mismatch of a token is.",
        formula="mean weight >= exp(-E|log_ratio|) for weights of tokens",
        unit="ratio",
        guide=Guide(
            warning=1.0 - LEFT_ONE,
            error=LEAST_WEIGHT,
            source=f"{PROPOSAL}: ratios have the mean 1; Jensen's inequality",
        ),
        value=_mean_weight,
        message=said_of_weights,
    ),
    Rule(
        name="log.mean-ratio",
        says="Distance of the logged mean ratio, 1 + k3 - k1, from 1, divided by the mean squared "
        "log-ratio. About 0 where the recorded distribution sampled. Far below 0, the recorded "
        "log-probs are renormalised over a kept set. Far above 0, the tokens came from another "
        "distribution, or the columns belong to other tokens. Unknown above .7 nats of KL, where "
        "single tokens dominate it.",
        formula="(E[ratio] - 1) / E[log_ratio^2] = (k3_kl - kl) / (2 k3_kl)",
        direction="log_ratio = trainer - sampler",
        unit="share",
        guide=Guide(warning=0.25, error=0.5, around=0.0, source=f"{PROPOSAL}: {SAMPLED}"),
        value=_excess,
        message=_said_mean_ratio,
    ),
    Rule(
        name="log.uniform-guess",
        says="The trainer's mean surprisal divided by ln(vocabulary), that of a uniform guess. "
        "Above 1 the trainer is worse than a guess: its forward pass is broken, or its log-probs "
        "belong to other tokens.",
        formula="training_log_ppl / ln(vocabulary)",
        unit="share",
        guide=Guide(warning=0.5, error=1.0, source=PROPOSAL),
        value=_of_uniform,
        message=lambda window: (
            f"`{window.key('trainer_log_ppl')}` is "
            f"{window.number('trainer_log_ppl'):.3g} nats, {_of_uniform(window):.0%} of a uniform "
            "guess"
        ),
    ),
    Rule(
        name="log.surprisals-and-difference",
        says="The logged difference of surprisals equals that of the two logged means if all three "
        "are over the same rows. Means over micro-batches, or over other batches, differ.",
        formula="|training_log_ppl - rollout_log_ppl - log_ppl_diff| / the larger of them, or 1",
        unit="share",
        guide=Guide(warning=ROUNDING, error=MICRO_BATCHES, source=f"{PROPOSAL}: {IDENTITY}"),
        value=_difference,
        message=lambda window: (
            f"`{window.key('log_ppl_diff')}` is the difference of both surprisals"
            if (_difference(window) or 0.0) < ROUNDING
            else f"`{window.key('log_ppl_diff')}` deviates from the difference of both surprisals "
            f"by {_difference(window):.1%}"
        ),
    ),
    Rule(
        name="log.ess-and-chi-squared",
        says="The ESS of raw ratios, from the logged chi-squared, divided by the logged ESS of the "
        "applied weights. Bounds on weights raise the ESS, so the quotient is 1 at most; far below "
        "1 the bounds hide a mismatch. Above 1 the two keys are of different tokens, or the "
        "weights are of responses.",
        formula="(E[ratio]^2 / (1 + chi2_token)) / rollout_is_eff_sample_size <= 1",
        unit="ratio",
        guide=Guide(warning=1.0 + MICRO_BATCHES, error=math.inf, source=f"{PROPOSAL}: {BOUNDED}"),
        value=_raw_over_applied,
        message=lambda window: (
            f"`{window.key('ess')}` is {window.number('ess'):.3g}; raw ratios have "
            f"{_raw_ess(window):.3g} by `{window.key('chi2_token')}`"
        ),
    ),
    Rule(
        name="log.least-ess",
        says="The logged ESS divided by the smallest ESS that is possible with the run's bounds, "
        "where weights are clipped from both sides. At 1 the ESS shows only that the mismatch is "
        "large; below 1 the run has other bounds than its configuration.",
        formula="rollout_is_eff_sample_size / (4 lower upper / (lower + upper)^2) >= 1",
        unit="ratio",
        guide=Guide(warning=1.1, error=0.98, source=f"{PROPOSAL}: Kantorovich's inequality"),
        value=_over_least,
        message=lambda window: (
            f"`{window.key('ess')}` is {window.number('ess'):.3g}, and cannot be below "
            f"{window.run.known.least_ess:.3g} with the run's bounds"
        ),
    ),
    Rule(
        name="log.share-beyond-bounds",
        says="Each token beyond a bound has at least the k3 of the bound. If that sums to more "
        "than the logged k3, the shares and k3 are of different tokens, or the bounds are not "
        "those of the run.",
        formula="(share_above k3(upper) + share_below k3(lower)) / k3_kl <= 1, "
        "k3(x) = x - 1 - ln x",
        unit="share",
        guide=Guide(warning=1.0 + MICRO_BATCHES, error=1.5, source=f"{PROPOSAL}: {MARKOV}"),
        value=_beyond_bounds,
        message=lambda window: (
            f"tokens beyond the bounds ({_keys(window, 'share_above', 'share_below')}) have at "
            f"least {_beyond_bounds(window):.2g} times the k3 that `{window.key('k3')}` says"
        ),
    ),
    Rule(
        name="log.veto-and-least-ratio",
        says="A veto rejects a response exactly if the least ratio of its tokens is below the "
        "veto.",
        formula="share of steps with (least ratio < veto) != (veto share > 0)",
        unit="share",
        guide=Guide(warning=0.01, error=0.5, source=f"{PROPOSAL}: the veto's definition"),
        value=_against_veto,
        message=lambda window: (
            f"`{window.key('veto')}` and `{window.key('least_ratio')}` contradict each other in "
            f"{_against_veto(window):.0%} of the steps"
        ),
    ),
    Rule(
        name="log.k3-below-zero",
        says="No token has a k3 below 0, so a negative mean is not a k3.",
        formula="ratio - 1 - log_ratio >= 0",
        unit="nats",
        guide=Guide(warning=-1e-9, error=-1e-6, source="x - 1 - ln x >= 0"),
        value=_k3_below_zero,
        message=lambda window: (
            f"`{window.run.series['k3'].key}` is "
            f"{window.k3_below_zero or window.number('k3') or 0.0:.3g}"
        ),
    ),
    Rule(
        name="log.out-of-range",
        says="How far a share, probability or correlation is beyond what it can be. One above 1 "
        "may be in percent; it is left out of the judgement.",
        formula="0 <= share <= 1, 0 <= probability <= 1, -1 <= correlation <= 1",
        unit="none",
        guide=Guide(warning=ROUNDING, error=ROUNDING, source="their definitions"),
        value=_beyond_range,
        message=_said_out_of_range,
    ),
    Rule(
        name="log.error-of-logits",
        says="The least error of logits that explains the mismatch. An error of s nats in each "
        "logit gives the log-prob of a token a variance of s^2 (1 - 2 p + sum of p^2), on average "
        "over the policy's tokens s^2 (1 - sum of p^2), which is s^2 (1 - exp(-entropy)) at most: "
        "where the policy is certain, no error shows. So the mismatch of rounding shrinks as "
        "entropy collapses, and one that stays or grows then is more than rounding, however small "
        "k3 is. bfloat16 rounds logits of 16 to 32 to steps of .125.",
        formula="sqrt(2 k3_kl / (1 - exp(-entropy)))",
        unit="nats",
        guide=Guide(warning=0.125, error=1.0, source=f"{PROPOSAL}: {CERTAIN_POLICY}"),
        value=lambda window: window.error_of_logits,
        message=lambda window: (
            f"`{window.key_of_size}` is {window.number(window.of_size[0]):.2g} with "
            f"`{window.key('entropy')}` at {window.number('entropy'):.2g}: logits differ by "
            f"{window.error_of_logits:.2g} nats or more"
        ),
    ),
    Rule(
        name="log.largest-log-ratio",
        says="The largest |log-ratio| of a single token. Among N log-ratios from one normal "
        "distribution it is about sqrt(2 ln N) times the rms: 4 for 3,000 tokens, 5 for 300,000. "
        "If it is far larger, a few tokens have another cause than the rest: the rounding of "
        "uncertain tokens, or wrong log-probs, each of which adds its k3 / N to the mean. If it is "
        "below the mean surprisal, no log-prob is a placeholder of 0, and no tokens are exchanged.",
        formula="max |log_ratio| of a token; sqrt(2 v) + v for a largest k3 of v",
        unit="nats",
        guide=Guide(warning=LARGE, error=LEAST_LOG_PROB, source=PROPOSAL),
        value=_largest,
        message=_said_largest,
    ),
    Rule(
        name="log.entropy-and-surprisal",
        says="The trainer's entropy divided by the largest entropy that fits the mean surprisal s: "
        "the sampled tokens have a mean probability m of at least exp(-s), and the entropy is "
        "largest if the rest is uniform. Above 1, entropy and log-probs are of different "
        "distributions, or the distribution is broken.",
        formula="entropy / (h(m) + (1 - m) ln(vocabulary)), m = exp(-mean surprisal), "
        "h(m) = -m ln m - (1 - m) ln(1 - m)",
        unit="share",
        guide=Guide(warning=0.9, error=1.0, source=f"{PROPOSAL}: Fano's and Jensen's inequality"),
        value=_of_certainty,
        message=lambda window: (
            f"`{window.key('entropy')}` is {window.number('entropy'):.3g}, "
            f"{_of_certainty(window):.0%} of what the surprisal of the tokens leaves possible"
        ),
    ),
    Rule(
        name="log.gradient-and-mismatch",
        says="The factor by which the gradient norm changes when the mismatch grows beyond "
        "rounding. In a decoupled update the recorded log-probs enter the gradient only through "
        "the weights; truncated at 2, these at most double its noise. A larger factor means that "
        "the sampled tokens or the trainer's forward pass changed too: tokens that the trainer "
        "finds improbable have large gradients. With a factor near 1, the recorded log-probs or "
        "the sampler changed.",
        formula="grad_norm / grad_norm of the steps before",
        unit="ratio",
        guide=Guide(warning=2.0, error=math.inf, source=f"{PROPOSAL}: {IMPROBABLE}"),
        value=_gradient,
        message=lambda window: (
            f"`{window.key('grad_norm')}` is {window.number('grad_norm'):.2g}, "
            f"and was {_before(window, 'grad_norm'):.2g} in the steps before"
        ),
    ),
    Rule(
        name="log.surprisal-below-zero",
        says="A mean surprisal cannot be negative: if it is, the log-probs have the wrong sign, or "
        "are probabilities.",
        formula="-mean(log-prob) >= 0",
        unit="nats",
        guide=Guide(warning=-1e-9, error=-1e-6, source="a probability is 1 at most"),
        value=_below_zero("sampler_log_ppl"),
        message=lambda window: (
            f"`{window.key('sampler_log_ppl')}` is {window.number('sampler_log_ppl'):.3g}"
        ),
    ),
    Rule(
        name="log.chi-squared",
        says="E[ratio^2] - 1 of tokens is at least E[ratio]^2 - 1, and so not below 0 if the "
        "recorded distribution sampled. Far below 0 the recorded log-probs are renormalised over a "
        "kept set, or the ratios are nearly 0.",
        formula="E[ratio^2] >= E[ratio]^2 = 1",
        unit="none",
        guide=Guide(warning=-0.02, error=-0.2, source=PROPOSAL),
        value=_below_zero("chi2_token"),
        message=lambda window: f"`{window.key('chi2_token')}` is {window.number('chi2_token'):.3g}",
    ),
    Rule(
        name="log.chi-squared-of-responses",
        says="E[ratio^2] - 1 of whole responses. Means of few responses fall below 0 where single "
        "ones dominate the expectation; at -1 the ratios of all responses are 0, so that weights "
        "of responses leave nothing to train on.",
        formula="E[ratio^2] - 1 of responses; -1 if all ratios are 0",
        unit="none",
        guide=Guide(warning=-0.5, error=-0.99, source=PROPOSAL),
        value=_below_zero("chi2_seq"),
        message=lambda window: (
            f"`{window.key('chi2_seq')}` is {window.number('chi2_seq'):.3g}: "
            f"E[ratio^2] of responses is {1.0 + (window.number('chi2_seq') or 0.0):.2g}"
        ),
    ),
    Rule(
        name="log.unlike-probabilities",
        says="One minus the correlation of both probabilities over tokens: about 1 if tokens are "
        "shifted or rows exchanged, below .005 with rounding alone.",
        formula="1 - rollout_actor_probs_pearson_corr",
        unit="correlation",
        guide=Guide(warning=0.01, error=0.1, source=PROPOSAL),
        value=_unlike,
        message=lambda window: f"`{window.key('pearson')}` is {window.number('pearson'):.4g}",
    ),
)
