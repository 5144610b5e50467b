"""The trainer's distribution at some tokens: full logits, temperature and kept sets."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Counts, Flags


class TrainerDistribution(Struct, frozen=True, dict=True):
    """The trainer's logits in some contexts, with the tokens that were sampled there."""

    logits: NDArray[np.float32]  # [tokens, vocabulary]
    token: Counts  # [tokens]
    owner: Counts  # [tokens] row of the case
    position: Counts  # [tokens] in the response

    def __len__(self) -> int:
        return len(self.token)

    def take(self, chosen: Counts | Flags) -> TrainerDistribution:
        """Return some of the tokens, by index or by flag."""
        return TrainerDistribution(
            self.logits[chosen], self.token[chosen], self.owner[chosen], self.position[chosen]
        )

    def log_prob_at(self, temperature: float | Array = 1.0) -> Array:
        """Return the log-prob of every token at a temperature, [tokens] nats."""
        return log_prob(scaled(self.logits, temperature), self.token)

    def log_prob_under(self, logits: NDArray[np.float32]) -> Array:
        """Return the log-prob of every token under other logits, [tokens] nats."""
        return log_prob(logits, self.token)

    def entropy(self, temperature: float | Array = 1.0) -> Array:
        """Return the entropy of the distribution at a temperature, [tokens] nats."""
        return entropy(scaled(self.logits, temperature))

    @cached_property
    def probability(self) -> NDArray[np.float32]:
        """Return the probabilities at temperature 1, [tokens, vocabulary]."""
        return softmax(self.logits)


def scaled(logits: NDArray[np.float32], temperature: float | Array) -> NDArray[np.float32]:
    """Divide logits by a temperature, one for all or one for each token."""
    if isinstance(temperature, float):
        return logits if temperature == 1.0 else logits / np.float32(temperature)
    return np.divide(logits, temperature[:, None], dtype=np.float32)


def log_sum(logits: NDArray[np.float32]) -> Array:
    """Return the logarithm of the sum of exponentials, [tokens]."""
    top = logits.max(axis=1)
    total = np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64)
    values: Array = np.log(total) + top
    return values


def log_prob(logits: NDArray[np.float32], token: Counts) -> Array:
    """Return the log-prob of one token of every context, [tokens] nats."""
    values: Array = logits[np.arange(len(token)), token].astype(np.float64) - log_sum(logits)
    return values


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return probabilities, [tokens, vocabulary]."""
    made: NDArray[np.float32] = np.exp(logits - logits.max(axis=1, keepdims=True))
    total: NDArray[np.float32] = made.sum(axis=1, keepdims=True)
    return made / total


def entropy(logits: NDArray[np.float32]) -> Array:
    """Return the entropy of every context's distribution, [tokens] nats."""
    above, weights, total = _unnormalised(logits)
    values: Array = np.log(total) - (weights * above).sum(axis=1, dtype=np.float64) / total
    return values


def log_prob_variance(logits: NDArray[np.float32]) -> Array:
    """Return the variance of the log-prob under its own distribution, [tokens] nats squared."""
    above, weights, total = _unnormalised(logits)
    mean = (weights * above).sum(axis=1, dtype=np.float64) / total
    square = (weights * above**2).sum(axis=1, dtype=np.float64) / total
    values: Array = np.maximum(square - mean**2, 0.0)
    return values


def _unnormalised(
    logits: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.float32], Array]:
    """Return logits less the largest of their context, their exp, and the sum of these, [tokens].

    Sums are in float64: a vocabulary has a hundred thousand terms.
    """
    above: NDArray[np.float32] = logits - logits.max(axis=1, keepdims=True)
    weights: NDArray[np.float32] = np.exp(above)
    return above, weights, weights.sum(axis=1, dtype=np.float64)


class Ranked(Struct, frozen=True, dict=True):
    """Probabilities of every context in descending order, for kept sets."""

    probability: NDArray[np.float32]  # [tokens, vocabulary] descending
    before: Array  # [tokens] mass of the tokens likelier than the sampled one
    rank: Counts  # [tokens] number of tokens likelier than the sampled one
    share_of_top: Array  # [tokens] probability of the sampled token / largest probability

    @classmethod
    def of(cls, distribution: TrainerDistribution, temperature: float | Array) -> Ranked:
        """Rank the distribution at a temperature."""
        made = softmax(scaled(distribution.logits, temperature))
        own = made[np.arange(len(distribution)), distribution.token]
        likelier = made > own[:, None]
        before = np.where(likelier, made, 0.0).sum(axis=1, dtype=np.float64)
        ordered = -np.sort(-made, axis=1)
        return cls(ordered, before, likelier.sum(axis=1), own / ordered[:, 0].astype(np.float64))

    @cached_property
    def cumulative(self) -> NDArray[np.float32]:
        """Return the running sums of the probabilities, [tokens, vocabulary]."""
        return np.cumsum(self.probability, axis=1, dtype=np.float32)

    def top_p(self, threshold: float) -> Array:
        """Return the mass that top-p keeps: tokens until their sum reaches the threshold."""
        kept = 1 + (self.cumulative < threshold).sum(axis=1)
        kept = np.minimum(kept, self.cumulative.shape[1])
        values: Array = self.cumulative[np.arange(len(kept)), kept - 1].astype(np.float64)
        return values

    def top_k(self, most: int) -> Array:
        """Return the mass of the `most` likeliest tokens."""
        return self.cumulative[:, min(most, self.cumulative.shape[1]) - 1].astype(np.float64)

    def min_p(self, share: float) -> Array:
        """Return the mass of the tokens with at least that share of the largest probability."""
        kept = self.probability >= np.float32(share) * self.probability[:, :1]
        values: Array = np.where(kept, self.probability, 0.0).sum(axis=1, dtype=np.float64)
        return values
