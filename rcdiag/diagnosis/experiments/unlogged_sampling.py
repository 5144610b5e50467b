"""Compares the distribution that sampled the tokens with those of the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rcdiag.diagnosis.causes.cause import Suspicion, fact
from rcdiag.diagnosis.experiment_fit import ExperimentFit
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side
from rcdiag.diagnosis.experiments.sampling_estimates import (
    foreign_tokens,
    support_of_tokens,
    temperature_of_tokens,
)
from rcdiag.diagnosis.experiments.sides import fit_of_side
from rcdiag.diagnosis.thresholds import A_POWER, DECISIVE, FEWEST, PART, SURELY, WITH_A_CHOICE
from rcdiag.diagnosis.validity import Interval
from rcdiag.statistics.metrics.tail import NORMAL_REACH


def make_suspicion(
    slug: str, fit: ExperimentFit, message: str, evidence: Sequence[dict[str, Any]], **more: Any
) -> Suspicion:
    """Make the suspicion of an experiment; its confidence is later computed from `fit`."""
    return Suspicion(slug=slug, confidence=0.0, fit=fit, message=message, evidence=evidence, **more)


def cause_in_sampling(
    sample: RescoredSample, sides: Sequence[Side]
) -> tuple[Interval | None, Suspicion | None]:
    """Return the temperature of the tokens, and the cause that follows from it; None if unknown.

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
    # A few unexplained values do not hide the temperature of all others.
    near = trainer is not None and trainer.residual.within(sample.noise)
    trained = float(np.median(trainer.temperature)) if trainer is not None and near else None
    columns = {sampler.policy: recorded}
    if trainer is not None and trained is not None:
        columns[trainer.policy] = trained
    evidence = [
        fact(
            "temperature of the tokens",
            "estimated by maximum likelihood",
            low=tokens.low,
            value=tokens.value,
            high=tokens.high,
        ),
        fact("temperature of the columns", "at which the model explains the column", **columns),
    ]
    if trained is not None and abs(np.log(trained / recorded)) > A_POWER:
        return tokens, _columns_differ(sample, sampler, tokens, recorded, trained, evidence)
    return tokens, _columns_agree(sample, sampler, tokens, recorded, evidence)


def _written(tokens: Interval) -> str:
    return f"T = {tokens.value:.2f} ({tokens.low:.2f} to {tokens.high:.2f})"


def _z_of(nats: float) -> float:
    """Return sign(nats) * sqrt(2 |nats|), a difference of log-likelihoods in standard errors."""
    return float(np.sign(nats) * np.sqrt(2.0 * abs(nats)))


def _columns_differ(
    sample: RescoredSample,
    sampler: Side,
    tokens: Interval,
    recorded: float,
    trained: float,
    evidence: Sequence[dict[str, Any]],
) -> Suspicion:
    """Name the cause where sampler's and trainer's columns have two temperatures.

    The evidence is the log-likelihood ratio of the tokens at these two temperatures, and how near
    the tokens' own temperature is to the better one, as a share of the distance between the two.
    """
    at = _written(tokens)
    likelier = float(
        (sample.distribution.log_prob_at(trained) - sample.distribution.log_prob_at(recorded)).sum()
    )
    nearer = trained if likelier > 0 else recorded
    if likelier > 0:
        slug = "temperature-raw-recorded"
        words = f"Tokens were sampled at {at}; the recorded log-probs are of T = {recorded:.2f}"
    elif abs(np.log(recorded)) < A_POWER:
        slug = "sampler-ignores-temperature"
        words = (
            f"Tokens were sampled at {at} and recorded at that temperature; the trainer divides "
            f"its logits by {trained:.2f}"
        )
    else:
        slug = "trainer-without-temperature"
        words = (
            f"Tokens were sampled at {at} and recorded at that temperature; the trainer's "
            f"log-probs are of T = {trained:.2f}"
        )
    off = max(abs(tokens.value - nearer) - SURELY * _error(tokens), 0.0)
    explained = 1.0 - off / abs(trained - recorded)
    z = _z_of(abs(likelier))
    fit = fit_of_side(sample, sampler, "tokens", explained=explained, z=z)
    return make_suspicion(slug, fit, f"{words}.", evidence)


