"""Input of a policy loss (log-probs of all unmasked tokens) and its output (token losses)."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from rcdiag.errors import RcdiagError
from rcdiag.losses.tensor import Tensor

EPSILON = 1e-8  # verl adds this to counts before dividing by them


class LossBatch(Struct, frozen=True, eq=False):
    """The unmasked tokens of an update, tensors [tokens] in float64; rejected ones are not `kept`.

    log_ratio = current - old, in nats; the PPO ratio is its exp. In bypass mode `old` are the
    rollout's log-probs.
    """

    current: Tensor  # log-probs under the policy being updated
    old: Tensor
    advantages: Tensor
    kept: Tensor  # bool
    lengths: Tensor  # [rows] unmasked tokens; a row may have none
    padded_width: int  # length of the longest response, masked tokens included
    weights: Tensor | None = None  # IS weights, without gradient; None: no IS
    rollout: Tensor | None = None  # log-probs recorded by the sampler; few losses read them
    weights_of_rows: bool = False  # weights of sequences: equal for all tokens of a row
    groups: Tensor | None = None  # [rows] index of the prompt; -1 if unknown
    rewards: Tensor | None = None  # [rows] NaN if unknown
    positions: Tensor | None = None  # [tokens] in the response, masked tokens included, from 0

    @property
    def log_ratio(self) -> Tensor:
        return self.current - self.old

    @property
    def rows(self) -> Tensor:
        """Return the row of each token, [tokens]."""
        numbers = self.lengths.new_ones(len(self.lengths)).cumsum(0) - 1
        return numbers.repeat_interleave(self.lengths)

    def row_sums(self, values: Tensor) -> Tensor:
        """Return the sum of `values` [tokens] over each row, [rows]; 0 for a row without tokens."""
        zeros = values.new_zeros(len(self.lengths))
        return zeros.index_add(0, self.rows, values)

    def row_means(self, values: Tensor) -> Tensor:
        """Return the mean of `values` [tokens] over each row, [rows]; 0 if it has none."""
        return self.row_sums(values.double()) / self.lengths.clamp(min=1)

    def kept_row_means(self, values: Tensor) -> Tensor:
        """Return the mean of `values` [tokens] over the kept tokens of each row, [rows]."""
        kept = values.where(self.kept, values.new_zeros(()))
        return self.row_sums(kept) / self.kept_counts.clamp(min=1)

    @property
    def kept_counts(self) -> Tensor:
        """Return the number of kept tokens of each row, [rows]."""
        return self.row_sums(self.kept.double())

    @property
    def prompts(self) -> Tensor:
        """Return the index of each row's prompt, [rows]; -1 if unknown.

        Raises RcdiagError if no two rows share a prompt, since a mean by prompt is then the mean by
        sequence.
        """
        if self.groups is not None:
            known = self.groups[self.groups >= 0]
            if len(known.unique()) < len(known):
                return self.groups
        raise RcdiagError(
            "every prompt has one sequence, but this update averages over a prompt's sequences",
            "record `group_id`, or the prompts: rows with equal prompts are one group",
        )

    def prompt_sums(self, values: Tensor) -> Tensor:
        """Return the sum of `values` [tokens] over all rows of each prompt, [prompts]."""
        prompts = self.prompts
        zeros = values.new_zeros(int(prompts.max()) + 1)
        return zeros.index_add(0, prompts[self.rows], values)

    def only_kept(self) -> LossBatch:
        """Return the batch without its rejected tokens."""
        columns = {
            name: values[self.kept]
            for name in (
                *("current", "old", "advantages", "kept", "weights", "rollout"),
                "positions",
            )
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
    weights_of_rows: bool = False,
    groups: ArrayLike | None = None,
    rewards: ArrayLike | None = None,
    positions: ArrayLike | None = None,
) -> LossBatch:
    """Make a batch from arrays [tokens] and the lengths of its rows [rows].

    `kept` defaults to all tokens, `padded_width` to the longest row. `groups` (names of prompts)
    and `rewards` are [rows with a token]; rows without tokens come last and have neither.
    """
    counts = np.array(lengths, np.int64)
    tokens = int(counts.sum())

    def column(name: str, values: ArrayLike, dtype: type = np.float64) -> Tensor:
        array: NDArray[Any] = np.array(values, dtype)
        if array.shape != (tokens,):
            raise RcdiagError(
                f"{name}: {array.shape} values for {tokens} tokens",
                "give one value for each unmasked token",
            )
        return Tensor(array)

    def of_rows(values: NDArray[Any], missing: float) -> Tensor:
        padding = np.full(len(counts) - len(values), missing)
        return Tensor(np.concatenate([values, padding]).astype(values.dtype))

    names = None if groups is None else np.unique(np.array(groups), return_inverse=True)[1]
    return LossBatch(
        current=column("current", current),
        old=column("old", old),
        advantages=column("advantages", advantages),
        kept=column("kept", np.ones(tokens) if kept is None else kept, np.bool_),
        lengths=Tensor(counts),
        padded_width=int(counts.max(initial=0)) if padded_width is None else padded_width,
        weights=None if weights is None else column("weights", weights),
        rollout=None if rollout is None else column("rollout", rollout),
        weights_of_rows=weights_of_rows,
        groups=None if names is None else of_rows(names.astype(np.int64), -1),
        rewards=None if rewards is None else of_rows(np.array(rewards, np.float64), np.nan),
        positions=None if positions is None else column("positions", positions, np.int64),
    )


class TokenLosses(Struct, frozen=True, eq=False):
    """Losses before weights and reduction, and token values that the trainer's metrics average.

    `values` is [tokens], or [rows] with `by_row`. With `weighted` the loss includes the IS weights,
    so they are not applied again.
    """

    values: Tensor
    logged: dict[str, Tensor]
    by_row: bool = False
    weighted: bool = False
