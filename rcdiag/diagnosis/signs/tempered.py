"""Signs of temperature: one column's law is the other's raised to a power."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.diagnosis.case import PairTokens
from rcdiag.frozen import dataclass

Array = NDArray[np.float64]

# Log-probs of the trainer that count as sure, and as rare.
SURE = (-0.1, -0.005)
RARE = (-4.0, -2.0)
LEAST = 15
# What gives the factor of a temperature.
BY_RARE = "log-prob of rare tokens, sampler / trainer"
BY_METADATA = "temperature of the trainer over that of the record, by metadata"
BY_FORKS = "log-prob between two tokens of one context, sampler / trainer"


@dataclass(frozen=True)
class Tempered:
    """One column is as if computed at another temperature.

    With p = softmax(logits / T), log p is proportional to 1/T for rare tokens in sure contexts, so
    that the sampler's log-prob over the trainer's is T_trainer / T_sampler there.
    """

    factor: float  # T_trainer / T_sampler
    spread: float  # of the ratio of log-probs among rare tokens, over its distance from 1
    sure: float  # share of sure tokens whose ratio is on the other side of 1
    told_by: str = BY_RARE  # what gives the factor


@dataclass(frozen=True)
class SurePower:
    """What is left of sure tokens is, on one side, a power of what is left on the other side.

    Where one token has nearly all mass, and another the rest, the rest at temperature T is that at
    temperature 1 to the power of 1/T. Several others move the power a little, and a cap on logits
    by context; other weights give as many powers above 1 as below.
    """

    low: float  # 2% quantile of log(-sampler) / log(-trainer)
    high: float  # 98% quantile
    spread: float  # from the 10% to the 90% quantile, over the median's distance from 1

    @property
    def one_sided(self) -> bool:
        """Tell whether one law is sharper than the other wherever a token is sure."""
        return self.low > 1.03 or self.high < 0.97


def sure_power(tokens: PairTokens) -> SurePower | None:
    """Return the powers of sure tokens; None where these are few."""
    sure = (tokens.trainer > SURE[0]) & (tokens.trainer < SURE[1]) & (tokens.sampler < 0)
    if sure.sum() < 4 * LEAST:
        return None
    powers = np.log(-tokens.sampler[sure]) / np.log(-tokens.trainer[sure])
    low, tenth, middle, ninetieth, high = np.quantile(powers, [0.02, 0.1, 0.5, 0.9, 0.98])
    spread = (ninetieth - tenth) / max(abs(1 - middle), 1e-9)
    return SurePower(float(low), float(high), float(spread))


def tempered(tokens: PairTokens) -> Tempered | None:
    """Look for a power law between two columns; None where sure and rare tokens do not agree.

    A flatter law gives rare tokens more and sure tokens less: the ratio of log-probs is below 1
    for rare tokens and above 1 for sure ones, in nearly every context.
    """
    trainer = tokens.trainer
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = tokens.sampler / trainer
    sure = ratio[(trainer > SURE[0]) & (trainer < SURE[1])]
    rare = next((part for edge in RARE if len(part := ratio[trainer < edge]) >= LEAST), np.empty(0))
    if len(sure) < LEAST or len(rare) < LEAST:
        return None
    flatter = bool(np.median(rare) < 1.0)
    sign = 1.0 if flatter else -1.0
    other_side = float(np.mean(sign * (sure - 1.0) > 0.02))
    same_side = float(np.mean(sign * (1.0 - rare) > -0.01))
    # Contexts with several likely tokens blur the rare ones, most of all under low temperatures.
    if other_side < 0.85 or same_side < (0.55 if other_side > 0.97 else 0.8):
        return None
    # Contexts that are not sure pull the ratio towards 1: the edge is the factor.
    factor = float(np.quantile(rare, 0.07 if flatter else 0.93))
    low, middle, high = np.quantile(rare, [0.1, 0.5, 0.9])
    if abs(np.log(max(factor, 1e-9))) < 0.03:
        return None
    return Tempered(factor, float((high - low) / max(abs(1 - middle), 1e-9)), other_side)
