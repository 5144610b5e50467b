"""Ragged rows of sampled responses hold whole sequences, as models need them.

Values of tokens are flat and reduce to their sequences. Statistics need only the tokens that the
policy sampled: `token_batch.sampled_tokens`. Engines read these rows in processes that may have
numpy alone, so they are dataclasses, and nothing else is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _reduce(
    ufunc: Callable[..., NDArray[Any]],
    values: NDArray[Any],
    lengths: NDArray[np.int64],
    empty: float,
) -> NDArray[Any]:
    # `reduceat` misreads empty segments, so they are left out and filled in afterwards.
    filled = lengths > 0
    out = np.full(len(lengths), empty, dtype=values.dtype)
    starts = (np.cumsum(lengths) - lengths)[filled]
    if len(starts):
        with np.errstate(over="ignore", invalid="ignore"):  # out of range is inf, as for ratios
            out[filled] = ufunc(values, starts)
    return out


def segment_sum(values: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the sum of `values` [tokens] over each sequence; 0 where it has no token."""
    return _reduce(np.add.reduceat, values, lengths, 0)


def segment_max(values: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the largest of `values` [tokens] in each sequence; -inf where it has no token."""
    return _reduce(np.maximum.reduceat, values, lengths, -np.inf)


def starts_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each sequence's first token among all tokens, [sequences]."""
    return np.cumsum(lengths) - lengths


POLICY_NAME = re.compile(r"[A-Za-z0-9_-]+")
# What the metadata holds of the risk that tokens, encoded again from text, are other tokens.
REENCODED = "reencoded"
# What the metadata holds of prompts of later turns that were held against the chat template.
CHAT_TEMPLATE = "chat_template"


@dataclass(frozen=True)
class ModelLimits:
    """The vocabulary and context that a model can take."""

    model: str
    vocab_size: int | None  # None where it is not known before an engine starts
    context: int | None  # tokens; None where the model states no limit
    temperature: float | None = None  # the one that it scores at; None where any


@dataclass(frozen=True)
class Ragged:
    """Lists of different lengths in flat form, Arrow's own layout."""

    values: NDArray[Any]  # [tokens]
    offsets: NDArray[np.int64]  # [sequences + 1], offsets[0] == 0

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def row(self, index: int) -> NDArray[Any]:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def slice(self, start: int, stop: int) -> Ragged:
        """Return the lists from `start` to before `stop`."""
        offsets = self.offsets[start : stop + 1]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """Rows of a trajectory table, in its order."""

    first_row: int  # number in the whole table of the first row that was read
    response_ids: Ragged  # [response tokens] int32
    mask: NDArray[np.bool_]  # [response tokens] True = sampled by the policy
    prompt_ids: Ragged | None = None  # [prompt tokens] int32
    log_probs: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # [response tokens]
    temperature: NDArray[np.float64] | None = None  # [sequences] NaN = unknown
    group: NDArray[np.uint64] | None = None  # [sequences] hash of group_id
    step: NDArray[np.int64] | None = None  # [sequences]
    reward: NDArray[np.float64] | None = None  # [sequences] NaN = unknown
    advantage: NDArray[np.float64] | None = None  # [sequences] NaN = unknown
    advantages: NDArray[np.float64] | None = None  # [response tokens]
    entropy: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # [response tokens]
    sample_id: Sequence[str | int] | None = None  # [sequences]
    sampling: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # top_p, top_k, min_p
    engine: Sequence[str] | None = None  # [sequences] replica of the sampler
    finish_reason: Sequence[str | None] | None = None  # [sequences]
    # Version of the weights that sampled, [sequences] or [response tokens]; -1 = unknown.
    policy_version: NDArray[np.int64] | None = None
    # By column name, a list for each response token: `rollout_kept_ids`, `rollout_routed_experts`.
    token_lists: dict[str, Ragged] = field(default_factory=dict)
    # Numbers in the whole table, [sequences]; None where all rows from `first_row` on are here.
    rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.response_ids)

    @property
    def row(self) -> NDArray[np.int64]:
        """Return the number of each row in the whole table, [sequences]."""
        return self.first_row + np.arange(len(self)) if self.rows is None else self.rows

    @property
    def sampled_lengths(self) -> NDArray[np.int64]:
        """Return the unmasked response tokens of each sequence."""
        return segment_sum(self.mask.astype(np.int64), self.response_ids.lengths)

    @property
    def scoring_temperature(self) -> NDArray[np.float64]:
        """Return the temperature to score each row at: its own, or 1 if unknown."""
        if self.temperature is None:
            return np.ones(len(self))
        return np.where(np.isnan(self.temperature), 1.0, self.temperature)

    @property
    def groups(self) -> NDArray[np.uint64]:
        """Return each row's prompt group, [sequences]; its row number where it has none."""
        if self.group is not None:
            return self.group
        return self.row.astype(np.uint64)


@dataclass(frozen=True)
class Scores:
    """Log-probs of every response token, in the order of `Trajectories.response_ids`."""

    log_probs: NDArray[np.float32]  # [response tokens] nats
    entropy: NDArray[np.float32] | None = None  # [response tokens] nats
    top_ids: NDArray[np.int32] | None = None  # [response tokens, k]
    top_log_probs: NDArray[np.float32] | None = None  # [response tokens, k] nats
    # [response tokens, layers x top-k] of a mixture of experts, layer by layer
    routed_experts: NDArray[np.uint16] | None = None