def _error(tokens: Interval) -> float:
    """Return the standard error of an estimated temperature."""
    return max((tokens.high - tokens.value) / NORMAL_REACH, 1e-4)


def _columns_agree(
    sample: RescoredSample,
    sampler: Side,
    tokens: Interval,
    recorded: float,
    evidence: Sequence[dict[str, Any]],
) -> Suspicion | None:
    """Name sampling parameters that neither column contains, so that there is no mismatch."""
    kept = support_of_tokens(sample.distribution, recorded)
    gain_of_temperature = float(
        sample.distribution.log_prob_at(tokens.value).sum()
        - sample.distribution.log_prob_at(recorded).sum()
    )
    # Engine noise moves a part of the expected number of tokens out of the kept set.
    strict = kept.gain > WITH_A_CHOICE and kept.outside <= PART * kept.expected
    ahead = kept.gain - gain_of_temperature
    if strict and ahead > DECISIVE:
        fit = fit_of_side(
            sample,
            sampler,
            "tokens",
            explained=1.0 - kept.outside / kept.expected,
            z=_z_of(kept.gain),
            lead=_z_of(ahead),
        )
        message = (
            f"Tokens were sampled with {kept.rule} {kept.value:g}: {kept.outside} of them lie "
            f"outside the kept set, where {kept.expected:.0f} are expected without it; the "
            "log-probs are of the whole distribution."
        )
        found = fact(
            kept.rule,
            "recovered from the tokens",
            value=kept.value,
            outside=kept.outside,
            expected=kept.expected,
        )
        return make_suspicion("top-p-silent", fit, message, [found])
    other, errors = abs(tokens.value - recorded), abs(tokens.value - recorded) / _error(tokens)
    certain = errors > SURELY and gain_of_temperature > WITH_A_CHOICE
    if abs(np.log(tokens.value / recorded)) <= A_POWER or not certain:
        return None
    foreign = foreign_tokens(sample.reading.log_prob, sample.reading.entropy, sample.owner)
    foreign &= sample.usable
    without = temperature_of_tokens(sample.distribution.take(~foreign[sample.distribution_at]))
    share_left = abs(without.value - recorded) / other
    if foreign.any() and share_left < PART:
        fit = fit_of_side(sample, sampler, "tokens", explained=1.0 - share_left, z=errors)
        return _unmasked_tools(sample, fit, foreign, without, _written(tokens))
    fit = fit_of_side(
        sample, sampler, "tokens", explained=1.0, z=errors, lead=_z_of(max(-ahead, 0.0))
    )
    return make_suspicion(
        "temperature-silent",
        fit,
        f"Tokens were sampled at {_written(tokens)}; the columns are of T = {recorded:.2f} and "
        "agree with each other, so that there is no mismatch.",
        evidence,
    )


def _unmasked_tools(
    sample: RescoredSample, fit: ExperimentFit, foreign: np.ndarray, without: Interval, at: str
) -> Suspicion:
    """Name `mask-includes-tool` if spans of foreign tokens alone explain the higher temperature."""
    share = float(foreign.sum() / sample.usable.sum())
    rows = len(np.unique(sample.owner[foreign])) / len(sample.rows)
    message = (
        f"{share:.1%} of the tokens are in spans that the model would hardly sample, and the mask "
        f"counts them as sampled; without them the tokens have T = {without.value:.2f}, with them "
        f"{at}."
    )
    found = fact("tokens in spans of high surprisal", "not sampled by the policy", value=share)
    return make_suspicion(
        "mask-includes-tool", fit, message, [found], side="recorder", share_of_rows=rows
    )
