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

from rcdiag.statistics.clusters import ClusterSums, cluster_sums
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import FLOOR, TOKEN_SUMS, Array
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.statistics.totals import SEQUENCE_SUMS, Addends, SequenceTable
from rcdiag.table.trajectories import segment_sum


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
        lengths = pair.lengths
        # Weights that overflow give inf or NaN; such numbers are not reported.
        with np.errstate(over="ignore", invalid="ignore"):
            weight = np.exp(log_weight)
            columns = {
                name: segment_sum(weight * one.of(pair.values), lengths)
                for name, one in TOKEN_SUMS.items()
            }
            columns["tokens"] = segment_sum(weight, lengths)
            for name, terms in _ratio_columns("token_ratio", log_weight, pair.log_ratio).items():
                columns[name] = segment_sum(terms, lengths)
            log_weight = segment_sum(log_weight, lengths)  # of whole sequences
            weight = np.exp(log_weight)
            columns |= {name: weight * one.of(table) for name, one in SEQUENCE_SUMS.items()}
            columns["sequences"] = weight
            columns |= _ratio_columns("seq_ratio", log_weight, table.sums["log_ratio"])
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


def _ratio_columns(name: str, log_weight: Array, log_ratio: Array) -> dict[str, Array]:
    """Return the terms of an effective sample size: w r, w r^2 and w r log r."""
    weighted = np.exp(log_weight + log_ratio)
    return {
        name: weighted,
        f"{name}_squared": np.exp(log_weight + 2.0 * log_ratio),
        f"{name}_log": weighted * np.maximum(log_ratio, FLOOR),
    }
