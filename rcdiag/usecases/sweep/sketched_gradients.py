"""Weighted gradients of every candidate and of the reference, as small sketches by cluster.

No model is run. The gradient of log p(token) with respect to the logits has 1 - p at the sampled
token. Summed over a sequence by token id with signs into DIMENSIONS buckets (CountSketch, Charikar,
Chen and Farach-Colton 2002: inner products stay what they are in expectation), that is a vector
whose inner products follow those of the gradients of the output bias. `centred` takes off what the
target policy has on average, because a gradient of its log-probs has mean 0 under it. Judging
estimators by it is rcdiag's proposal. Where no advantages are recorded, reward less a baseline
stands in for them; without rewards every sequence has the advantage 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import (
    log_ratio,
    outcome,
    quantities_of,
    ratio,
    token_effects,
    weight_quantity,
    weights_by_token,
)
from rcdiag.corrections.arithmetic import Tokens
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import K, LogRatio, Quantity
from rcdiag.corrections.sequences import rows_of
from rcdiag.frozen import dataclass
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.pareto import UpperTail
from rcdiag.table.segments import segment_sum

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Mean reward of each prompt group, or of all where no group has two rewards."""

    keys: NDArray[np.uint64]  # [groups] ascending
    means: Array  # [groups]
    overall: float

    @classmethod
    def of(cls, group: NDArray[np.uint64] | None, reward: Array) -> Baseline:
        """The baseline of a table, from the group and the reward of every row; NaN = unknown."""
        recorded = ~np.isnan(reward)
        overall = float(reward[recorded].mean()) if recorded.any() else np.nan
        if group is not None and recorded.any():
            keys, index, sizes = np.unique(group[recorded], return_inverse=True, return_counts=True)
            if sizes.max() >= 2:
                return cls(keys, np.bincount(index, reward[recorded]) / sizes, overall)
        return cls(np.empty(0, np.uint64), np.empty(0), overall)

    @property
    def kind(self) -> str:
        """Say what is taken off the reward."""
        return "the mean of its prompt group" if len(self.keys) else "the mean of all"

    def advantage(self, pair: PolicyPair) -> Array:
        """Reward less its baseline, [sequences]; NaN where the reward is unknown."""
        if pair.tokens.reward is None:
            return np.full(len(pair.lengths), np.nan)
        if not len(self.keys):
            return pair.tokens.reward - self.overall
        at = np.minimum(np.searchsorted(self.keys, pair.tokens.cluster), len(self.keys) - 1)
        rewarded = self.keys[at] == pair.tokens.cluster
        return pair.tokens.reward - np.where(rewarded, self.means[at], np.nan)


def recorded_advantage(pair: PolicyPair) -> Array:
    """The advantage of the table, [sequences]; NaN where it has none."""
    if pair.tokens.advantage is None:
        return np.full(len(pair.lengths), np.nan)
    return pair.tokens.advantage


def advantages(pair: PolicyPair, baseline: Baseline | None) -> Array:
    """The factor of a sequence's gradient: its recorded advantage, else reward less baseline."""
    if pair.tokens.advantage is not None or baseline is None:
        return recorded_advantage(pair)
    return baseline.advantage(pair)


def known_advantages(pair: PolicyPair, baseline: Baseline | None) -> Array:
    """Return the advantages of a table; 1 for all on a table with neither advantages nor rewards.

    They are NaN where only this sequence's is unknown, [sequences].
    """
    rewarded = baseline is not None and not np.isnan(baseline.overall)
    if pair.tokens.advantage is None and not rewarded:
        return np.ones(len(pair.lengths))
    return advantages(pair, baseline)


DIMENSIONS = 64
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: Fibonacci hashing


def buckets(token_id: NDArray[np.int32]) -> tuple[NDArray[np.int64], Array]:
    """Bucket and sign of each token id."""
    mixed = (token_id.astype(np.uint64) + np.uint64(1)) * _MIX
    mixed = (mixed ^ (mixed >> np.uint64(32))) * _MIX
    bucket = (mixed >> np.uint64(58)).astype(np.int64)
    sign = 1.0 - 2.0 * ((mixed >> np.uint64(40)) & np.uint64(1)).astype(np.float64)
    return bucket, sign


def sketches(cells: NDArray[np.int64], values: Array, rows: int) -> Array:
    """Sums of `values` [tokens] by sequence and bucket, [sequences, DIMENSIONS].

    `cells` are sequence * DIMENSIONS + bucket.
    """
    sums = np.bincount(cells, values, rows * DIMENSIONS).astype(np.float64, copy=False)
    return sums.reshape(rows, DIMENSIONS)


