"""How large a mismatch is, by the guides of the numbers that a score shows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.diagnosis.case import PairTokens
from rcdiag.diagnosis.guides import level
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.ratios import TOKEN_SUMS, TokenValues
from rcdiag.statistics.totals import Totals

# The means over tokens that have a guide.
SIZES = (
    "k3_kl",
    "k2_kl",
    "k1_kl",
    "exp_abs_log_ratio_mean",
    "ratio_deviation_mean",
    "prob_diff_mean",
)


@dataclass(frozen=True)
class SumsOfTokens(Mapping[str, NDArray[np.float64]]):
    """The sums of TOKEN_SUMS over some tokens, [1] each, made when they are asked for."""

    of_tokens: TokenValues

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.array([TOKEN_SUMS[name].of(self.of_tokens).sum()])

    def __iter__(self) -> Iterator[str]:
        return iter(TOKEN_SUMS)

    def __len__(self) -> int:
        return len(TOKEN_SUMS)


def beyond_guides(tokens: PairTokens) -> list[str]:
    """Return the numbers of a mismatch's size that are beyond their guide on a pair's tokens.

    They are the numbers of a score, computed as there, so that no table is called fine whose score
    has a warning or an error for the size of its mismatch.
    """
    if not len(tokens):
        return []
    values = TokenValues.of(tokens.sampler, tokens.trainer, tokens.log_ratio)
    count = np.array([float(len(tokens))])
    rows = np.array([float(np.count_nonzero(tokens.per_row))])
    totals = Totals(rows, count, SumsOfTokens(values), {}, {}, {})
    beyond = []
    for name in SIZES:
        metric = METRICS[name]
        assert metric.guide is not None
        assert metric.from_totals is not None
        if level(metric.guide, float(metric.from_totals(totals)[0])) in ("warning", "error"):
            beyond.append(name)
    return beyond
