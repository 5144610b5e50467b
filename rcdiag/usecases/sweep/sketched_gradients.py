"""Weighted gradients of every candidate and of the reference, as vectors by token id.

No model is run. The gradient of log p(token) with respect to the logits has 1 - p at the sampled
token. Summed over tokens by their id, that is the gradient of the output bias. The most frequent
ids have a dimension each; the others share the rest by a hash with random signs (CountSketch,
Charikar, Chen and Farach-Colton 2002, which keeps inner products in expectation). `centred`
subtracts the target policy's mean, because a gradient of its log-probs has mean 0 under it. Judging
estimators by this gradient is rcdiag's proposal. Without recorded advantages reward minus a
baseline is used; without rewards every sequence has the advantage 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.corrections.apply import (
    outcome,
    ratio,
    token_effects,
    token_weight,
    weights_by_token,
)
from rcdiag.corrections.arithmetic import Tokens
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import Quantity
from rcdiag.corrections.sequences import Sequences, rows_of
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.pareto import UpperTail
from rcdiag.table.trajectories import segment_sum

Array = NDArray[np.float64]


class Baseline(Struct, frozen=True):
    """Mean reward of each prompt group, or of all rows if no group has two rewards."""

    keys: NDArray[np.uint64]  # [groups] ascending
    means: Array  # [groups]
    overall: float

    @classmethod
    def of(cls, group: NDArray[np.uint64] | None, reward: Array) -> Baseline:
        """Make the baseline of a table from group and reward of every row; NaN = unknown."""
        recorded = ~np.isnan(reward)
        overall = float(reward[recorded].mean()) if recorded.any() else np.nan
        if group is not None and recorded.any():
            keys, index, sizes = np.unique(group[recorded], return_inverse=True, return_counts=True)
            if sizes.max() >= 2:
                return cls(keys, np.bincount(index, reward[recorded]) / sizes, overall)
        return cls(np.empty(0, np.uint64), np.empty(0), overall)

    @property
    def kind(self) -> str:
        """Return a description of the baseline."""
        return "the mean of its prompt group" if len(self.keys) else "the mean of all"

    def advantage(self, pair: PolicyPair) -> Array:
        """Return reward minus baseline, [sequences]; NaN where the reward is unknown."""
        if pair.tokens.reward is None:
            return np.full(len(pair.lengths), np.nan)
        if not len(self.keys):
            return pair.tokens.reward - self.overall
        at = np.minimum(np.searchsorted(self.keys, pair.tokens.cluster), len(self.keys) - 1)
        rewarded = self.keys[at] == pair.tokens.cluster
        result: Array = pair.tokens.reward - np.where(rewarded, self.means[at], np.nan)
        return result


def recorded_advantage(pair: PolicyPair) -> Array:
    """Return the advantage of the table, [sequences]; NaN where it has none."""
    if pair.tokens.advantage is None:
        return np.full(len(pair.lengths), np.nan)
    return pair.tokens.advantage


def advantages(pair: PolicyPair, baseline: Baseline | None) -> Array:
    """Return the recorded advantages, else reward minus baseline, [sequences]; NaN if unknown."""
    if pair.tokens.advantage is not None or baseline is None:
        return recorded_advantage(pair)
    return baseline.advantage(pair)


DIMENSIONS = 512
OWN = DIMENSIONS // 2  # dimensions with a single id, if there are more ids than dimensions
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: Fibonacci hashing


class Buckets(Struct, frozen=True, dict=True):
    """The dimension of each token id.

    It depends on the frequency rank of an id and not on its number, so that a table with renumbered
    ids has the same gradients. Only ids that are not in `frequent` are hashed by number.
    """

    frequent: NDArray[np.int32]  # [ids] the most frequent first

    @cached_property
    def _by_number(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the known ids, ascending, and the frequency rank of each."""
        order = np.argsort(self.frequent)
        return self.frequent[order], order

    def of(self, token_id: NDArray[np.int32]) -> tuple[NDArray[np.int64], Array]:
        """Return dimension and sign of each token id."""
        size = len(self.frequent)
        own = size if size <= DIMENSIONS else OWN
        shared = 0 if size <= DIMENSIONS else OWN
        if not size:
            return hashed_dimensions(token_id.astype(np.uint64), 0)
        known, places = self._by_number
        at = np.minimum(np.searchsorted(known, token_id), size - 1)
        is_known = known[at] == token_id
        place = places[at]
        keys = np.where(is_known, place, token_id.astype(np.int64) + size).astype(np.uint64)
        bucket, sign = hashed_dimensions(keys, shared)
        alone = is_known & (place < own)
        return np.where(alone, place, bucket), np.where(alone, 1.0, sign)


def hashed_dimensions(keys: NDArray[np.uint64], first: int) -> tuple[NDArray[np.int64], Array]:
    """Return a dimension (at least `first`) and a sign for each key."""
    mixed = (keys + np.uint64(1)) * _MIX
    mixed = (mixed ^ (mixed >> np.uint64(32))) * _MIX
    bucket = (mixed >> np.uint64(33)).astype(np.int64) % (DIMENSIONS - first) + first
    sign = 1.0 - 2.0 * ((mixed >> np.uint64(32)) & np.uint64(1)).astype(np.float64)
    return bucket, sign