# The gradient that is aimed at: weighted by the untruncated ratios of sequences.
REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class CandidateGradients:
    """The candidates' gradients and the reference's by sequence, and the tails of their weights.

    The last column of a gradient is the sum of its weights times advantages, for `centred`.
    """

    rows: int  # sequences
    sequences: dict[tuple[str, str], Array]  # candidate and quantity -> [sequences, columns]
    tails: dict[str, UpperTail]  # candidate -> logs of weight times |advantage| of sequences


def candidate_gradients(
    pair: PolicyPair,
    candidates: Mapping[str, Correction],
    baseline: Baseline | None,
) -> CandidateGradients:
    """Sketch the weighted gradient of every candidate on one batch."""
    if not candidates:
        return CandidateGradients(len(pair.lengths), {}, {})
    advantage = known_advantages(pair, baseline)
    signal = np.nan_to_num(advantage, nan=0.0)[:, None]
    size = np.where(np.isnan(advantage), 1.0, np.abs(advantage))
    bucket, sign = buckets(pair.tokens.token_id)
    cells = pair.tokens.owner * DIMENSIONS + bucket
    slope = sign * pair.values.target_miss
    tokens, rows = Tokens.of(pair), rows_of(pair, _quantities(candidates.values()), 0)
    true, of_rows = np.exp(log_ratio(rows, "sequence")), ratio(rows, "sequence")
    lengths = pair.lengths.astype(np.float64)

    def gradient(weights: Array) -> Array:
        """Sketch the gradients of log-probs, and their weights, [sequences, DIMENSIONS + 1]."""
        sums = sketches(cells, slope * weights, len(rows))
        return np.column_stack([sums, segment_sum(weights, pair.lengths)])

    plain = np.column_stack([sketches(cells, slope, len(rows)), lengths])
    sequences = {
        ("", "signals"): (~np.isnan(advantage)).astype(np.float64)[:, None],
        (REFERENCE, "gradient"): plain * of_rows[:, None] * signal,
        (REFERENCE, "weights"): (of_rows * lengths)[:, None],
        (REFERENCE, "scores"): gradient(tokens.ratio.astype(np.float64)),
    }
    by_weight: dict[Quantity, Array] = {}  # gradients with the weights of single tokens

    def sketched(correction: Correction) -> Array:
        """Sketch the gradients and their weights under a correction."""
        if any(rejection.of_tokens for rejection in correction.rejections):
            return gradient(token_effects(correction, tokens, rows).final)
        left = outcome(rows, _of_sequences(correction))
        if not weights_by_token(correction):  # a sequence has one weight
            sums = left.kept if left.kept_weights is None else left.kept_weights.sum
            return plain * (sums / lengths)[:, None]
        quantity = weight_quantity(correction)
        if quantity not in by_weight:
            by_weight[quantity] = gradient(quantity.of(tokens).astype(np.float64, copy=False))
        return np.where(left.kept[:, None] > 0, by_weight[quantity], 0.0)

    tails = {}
    for name, correction in candidates.items():
        sums = sketched(correction)
        means = sums[:, -1] / pair.lengths
        sequences[name, "gradient"] = sums * signal
        sequences[name, "over"] = np.maximum(means - true, 0.0)[:, None]
        weighted = means * size
        tails[name] = UpperTail.of(np.log(weighted[weighted > 0.0]))
    return CandidateGradients(len(rows), sequences, tails)


def centred(gradient: Array, scores: Array) -> Array:
    """Take the target's mean off the gradient of every token, [clusters, DIMENSIONS].

    `scores` are gradients of log-probs weighted by the ratios of tokens, without advantages: their
    mean is what the target policy has on average, which is 0 for a true gradient of its log-probs.
    """
    of_all = scores.sum(axis=0)
    return gradient[:, :-1] - gradient[:, -1:] * (of_all[:-1] / of_all[-1])


def _quantities(corrections: Iterable[Correction]) -> list[Quantity]:
    quantities: dict[Quantity, None] = dict.fromkeys([LogRatio(), K("k2"), K("k3")])
    for correction in corrections:
        quantities |= dict.fromkeys(quantities_of(_of_sequences(correction)))
    return list(quantities)


def _of_sequences(correction: Correction) -> Correction:
    """Return what a correction does to whole sequences; single tokens are held against the rest."""
    whole = tuple(one for one in correction.rejections if not one.of_tokens)
    weighting = None if weights_by_token(correction) else correction.weighting
    return replace(correction, weighting=weighting, rejections=whole)
