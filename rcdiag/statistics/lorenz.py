"""How few tokens hold the KL: tokens and their k3 by size, added up over the pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import Array, k3

# Bins of k3, nats: 40 in each decade, so that the tokens of a bin differ by less than 6%.
PER_DECADE, SMALLEST, LARGEST = 40, -16, 6
BINS = (LARGEST - SMALLEST) * PER_DECADE


class Lorenz(Struct, frozen=True):
    """Counts of tokens and sums of their k3, by the size of k3; states add up."""

    counts: Array  # [BINS]
    sums: Array  # [BINS] nats

    @classmethod
    def of(cls, pair: PolicyPair) -> Lorenz:
        """Sort some tokens into the bins."""
        with np.errstate(divide="ignore", invalid="ignore"):
            values = k3(pair.values.ratios)
            # A token without a number leaves no share known, as an infinite one does.
            values = np.where(np.isnan(values), np.inf, np.maximum(values, 0.0))
            places = (np.log10(values) - SMALLEST) * PER_DECADE
        numbers = np.clip(places, 0, BINS - 1).astype(np.int64)
        return cls(
            np.bincount(numbers, minlength=BINS).astype(np.float64),
            np.bincount(numbers, values, BINS).astype(np.float64),
        )

    def shares(self, of_tokens: Sequence[float]) -> list[list[float]]:
        """Return shares of the tokens, the largest k3 first, and the share of all k3 they hold.

        A share that is less than one token is left out; within a bin its tokens count alike. Empty
        where the sum is 0 or not finite.
        """
        tokens, total = self.counts.sum(), self.sums.sum()
        if not tokens or not np.isfinite(total) or total <= 0.0:
            return []
        held_by = np.concatenate([[0.0], np.cumsum(self.counts[::-1])]) / tokens
        held = np.concatenate([[0.0], np.cumsum(self.sums[::-1])]) / total
        shares = [share for share in of_tokens if share * tokens >= 1.0]
        return [[share, float(np.interp(share, held_by, held))] for share in shares]