# Name of the reference gradient, which is weighted by the untruncated ratios of sequences.
REFERENCE = "reference"


class CandidateGradients(Struct, frozen=True):
    """The gradients of candidates and reference by cluster, and the tails of candidates' weights.

    The last column of a gradient is the sum of its weights times advantages, for `centred`.
    """

    clusters: NDArray[np.int64]  # [clusters] the row of each in the tables of sums
    sums: dict[tuple[str, str], Array]  # candidate and quantity -> [clusters, columns]
    tails: dict[str, UpperTail]  # candidate -> logs of weight times |advantage| of sequences


def candidate_gradients(
    pair: PolicyPair,
    candidates: Mapping[str, Correction],
    baseline: Baseline | None,
    frequent: Buckets,
    clusters: NDArray[np.int64],
) -> CandidateGradients:
    """Sum the weighted gradient of every candidate over one batch, by cluster.

    `clusters` [sequences] are rows in the tables of sums.
    """
    used, at = np.unique(clusters, return_inverse=True)
    if not candidates:
        return CandidateGradients(used, {}, {})
    advantage = advantages(pair, baseline)
    rewarded = baseline is not None and not np.isnan(baseline.overall)
    if pair.tokens.advantage is None and not rewarded:  # the whole table has none
        advantage = np.ones(len(pair.lengths))
    signal = np.nan_to_num(advantage, nan=0.0)
    size = np.where(np.isnan(advantage), 1.0, np.abs(advantage))
    bucket, sign = frequent.of(pair.tokens.token_id)
    owner = pair.tokens.owner
    cells = at[owner] * DIMENSIONS + bucket
    slope = sign * pair.values.target_miss
    tokens, rows = Tokens.of(pair), rows_of(pair)
    of_rows = ratio(rows, "sequence")
    lengths = pair.lengths.astype(np.float64)

    def by_cluster(values: Array) -> Array:
        """Sum values of sequences by cluster, [clusters, 1]."""
        return np.bincount(at, values, len(used)).astype(np.float64, copy=False)[:, None]

    def gradient(weights: Array, factor: Array) -> Array:
        """Sum gradients of log-probs, times weights [tokens] and factors [sequences]."""
        values = slope * weights * factor[owner]
        sums = np.bincount(cells, values, len(used) * DIMENSIONS).reshape(-1, DIMENSIONS)
        return np.hstack([sums, by_cluster(segment_sum(weights, pair.lengths) * factor)])

    ones = np.ones(len(slope))
    token_ratio = tokens.ratio.astype(np.float64)
    sums = {
        ("", "signals"): by_cluster((~np.isnan(advantage)).astype(np.float64)),
        (REFERENCE, "gradient"): gradient(ones, of_rows * signal),
        (REFERENCE, "weights"): by_cluster(of_rows * lengths),
        (REFERENCE, "scores"): gradient(token_ratio, np.ones(len(rows))),
    }
    made: dict[Quantity, Array] = {}
    tails = {}
    for name, correction in candidates.items():
        weights, factor = _weights_and_factors(correction, tokens, rows, made)
        sums[name, "gradient"] = gradient(weights, factor * signal)
        absolute = segment_sum(weights, pair.lengths) * factor / lengths * size
        tails[name] = UpperTail.of(np.log(absolute[absolute > 0.0]))
    return CandidateGradients(used, sums, tails)


def _weights_and_factors(
    correction: Correction, tokens: Tokens, rows: Sequences, made: dict[Quantity, Array]
) -> tuple[Array, Array]:
    """Return token weights [tokens] and sequence factors [rows] of a correction.

    The weight of a token is the product of both. `made` caches token weights that candidates share.
    """
    if any(rejection.of_tokens for rejection in correction.rejections):
        return token_effects(correction, tokens, rows).final, np.ones(len(rows))
    by_token = weights_by_token(correction)
    of_sequences = replace(correction, weighting=None) if by_token else correction
    effect = outcome(rows, of_sequences)
    if not by_token:  # a sequence has one weight
        kept = effect.kept if effect.kept_weights is None else effect.kept_weights.sum
        return np.ones(len(tokens.ratio)), kept / rows.lengths
    weight = token_weight(correction)
    if weight not in made:
        made[weight] = weight.of(tokens).astype(np.float64, copy=False)
    return made[weight], (effect.kept > 0).astype(np.float64)


def centred(gradient: Array, scores: Array) -> Array:
    """Return gradients minus the target's mean gradient per token, [clusters, DIMENSIONS].

    `scores` are gradients of log-probs weighted by the ratios of tokens, without advantages. Their
    mean estimates the mean under the target policy, which is 0 for a true gradient of log-probs.
    """
    of_all = scores.sum(axis=0)
    result: Array = gradient[:, :-1] - gradient[:, -1:] * (of_all[:-1] / of_all[-1])
    return result
