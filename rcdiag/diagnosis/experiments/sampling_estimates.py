"""Estimates of sampling parameters from the sampled tokens themselves.

If recorder and trainer both use temperature 1 without kept sets, their columns agree whatever the
sampler did. But under the distribution that sampled, E[-log p] equals the entropy, and the
likelihood of the tokens is largest at their temperature.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Counts, Flags
from rcdiag.diagnosis.experiments.fit import golden
from rcdiag.diagnosis.experiments.trainer_distribution import (
    Ranked,
    TrainerDistribution,
    log_prob_variance,
    scaled,
)
from rcdiag.diagnosis.thresholds import ALL, FEWEST_OF_PATTERN, RARE
from rcdiag.diagnosis.validity import Interval
from rcdiag.statistics.metrics.tail import NORMAL_REACH


def foreign_tokens(log_prob: Array, entropy: Array, owner: Counts) -> Flags:
    """Flag tokens in spans that the policy would hardly have sampled, [tokens].

    In these the surprisal is larger than the entropy by that of a rare token, on average. Another
    temperature raises the surprisal a little at all tokens; tool or template text raises it a lot
    at consecutive tokens.
    """
    span = FEWEST_OF_PATTERN  # consecutive tokens
    most = -RARE * (span - 1)  # so that no token makes its span foreign by itself
    excess = np.nan_to_num(np.clip(-log_prob - entropy, -most, most))
    flags = np.zeros(len(excess), np.bool_)
    if len(excess) < span:
        return flags
    sums = np.convolve(excess, np.ones(span), mode="valid")
    one_row = owner[: len(sums)] == owner[span - 1 :]
    for start in np.flatnonzero((sums > -RARE * span) & one_row):
        flags[start : start + span] = True
    return flags


def temperature_of_tokens(distribution: TrainerDistribution) -> Interval:
    """Estimate the temperature at which tokens were sampled, by maximum likelihood.

    The 95% interval is from the Fisher information of the distribution.
    """
    value, _ = golden(
        lambda log_t: -float(distribution.log_prob_at(float(np.exp(log_t))).mean()), -1.6, 1.1
    )
    temperature = float(np.exp(value))
    # d log p / d (1 / T) has variance Var(z), which is T^2 Var(log p) under the distribution at T.
    information = float(log_prob_variance(scaled(distribution.logits, temperature)).sum())
    error = temperature / np.sqrt(max(information, 1e-9))
    return Interval(
        temperature, temperature - NORMAL_REACH * error, temperature + NORMAL_REACH * error
    )


class Support(Struct, frozen=True):
    """A kept set estimated from the tokens: rule, threshold and gain in likelihood."""

    rule: str  # top-p, top-k or min-p
    value: float
    gain: float  # log-likelihood of all tokens minus that under the whole distribution, nats
    outside: int  # tokens outside the kept set
    expected: float  # number of tokens outside that the whole distribution would give


STRAY = 1.0 - ALL  # probability that engine noise moves a token out of its kept set


def support_of_tokens(distribution: TrainerDistribution, temperature: float = 1.0) -> Support:
    """Find the kept set with the largest likelihood of the tokens; `gain` <= 0 means none."""
    ranked = Ranked.of(distribution, temperature)
    found = [
        _best("top-p", ranked.before, np.round(np.arange(0.5, 0.996, 0.01), 3), ranked.top_p),
        _best("top-k", ranked.rank, np.array([1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 40, 50, 64, 100]),
              lambda most: ranked.top_k(int(most))),
        _best("min-p", -ranked.share_of_top, np.round(np.geomspace(0.01, 0.5, 40), 4),
              ranked.min_p),
    ]  # fmt: skip
    return max(found, key=lambda support: support.gain)


def _best(rule: str, place: Array | Counts, grid: Array, kept: Callable[[float], Array]) -> Support:
    """Return the threshold of a rule, of those in the grid, with the largest likelihood."""
    best = Support(rule, float("nan"), -np.inf, 0, 0.0)
    for value in grid:
        inside = place < value if rule != "min-p" else -place >= value
        mass = np.clip(kept(float(value)), 1e-9, 1.0)
        strays = int((~inside).sum())
        gain = float(-np.log(mass[inside]).sum()) + strays * np.log(STRAY)
        if gain > best.gain:
            best = Support(rule, float(value), gain, strays, float((1.0 - mass).sum()))
    return best
