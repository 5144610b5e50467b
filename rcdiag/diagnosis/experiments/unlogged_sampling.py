"""Compares the distribution that sampled the tokens with those of the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.experiments.fit import Estimate
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side
from rcdiag.diagnosis.experiments.sampling_estimates import (
    foreign_tokens,
    support_of_tokens,
    temperature_of_tokens,
)

Named = tuple[str, Suspicion]  # slug of a cause, and what speaks for it

FEWEST = 100  # tokens in unsure contexts that tell of a temperature
UNSURE_OF_TEMPERATURE = 0.03
SURE_OF_TWO, OF_NEITHER = (
    0.97,
    0.75,
)  # confidence at most, and where tokens are of neither distribution
OFF_ERRORS = 4.0  # standard errors from a temperature that are no chance
SPANS_EXPLAIN = 0.3  # distance in temperature that is left without spans of foreign tokens


def make_suspicion(
    confidence: float, message: str, evidence: Sequence[dict[str, Any]], **more: Any
) -> Suspicion:
    """Make a suspicion from positional arguments."""
    return Suspicion(confidence=confidence, message=message, evidence=evidence, **more)


def cause_in_sampling(
    sample: RescoredSample, sides: Sequence[Side]
) -> tuple[Estimate | None, Named | None]:
    """Return the temperature of the tokens, and the cause that it shows; None for what is unknown.

    The columns' temperatures are those at which the trainer's model explains them.
    """
    sampler = next((side for side in sides if side.name == "sampler"), None)
    trainer = next((side for side in sides if side.name == "trainer"), None)
    if len(sample.distribution) < FEWEST:
        return None, None
    tokens = temperature_of_tokens(sample.distribution)
    if sampler is None or not sampler.explained:
        return tokens, None
    recorded = float(np.median(sampler.temperature))
    # Few values that nothing explains do not hide the temperature of all others.
    near = trainer is not None and trainer.residual.within(sample.noise)
    trained = float(np.median(trainer.temperature)) if trainer is not None and near else None
    evidence = [
        {
            "name": "temperature of the tokens",
            "low": tokens.low,
            "value": tokens.value,
            "high": tokens.high,
            "reads": "estimated by maximum likelihood",
        },
        {
            "name": "temperature of the columns",
            sampler.policy: recorded,
            **({} if trainer is None or trained is None else {trainer.policy: trained}),
            "reads": "at which the model explains the column",
        },
    ]
    if trained is not None and abs(np.log(trained / recorded)) > 0.02:
        return tokens, _columns_differ(sample, tokens, recorded, trained, evidence)
    return tokens, _columns_agree(sample, tokens, recorded, evidence)


def _written(tokens: Estimate) -> str:
    return f"T = {tokens.value:.2f} ({tokens.low:.2f} to {tokens.high:.2f})"


def _columns_differ(
    sample: RescoredSample,
    tokens: Estimate,
    recorded: float,
    trained: float,
    evidence: Sequence[dict[str, Any]],
) -> Named:
    """Name the cause where sampler's and trainer's columns are of two temperatures.

    The confidence is the posterior of the two temperatures given the tokens; it is lowered if the
    tokens fit neither.
    """
    at = _written(tokens)
    likelier = float(
        (sample.distribution.log_prob_at(trained) - sample.distribution.log_prob_at(recorded)).sum()
    )
    sure = min(1.0 / (1.0 + np.exp(-abs(likelier))), SURE_OF_TWO)
    nearer = trained if likelier > 0 else recorded
    off = abs(tokens.value - nearer) - OFF_ERRORS * (tokens.high - tokens.value) / 1.96
    if off > UNSURE_OF_TEMPERATURE:
        sure = min(sure, OF_NEITHER)
    if likelier > 0:
        slug = "temperature-raw-recorded"
        words = f"Tokens were sampled at {at}; the recorded log-probs are of T = {recorded:.2f}"
    elif abs(recorded - 1.0) < 0.02:
        slug = "sampler-ignores-temperature"
        words = (
            f"Tokens were sampled at {at} and recorded so; the trainer divides its logits by "
            f"{trained:.2f}"
        )
    else:
        slug = "trainer-without-temperature"
        words = (
            f"Tokens were sampled at {at} and recorded so; the trainer's log-probs are of "
            f"T = {trained:.2f}"
        )
    return slug, make_suspicion(sure, f"{words}.", evidence)


def _columns_agree(
    sample: RescoredSample, tokens: Estimate, recorded: float, evidence: Sequence[dict[str, Any]]
) -> Named | None:
    """Name sampling parameters that neither column has, so that no mismatch shows."""
    kept = support_of_tokens(sample.distribution, recorded)
    gain_of_temperature = float(
        sample.distribution.log_prob_at(tokens.value).sum()
        - sample.distribution.log_prob_at(recorded).sum()
    )
    strict = kept.gain > 12.0 and kept.outside <= 0.2 * kept.expected
    if strict and kept.gain > gain_of_temperature + 4.0:
        return "top-p-silent", make_suspicion(
            0.9,
            f"Tokens were sampled with {kept.rule} {kept.value:g}: {kept.outside} of them "
            f"lie outside, where {kept.expected:.0f} are to be expected; the log-probs are "
            "of the whole distribution.",
            [
                {
                    "name": kept.rule,
                    "value": kept.value,
                    "outside": kept.outside,
                    "expected": kept.expected,
                    "reads": "recovered from the tokens",
                }
            ],
        )
    error = max((tokens.high - tokens.value) / 1.96, 1e-4)
    other = abs(tokens.value - recorded)
    if not (other > UNSURE_OF_TEMPERATURE and other / error > 4.0 and gain_of_temperature > 10.0):
        return None
    foreign = foreign_tokens(sample.reading.log_prob, sample.reading.entropy, sample.owner)
    foreign &= sample.usable
    without = temperature_of_tokens(sample.distribution.take(~foreign[sample.distribution_at]))
    if foreign.any() and abs(without.value - recorded) < SPANS_EXPLAIN * other:
        return _masked_in(sample, foreign, without, _written(tokens))
    return "temperature-silent", make_suspicion(
        0.93,
        f"Tokens were sampled at {_written(tokens)}; the columns are of T = {recorded:.2f} and "
        "agree with each other, so no mismatch shows.",
        evidence,
    )


def _masked_in(sample: RescoredSample, foreign: np.ndarray, without: Estimate, at: str) -> Named:
    """Name `mask-includes-tool` if spans of foreign tokens alone explain the higher temperature."""
    share = float(foreign.sum() / sample.usable.sum())
    rows = len(np.unique(sample.owner[foreign])) / len(sample.rows)
    return "mask-includes-tool", make_suspicion(
        0.85,
        f"{share:.1%} of the tokens stand in spans that the model would hardly sample, and the "
        f"mask takes them in; without them the tokens are of T = {without.value:.2f}, with them of "
        f"{at}.",
        [
            {
                "name": "tokens in spans of high surprisal",
                "value": share,
                "reads": "not sampled by the policy",
            }
        ],
        side="recorder",
        share_of_rows=rows,
    )
