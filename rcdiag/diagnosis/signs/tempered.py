"""Signs of temperature: one column's law is the other's raised to a power."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.diagnosis.case import PairTokens

Array = NDArray[np.float64]

# Log-probs of the trainer that count as sure, and as rare.
SURE = (-0.1, -0.005)
RARE = (-4.0, -2.0)
LEAST = 15


@dataclass(frozen=True)
class Tempered:
    """One column is as if computed at another temperature.

    With p = softmax(logits / T), log p is proportional to 1/T for rare tokens in sure contexts, so
    that the sampler's log-prob over the trainer's is T_trainer / T_sampler there.
    """

    factor: float  # T_trainer / T_sampler
    spread: float  # of the ratio of log-probs among rare tokens, over its distance from 1
    sure: float  # share of sure tokens whose ratio is on the other side of 1


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
