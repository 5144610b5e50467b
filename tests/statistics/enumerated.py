"""Tabular autoregressive policies over all sequences, with exact divergences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

VOCABULARY = 3
LENGTH = 4
# Behavior probabilities are multiples of 1/6, so that each sequence has an integer frequency.
PARTS = 6

Prefix = tuple[int, ...]
Policy = dict[Prefix, np.ndarray]  # distribution of the next token

SEQUENCES: list[Prefix] = list(product(range(VOCABULARY), repeat=LENGTH))
PREFIXES: list[Prefix] = [
    prefix for length in range(LENGTH) for prefix in product(range(VOCABULARY), repeat=length)
]


def rational_policy(seed: int, *, zeros: bool = False) -> Policy:
    """Make a policy with probabilities in sixths; `zeros` removes one token per distribution."""
    random = np.random.default_rng(seed)
    distributions = [
        distribution
        for distribution in product(range(PARTS + 1), repeat=3)
        if sum(distribution) == PARTS
    ]
    distributions = [
        distribution
        for distribution in distributions
        if sum(part == 0 for part in distribution) == zeros
    ]
    return {
        prefix: np.array(distributions[random.integers(len(distributions))]) / PARTS
        for prefix in PREFIXES
    }


def near(policy: Policy, spread: float, seed: int) -> Policy:
    """Add noise to a policy's log-probs; tokens of probability 0 get a small one."""
    random = np.random.default_rng(seed)
    result = {}
    for prefix, distribution in policy.items():
        weights = np.maximum(distribution, 0.05) * np.exp(random.normal(0.0, spread, VOCABULARY))
        result[prefix] = weights / weights.sum()
    return result


def token_probs(policy: Policy, sequence: Prefix) -> list[float]:
    return [float(policy[sequence[:t]][token]) for t, token in enumerate(sequence)]


@dataclass(frozen=True)
class Exact:
    """Two policies and their exact divergences, without sampling."""

    behavior: Policy
    target: Policy

    @cached_property
    def sequence_distributions(self) -> tuple[np.ndarray, np.ndarray]:
        distributions = [
            [prod(token_probs(policy, sequence)) for sequence in SEQUENCES]
            for policy in (self.behavior, self.target)
        ]
        return np.array(distributions[0]), np.array(distributions[1])

    @cached_property
    def contexts(self) -> list[tuple[float, np.ndarray, np.ndarray]]:
        """Yield every prefix's share of the behavior policy's tokens, and both distributions."""
        return [
            (
                prod(token_probs(self.behavior, prefix)) / LENGTH,
                self.behavior[prefix],
                self.target[prefix],
            )
            for prefix in PREFIXES
        ]

    def of_sequences(self) -> dict[str, float]:
        return divergences(*self.sequence_distributions)

    def of_tokens(self) -> dict[str, float]:
        """Return the mean over contexts, weighted as the behavior policy visits them."""
        result: dict[str, float] = {}
        for share, p, q in self.contexts:
            for name, value in divergences(p, q).items():
                result[name] = result.get(name, 0.0) + share * value
        return result

    def batch(self, tokens: int = LENGTH) -> tuple[list[list[float]], list[list[float]]]:
        """Make a batch with each sequence, or prefix, as often as in PARTS^LENGTH exact draws."""
        behavior, target = [], []
        for sequence in SEQUENCES:
            probs = token_probs(self.behavior, sequence)
            times = prod(probs) * PARTS**LENGTH
            assert abs(times - round(times)) < 1e-9
            if times:
                other = token_probs(self.target, sequence)
                behavior += [np.log(probs[:tokens]).tolist()] * round(times)
                target += [np.log(other[:tokens]).tolist()] * round(times)
        return behavior, target


def divergences(p: np.ndarray, q: np.ndarray) -> dict[str, float]:
    """Return the divergences of p, the sampler's, and q, with or without equal support."""
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = np.where(p > 0, p * np.log(p / q), 0.0).sum()
        reverse = np.where(q > 0, q * np.log(q / p), 0.0).sum()
        chi2 = np.where((p > 0) | (q > 0), q * q / p, 0.0).sum() - 1.0
    return {
        "kl": float(kl),
        "reverse": float(reverse),
        "chi2": float(chi2),
        "tv": float(np.abs(p - q).sum() / 2),
        "hellinger2": float(1.0 - np.sqrt(p * q).sum()),
    }
