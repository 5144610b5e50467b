"""Two policies on the same sampled tokens: all statistics of a mismatch are made from them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.statistics.ratios import TokenValues
from rcdiag.table.token_batch import Array, Flags, TokenBatch, sampled_tokens
from rcdiag.table.trajectories import Trajectories

# Tokens that are worked on at a time: half a megabyte for each array of numbers, so that what one
# step writes the next finds in the cache, and memory is used again instead of asked for anew.
BLOCK = 1 << 16


class PolicyPair(Struct, frozen=True, dict=True):
    """The policy that sampled, and the policy that we want expectations under, on one batch."""

    tokens: TokenBatch
    behavior: str
    target: str

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the sampled tokens of each sequence, [sequences]."""
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
        """Compute target - behavior log-prob of some tokens, by their places, nats."""
        log_probs = self.tokens.log_probs
        with np.errstate(invalid="ignore"):  # inf - inf is NaN
            return log_probs[self.target][tokens] - log_probs[self.behavior][tokens]

    @property
    def blocks(self) -> list[PolicyPair]:
        """Return the pair in blocks of whole sequences, small enough for the processor's cache.

        They are made anew each time, so that what is computed of a block goes with it.
        """
        batches = self.tokens.blocks(BLOCK)
        if len(batches) == 1:
            return [self]
        return [PolicyPair(batch, self.behavior, self.target) for batch in batches]

    def take(self, keep: Flags) -> PolicyPair:
        """Take the sequences where `keep` [sequences] holds; rows without a token stay counted."""
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
    """Take two recorded policies on the sampled tokens of some rows."""
    return PolicyPair(sampled_tokens(trajectories, (behavior, target)), behavior, target)
