"""Means under a policy that did not sample, as weighted sums over the sampled tokens.

Here a pair's behavior policy b is not the policy s that sampled. With the weight w = b / s of a
token, E_s[w f] = E_b[f] at every prefix; so sum(w f) / sum(w) estimates what b's own next tokens
would give at the prefixes that s visited. A quantity of whole sequences is weighted by the product
of its tokens' weights. Source: Owen, Monte Carlo theory, methods and examples, 9.2
(self-normalised importance sampling).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.statistics.clusters import ClusterSums, cluster_sums
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import TOKEN_SUMS, Array
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.statistics.totals import SEQUENCE_SUMS, Addends, SequenceTable
from rcdiag.table.trajectories import segment_sum

# Floor for the log-ratio of a ratio of 0, so that 0 * log_ratio is 0 and not NaN.
_FLOOR = -800.0


class WeightedState(Struct, frozen=True):
    """The weighted sums of a pair's tokens and sequences, by cluster."""

    names: tuple[str, ...]
    sums: ClusterSums  # [clusters, names]

    @classmethod
    def of(cls, pair: PolicyPair, sampler: str, table: SequenceTable) -> WeightedState:
        """Weight the pair by behavior / `sampler`; the batch must hold the sampler's log-probs.

        `table` has the rows of the same pair.
        """
        log_weight = pair.tokens.log_probs[pair.behavior] - pair.tokens.log_probs[sampler]
        # Weights that overflow give inf or NaN; such numbers are not reported.
        with np.errstate(over="ignore", invalid="ignore"):
            columns = {
                **_token_columns(pair, log_weight),
                **_sequence_columns(pair, segment_sum(log_weight, pair.lengths), table),
            }
            rows = np.stack(list(columns.values()), axis=1)
            return cls(tuple(columns), cluster_sums(table.cluster, rows))


class Reweighting(Struct, frozen=True):
    """A pair whose behavior policy did not sample, weighted to the policy that did."""

    weights: SuiteState  # of the pair sampler -> behavior, whose ratios are the weights
    sums: WeightedState

    @classmethod
    def of(cls, pair: PolicyPair, sampler: str, table: SequenceTable) -> Reweighting:
        """Weight a pair to `sampler`; `table` has the rows of the same pair."""
        weights = SuiteState.of(PolicyPair(pair.tokens, sampler, pair.behavior))
        return cls(weights, WeightedState.of(pair, sampler, table))


class WeightedSuite(Suite, kw_only=True, dict=True):
    """A suite with weighted totals, and therefore weighted values of all metrics of totals."""

    weighted: WeightedState

    @cached_property
    def rows(self) -> Addends:
        """Return the weighted sums by cluster; `tokens` and `sequences` are sums of weights."""
        return Addends(self.weighted.names, self.weighted.sums.sums).by_content()


def _token_columns(pair: PolicyPair, log_weight: Array) -> dict[str, Array]:
    """Return weighted sums over each sequence's tokens: name -> [sequences]."""
    weight, lengths = np.exp(log_weight), pair.lengths
    columns = {
        quantity.name: segment_sum(weight * quantity.of(pair.values), lengths)
        for quantity in TOKEN_SUMS.values()
    }
    ratios = _ratio_columns("token_ratio", log_weight, pair.log_ratio)
    return {
        **columns,
        "tokens": segment_sum(weight, lengths),
        **{name: segment_sum(values, lengths) for name, values in ratios.items()},
    }


def _sequence_columns(
    pair: PolicyPair, log_weight: Array, table: SequenceTable
) -> dict[str, NDArray[np.float64]]:
    """Return weighted quantities of whole sequences: name -> [sequences]."""
    weight = np.exp(log_weight)
    columns = {name: weight * quantity.of(table) for name, quantity in SEQUENCE_SUMS.items()}
    ratios = _ratio_columns("seq_ratio", log_weight, table.sums["log_ratio"])
    return {**columns, "sequences": weight, **ratios}


def _ratio_columns(name: str, log_weight: Array, log_ratio: Array) -> dict[str, Array]:
    """Return the terms of an effective sample size: w r, w r^2 and w r log r."""
    weighted = np.exp(log_weight + log_ratio)
    return {
        name: weighted,
        f"{name}_squared": np.exp(log_weight + 2.0 * log_ratio),
        f"{name}_log": weighted * np.maximum(log_ratio, _FLOOR),
    }
