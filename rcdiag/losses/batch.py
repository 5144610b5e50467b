"""A policy loss reads this batch, log-probs of all unmasked tokens, and returns token losses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-8  # what verl adds to counts that it divides by


@dataclass(frozen=True, slots=True, eq=False)
class LossBatch:
    """The tokens of one update, tensors [tokens] in float64; `kept` is False at rejected ones.

    log_ratio = current - old, in nats; the PPO ratio is its exp. In bypass mode `old` is the
    rollout's.
    """

    current: Tensor  # log-probs under the policy being updated
    old: Tensor
    advantages: Tensor
    kept: Tensor  # bool
    lengths: Tensor  # [rows]; a row may have no token
    padded_width: int  # longest response, masked places counted
    weights: Tensor | None = None  # IS weights, constants of the gradient; None: no IS
    rollout: Tensor | None = None  # log-probs that the sampler recorded; few losses read it

    @property
    def log_ratio(self) -> Tensor:
        return self.current - self.old

    @property
    def rows(self) -> Tensor:
        """Return the row of each token, [tokens]."""
        import torch

        return torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)

    def row_sums(self, values: Tensor) -> Tensor:
        """Return the sum of `values` [tokens] over each row, [rows]; 0 where it has none."""
        zeros = values.new_zeros(len(self.lengths))
        return zeros.index_add(0, self.rows, values)

    @property
    def kept_counts(self) -> Tensor:
        """Return the tokens of each row that are not rejected, [rows]."""
        return self.row_sums(self.kept.double())

    def only_kept(self) -> LossBatch:
        """Return the rows without their rejected tokens, which then cannot matter."""
        columns = {
            name: values[self.kept]
            for name in ("current", "old", "advantages", "kept", "weights", "rollout")
            if (values := getattr(self, name)) is not None
        }
        return replace(self, lengths=self.kept_counts.long(), **columns)


def loss_batch(
    current: ArrayLike,
    old: ArrayLike,
    advantages: ArrayLike,
    lengths: ArrayLike,
    *,
    kept: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    rollout: ArrayLike | None = None,
    padded_width: int | None = None,
) -> LossBatch:
    """Make a batch of arrays [tokens] and the lengths of its rows.

    Without `kept` no token is rejected; without `padded_width` it is the length of the longest row.
    """
    import torch

    counts = np.array(lengths, np.int64)
    tokens = int(counts.sum())

    def column(name: str, values: ArrayLike, dtype: type = np.float64) -> Tensor:
        array: NDArray = np.array(values, dtype)
        if array.shape != (tokens,):
            raise RcdiagError(
                f"{name}: {array.shape} values for {tokens} tokens",
                "give one value for each unmasked token",
            )
        return torch.from_numpy(array)

    return LossBatch(
        current=column("current", current),
        old=column("old", old),
        advantages=column("advantages", advantages),
        kept=column("kept", np.ones(tokens) if kept is None else kept, np.bool_),
        lengths=torch.from_numpy(counts),
        padded_width=int(counts.max(initial=0)) if padded_width is None else padded_width,
        weights=None if weights is None else column("weights", weights),
        rollout=None if rollout is None else column("rollout", rollout),
    )


@dataclass(frozen=True, slots=True, eq=False)
class TokenLosses:
    """Losses before weights and reduction, and the token values that the trainer's metrics average.

    Losses are [tokens], or [rows] with `by_row`. With `weighted` the loss has taken IS weights
    itself, and nothing multiplies it.
    """

    values: Tensor
    logged: dict[str, Tensor]
    by_row: bool = False
    weighted: bool = False
