"""Sampled responses as ragged rows: whole sequences, the input of models and engines.

Values per token are flat; `segment_sum` and `segment_max` reduce them to sequences. Statistics use
sampled tokens only: see `token_batch.sampled_tokens`. Engines run in processes that may have numpy
and nothing else, therefore these are dataclasses and nothing else is imported here.
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
    # `reduceat` is wrong for empty segments, so they are left out here and set to `empty`.
    filled = lengths > 0
    out = np.full(len(lengths), empty, dtype=values.dtype)
    starts = (np.cumsum(lengths) - lengths)[filled]
    if len(starts):
        with np.errstate(over="ignore", invalid="ignore"):  # overflow gives inf, as for ratios
            out[filled] = ufunc(values, starts)
    return out


def segment_sum(values: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the sum of `values` [tokens] over each sequence; 0 if it has no token."""
    return _reduce(np.add.reduceat, values, lengths, 0)


def segment_max(values: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the maximum of `values` [tokens] in each sequence; -inf if it has no token."""
    return _reduce(np.maximum.reduceat, values, lengths, -np.inf)


def starts_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of each sequence's first token among all tokens, [sequences]."""
    return np.cumsum(lengths) - lengths


POLICY_NAME = re.compile(r"[A-Za-z0-9_-]+")
# Metadata key: how likely tokens differ because they were encoded again from text.
REENCODED = "reencoded"
# Metadata key: whether prompts of later turns agree with the chat template.
CHAT_TEMPLATE = "chat_template"
# Stands for a null in `policy_version`.
UNKNOWN_VERSION = -1


@dataclass(frozen=True)
class ModelLimits:
    """The vocabulary, context length and temperature that a model supports."""

    model: str
    vocab_size: int | None  # None if unknown before an engine starts
    context: int | None  # tokens; None if the model states no limit
    temperature: float | None = None  # the only one that it can score at; None if it can at any


@dataclass(frozen=True)
class Ragged:
    """Lists of different lengths as flat values and offsets, as in Arrow."""

    values: NDArray[Any]  # [tokens]
    offsets: NDArray[np.int64]  # [sequences + 1], offsets[0] == 0

    @classmethod
    def of(cls, values: NDArray[Any], lengths: NDArray[np.integer]) -> Ragged:
        """Return lists of these lengths [sequences], of which `values` is the concatenation."""
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def row(self, index: int) -> NDArray[Any]:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def row_with(self, at: int) -> int:
        """Return the row that holds the flat value `at`."""
        return int(np.searchsorted(self.offsets, at, side="right")) - 1

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Ragged:
        """Return the lists of some rows, by index or by flag."""
        lengths = self.lengths[rows]
        # Index of each taken value: the start of its list, plus its place in that list.
        shift = np.repeat(self.offsets[:-1][rows] - starts_of(lengths), lengths)
        return Ragged.of(self.values[np.arange(len(shift)) + shift], lengths)

    def slice(self, start: int, stop: int) -> Ragged:
        """Return the lists `start` to `stop` - 1."""
        offsets = self.offsets[start : stop + 1]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """Rows of a trajectory table, in the table's order."""

    first_row: int  # number of the first row within the whole table
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
    # Version of the weights that sampled, [sequences] or [response tokens].
    policy_version: NDArray[np.int64] | None = None
    # Column name -> one list per response token: `rollout_kept_ids`, `rollout_routed_experts`.
    token_lists: dict[str, Ragged] = field(default_factory=dict)
    # Row numbers within the whole table, [sequences]; None if rows are consecutive.
    rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.response_ids)

    @property
    def row(self) -> NDArray[np.int64]:
        """Return the number of each row within the whole table, [sequences]."""
        return self.first_row + np.arange(len(self)) if self.rows is None else self.rows

    @property
    def sampled_lengths(self) -> NDArray[np.int64]:
        """Return the number of unmasked response tokens of each sequence."""
        return segment_sum(self.mask.astype(np.int64), self.response_ids.lengths)

    @property
    def scoring_temperature(self) -> NDArray[np.float64]:
        """Return the temperature to score each row at: the recorded one, or 1 if unknown."""
        if self.temperature is None:
            return np.ones(len(self))
        return np.where(np.isnan(self.temperature), 1.0, self.temperature)

    @property
    def groups(self) -> NDArray[np.uint64]:
        """Return each row's prompt group, [sequences]; its row number if there are no groups."""
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
    # [response tokens, layers x top-k] of a mixture-of-experts model, layer by layer
    routed_experts: NDArray[np.uint16] | None = None
