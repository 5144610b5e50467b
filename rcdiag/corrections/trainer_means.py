"""Means over the tokens and rows of a batch as trainers compute them: epsilon, empty rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.quantities import Quantity
from rcdiag.corrections.sequences import EPSILON, Array, Sequences

# One number per token, or one per sequence [sequences] that counts for all of its tokens.
OfTokens = Quantity | Array
Metrics = dict[str, float]  # a trainer's key -> the number that it logs
P = ParamSpec("P")


class Batch(Struct, frozen=True):
    """Rows as one trainer batch: `B` rows, of which `V` have a token, and `N` tokens in total."""

    rows: Sequences

    @property
    def all_rows(self) -> int:
        return len(self.rows) + self.rows.empty

    def token_share(self, tokens: float) -> float:
        """Return tokens / (N + 1e-8)."""
        return tokens / (self.rows.tokens + self.rows.epsilon)

    def token_mean(self, values: OfTokens) -> float:
        """Return sum / (N + 1e-8)."""
        return float(self.rows.sum(values).sum() / (self.rows.tokens + self.rows.epsilon))

    def token_mean_of_squares(self, values: OfTokens) -> float:
        return float(self.rows.squares(values).sum() / (self.rows.tokens + self.rows.epsilon))

    def token_std(self, values: OfTokens) -> float:
        """Return sqrt(E[x^2] - E[x]^2), biased, never below 0; 0 for a single token."""
        if self.rows.tokens <= 1:
            return 0.0
        variance = self.token_mean_of_squares(values) - self.token_mean(values) ** 2
        return float(np.sqrt(np.maximum(variance, 0.0)))

    def row_means(self, values: OfTokens) -> Array:
        """Return sum / (T + 1e-8) for each row with T > 0 tokens."""
        return self.rows.sum(values) / (self.rows.lengths + self.rows.epsilon)

    def padded(self, values: Array, fill: float = 0.0) -> Array:
        """Return values for all B rows; rows without a token get `fill`."""
        return np.concatenate([values, np.full(self.rows.empty, fill)])

    def ess(self, values: OfTokens) -> float:
        """Return 1 / E[(x / (E[x] + 1e-8))^2] over tokens; the epsilon lets it exceed 1.

        NaN if all weights are 0, where verl fails with a division by zero.
        """
        squares = self.token_mean_of_squares(values)
        scale = self.token_mean(values) + EPSILON
        return float(scale**2 / squares) if squares != 0.0 else np.nan


def once_a_batch(
    compute: Callable[Concatenate[Batch, P], dict[str, float]],
) -> Callable[Concatenate[Batch, P], dict[str, float]]:
    """Cache the numbers that a function computes of a batch, for all presets that log them.

    Many presets of a trainer share numbers: of the rows alone, of weights or of a rejection.
    """

    def known(batch: Batch, /, *of: P.args, **named: P.kwargs) -> dict[str, float]:
        key = (compute, of, tuple(named.items()))
        numbers = batch.rows.logged
        if key not in numbers:
            numbers[key] = compute(batch, *of, **named)
        return dict(numbers[key])

    functools.update_wrapper(known, compute)
    return known


def std(values: Array) -> float:
    """Return the unbiased standard deviation; 0 for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def perplexities(training: Array, rollout: Array) -> dict[str, Array]:
    """Return what verl and its forks log of both mean log-probs of each row, [rows], by key."""
    difference = rollout - training
    return {
        "training_ppl": np.exp(-training),
        "training_log_ppl": -training,
        "rollout_ppl": np.exp(-rollout),
        "rollout_log_ppl": -rollout,
        "log_ppl_diff": difference,
        "log_ppl_abs_diff": np.abs(difference),
        "ppl_ratio": np.exp(difference),
    }


def row_statistics(values: Array, ideal: float) -> Metrics:
    """Return what verl and its forks log of a number per row; deviations are from `ideal`."""
    return {
        "seq_mean": float(values.mean()),
        "seq_std": std(values),
        "seq_max": float(values.max()),
        "seq_min": float(values.min()),
        "seq_max_deviation": float(np.abs(values - ideal).max()),
    }


def share(flags: NDArray[Any]) -> float:
    return float(np.mean(flags)) if len(flags) else 0.0
