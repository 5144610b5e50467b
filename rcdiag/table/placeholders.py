"""Values that writers put where they have no log-prob are recognised and counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Constants that trainers fill a log-prob column with where they have none; a column that holds one
# of them at every sampled token was never measured.
PLACEHOLDERS = (0.0, 1.0, -1.0)
# What vLLM and SkyRL write for a log-prob that JSON or the trainer cannot hold, -inf above all:
# vllm/entrypoints/openai/chat_completion/serving.py, skyrl/train/dataset/preprocess.py.
FLOOR = -9999.0
# A file of fewer sampled tokens may hold one number alone: 0.0 at tokens that are certain.
FEWEST_TOKENS = 100


@dataclass
class LogProbWatch:
    """What is learned of a column of log-probs while its rows stream by."""

    tokens: int = 0  # sampled tokens that have a value, NaN too
    floored: int = 0  # those that were FLOOR
    rows_floored: int = 0  # rows that hold one of those
    constant: float | None = None  # the value that all of them have, as long as they do
    varies: bool = False

    def add(self, values: NDArray[np.floating], sampled: NDArray[np.bool_]) -> None:
        """Take in the values at some tokens, and which of those were sampled, both [tokens]."""
        self.tokens += int(np.count_nonzero(sampled))
        if self.varies or not self.tokens:
            return
        own = values[sampled]
        if self.constant is None:
            self.constant = float(own[0])
        self.varies = not bool((own == self.constant).all())

    def floor(self, floored: NDArray[np.bool_], lengths: NDArray[np.integer]) -> None:
        """Count sampled tokens that hold FLOOR, [tokens], of rows of these lengths, [rows]."""
        owner = np.repeat(np.arange(len(lengths)), lengths)
        self.floored += int(floored.sum())
        self.rows_floored += len(np.unique(owner[floored]))

    @property
    def placeholder(self) -> str:
        """Return in words the constant that stands for no log-prob; empty where there is none."""
        if self.tokens and self.floored == self.tokens:
            return f"{FLOOR:g}"
        constant = None if self.varies else self.constant
        return f"{constant:g}" if constant in PLACEHOLDERS and self.tokens else ""


@dataclass
class EqualityWatch:
    """Whether two policies' log-probs are equal bit for bit on every sampled token."""

    tokens: int = 0
    equal: bool = True

    def add(
        self,
        one: NDArray[np.floating],
        other: NDArray[np.floating],
        sampled: NDArray[np.bool_],
    ) -> None:
        """Take in both columns' values at the same tokens, and which were sampled, all [tokens]."""
        self.tokens += int(np.count_nonzero(sampled))
        if self.equal:
            self.equal = bool(np.array_equal(one[sampled], other[sampled]))
