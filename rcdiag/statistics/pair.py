"""A pair of policies on the same sampled tokens, the input of all mismatch statistics."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.statistics.ratios import TokenValues
from rcdiag.table.token_batch import Array, Flags, TokenBatch, sampled_tokens
from rcdiag.table.trajectories import Trajectories


class PolicyPair(Struct, frozen=True, dict=True):
    """The behavior policy (which sampled) and the target policy, on one batch."""

    tokens: TokenBatch
    behavior: str
    target: str

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of sampled tokens of each sequence, [sequences]."""
        return self.tokens.lengths

    @cached_property
    def values(self) -> TokenValues:
        """Compute log-probs, log-ratios (target - behavior, nats) and more, [tokens]."""
        log_probs = self.tokens.log_probs
        return TokenValues.of(log_probs[self.behavior], log_probs[self.target], self.log_ratio)

    @cached_property
    def log_ratio(self) -> Array:
        """Compute target - behavior log-prob of each token, nats, [tokens]."""
        return self.log_ratio_at(slice(None))

    def log_ratio_at(self, tokens: slice | NDArray[np.int64]) -> Array:
        """Compute target - behavior log-prob of tokens at the given indices, nats."""
        log_probs = self.tokens.log_probs
        with np.errstate(invalid="ignore"):  # inf - inf is NaN
            return log_probs[self.target][tokens] - log_probs[self.behavior][tokens]

    def take(self, keep: Flags) -> PolicyPair:
        """Return the sequences where `keep` [sequences] is true; counts of empty rows stay."""
        if keep.all():
            return self
        return PolicyPair(self.tokens.take(keep, self.tokens.empty), self.behavior, self.target)

    def by_step(self) -> dict[int | None, PolicyPair]:
        """Return the pair on the rows of each training step."""
        batches = self.tokens.by_step()
        return {
            step: self if batch is self.tokens else PolicyPair(batch, self.behavior, self.target)
            for step, batch in batches.items()
        }


def pair_of(trajectories: Trajectories, behavior: str, target: str) -> PolicyPair:
    """Return a pair of recorded policies on the sampled tokens of some rows."""
    return PolicyPair(sampled_tokens(trajectories, (behavior, target)), behavior, target)
