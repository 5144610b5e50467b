"""Relations that hold between the numbers of one log, as rules of the concern `log`.

A relation that fails says that two keys are not of the same tokens, or that one of them is no
number of two distributions. One that holds rules causes out.
"""

from __future__ import annotations

import math

from rcdiag.diagnosis.logged.causes import ENGINE, LARGEST_VOCABULARY
from rcdiag.diagnosis.logged.window import Window
from rcdiag.diagnosis.rules import Rule
from rcdiag.results.guide import PROPOSAL, Guide

IDENTITY = "both are means over the same rows"
SAMPLED = "E[ratio] is 1 under the distribution that sampled"
# Surprisals of float32 agree to this; trainers that average micro-batches differ by more.
ROUNDING, MICRO_BATCHES = 1e-3, 0.05


def _of_uniform(window: Window) -> float | None:
    value = window.number("trainer_log_ppl")
    vocabulary = int(window.given.get("vocab_size", LARGEST_VOCABULARY))
    return None if value is None else value / math.log(vocabulary)


def _difference(window: Window) -> float | None:
    left = window.estimate("trainer_log_ppl", "sampler_log_ppl", "log_ppl_diff")
    size = window.number("trainer_log_ppl")
    return None if left is None or size is None else abs(left.value) / max(abs(size), 1.0)


def _mean_ratio(window: Window) -> float | None:
    return None if window.excess is None else 1.0 + window.excess.value


def _excess(window: Window) -> float | None:
    """Return E[ratio] - 1 over E[log_ratio^2]; None at the size of rounding."""
    if window.excess is None or window.rms is None or window.rms < ENGINE:
        return None
    return window.excess.value / window.rms**2


def _below_zero(name: str) -> object:
    return lambda window: None if (value := window.number(name)) is None else min(value, 0.0)


def _unlike(window: Window) -> float | None:
    pearson = window.number("pearson")
    return None if pearson is None else 1.0 - pearson


LOG_RULES: tuple[Rule[Window], ...] = (
    Rule(
        name="log.mean-ratio",
        says="How far the mean ratio of a log, 1 + k3 - k1, is from 1, over the size of the "
        "mismatch. About 0 where the recorded distribution sampled. Far below: the sampler kept a "
        "set of tokens and renormalised. Far above: the tokens came from another distribution, or "
        "the columns belong to other tokens. Above .7 nats of KL single tokens rule it.",
        formula="(E[ratio] - 1) / E[log_ratio^2] = (k3_kl - kl) / (2 k3_kl)",
        direction="log_ratio = trainer - sampler",
        unit="share",
        guide=Guide(warning=0.25, error=0.5, around=0.0, source=f"{PROPOSAL}: {SAMPLED}"),
        value=_excess,
        message=lambda window: (
            f"`{window.name_of_ratio}` is {_mean_ratio(window):.4g}, "
            f"{_excess(window):.2g} of E[log_ratio^2] away from 1"
        ),
    ),
    Rule(
        name="log.uniform-guess",
        says="The trainer's mean surprisal over that of a uniform guess among the tokens of the "
        "vocabulary. Above 1 the trainer is worse than a guess: its forward pass is broken, or its "
        "log-probs belong to other tokens.",
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
        says="The logged difference of surprisals is that of the two logged means, where all three "
        "are of the same rows. Means of micro-batches, or keys of other batches, are not.",
        formula="|training_log_ppl - rollout_log_ppl - log_ppl_diff| / the larger of them, or 1",
        unit="share",
        guide=Guide(warning=ROUNDING, error=MICRO_BATCHES, source=f"{PROPOSAL}: {IDENTITY}"),
        value=_difference,
        message=lambda window: (
            f"`{window.key('log_ppl_diff')}` is off the difference of both "
            f"surprisals by {_difference(window):.2g}"
        ),
    ),
    Rule(
        name="log.k3-below-zero",
        says="No token has a k3 below 0, so that a mean below 0 is no k3.",
        formula="ratio - 1 - log_ratio >= 0",
        unit="nats",
        guide=Guide(warning=-1e-9, error=-1e-6, source="x - 1 - ln x >= 0"),
        value=_below_zero("k3"),  # type: ignore[arg-type]
        message=lambda window: f"`{window.key('k3')}` is {window.number('k3'):.3g}",
    ),
    Rule(
        name="log.surprisal-below-zero",
        says="A mean surprisal is never below 0: log-probs of a log have another sign, or are "
        "probabilities.",
        formula="-mean(log-prob) >= 0",
        unit="nats",
        guide=Guide(warning=-1e-9, error=-1e-6, source="a probability is 1 at most"),
        value=_below_zero("sampler_log_ppl"),  # type: ignore[arg-type]
        message=lambda window: (
            f"`{window.key('sampler_log_ppl')}` is {window.number('sampler_log_ppl'):.3g}"
        ),
    ),
    Rule(
        name="log.chi-squared",
        says="E[ratio^2] - 1 is at least E[ratio]^2 - 1, and so not below 0 where the recorded "
        "distribution sampled. Far below 0 the recorded log-probs are renormalised over a kept "
        "set, or the sequences' ratios vanish: -1 means that all are 0.",
        formula="E[ratio^2] >= E[ratio]^2 = 1",
        unit="none",
        guide=Guide(warning=-0.02, error=-0.2, source=PROPOSAL),
        value=_below_zero("chi2_token"),  # type: ignore[arg-type]
        message=lambda window: f"`{window.key('chi2_token')}` is {window.number('chi2_token'):.3g}",
    ),
    Rule(
        name="log.unlike-probabilities",
        says="One minus the correlation of both probabilities over tokens, which a shift or an "
        "exchange of rows brings to 1, and rounding leaves below .005.",
        formula="1 - rollout_actor_probs_pearson_corr",
        unit="correlation",
        guide=Guide(warning=0.01, error=0.1, source=PROPOSAL),
        value=_unlike,
        message=lambda window: f"`{window.key('pearson')}` is {window.number('pearson'):.4g}",
    ),
)
