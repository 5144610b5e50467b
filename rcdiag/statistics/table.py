"""The sequence table: one short row per sequence, for all that looks at whole sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.segments import segment_max, segment_sum
from rcdiag.statistics.block import Block
from rcdiag.statistics.ratios import Array
from rcdiag.statistics.tokens import TOKEN_MAXIMA, TOKEN_SUMS

SUMS_KEPT = ("behavior", "target", "log_ratio", "k2", "k3")


@dataclass(frozen=True, slots=True)
class SequenceTable:
    """Sequences with at least one unmasked token, in the order of the rows."""

    lengths: NDArray[np.int64]  # [sequences] unmasked tokens
    sums: Mapping[str, Array]  # name of TOKEN_SUMS -> [sequences]
    maxima: Mapping[str, Array]  # name of TOKEN_MAXIMA -> [sequences]
    # log sum ratio and log sum ratio^2 over a sequence's tokens, and its mean log_ratio weighted
    # by ratio: what ESS needs, safe from overflow.
    ratio_log_sum: Array
    ratio_squared_log_sum: Array
    tilted_log_ratio: Array
    cluster: NDArray[np.uint64]  # [sequences] sequences of one prompt share it
    row: NDArray[np.int64]  # [sequences] in the whole table
    reward: Array  # [sequences] NaN = unknown

    def __len__(self) -> int:
        return len(self.lengths)


def token_sums(block: Block) -> Array:
    """Every quantity of TOKEN_SUMS, added up by sequence: [sequences, len(TOKEN_SUMS)]."""
    sums = np.empty((len(TOKEN_SUMS), len(block.lengths)))
    # inf - inf is NaN, which is what it is; no warning needed.
    with np.errstate(over="ignore", invalid="ignore"):
        for index, formula in enumerate(TOKEN_SUMS.values()):
            sums[index] = segment_sum(formula(block.values), block.lengths)
    return sums.T


def sequence_table(block: Block, sums: Array) -> SequenceTable:
    """The rows of a block's sequences; `sums` are its `token_sums`."""
    lengths = block.lengths
    names = list(TOKEN_SUMS)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return SequenceTable(
            lengths,
            {name: sums[:, names.index(name)].copy() for name in SUMS_KEPT},
            {name: segment_max(f(block.values), lengths) for name, f in TOKEN_MAXIMA.items()},
            *_log_ratio_sums(block.values.ratios.log_ratio, lengths),
            block.cluster,
            block.row,
            np.full(len(lengths), np.nan) if block.reward is None else block.reward,
        )


def _log_ratio_sums(log_ratio: Array, lengths: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    largest = segment_max(log_ratio, lengths)
    # A shift of +-inf would turn the terms into NaN; without it exp gives inf or 0, as it should.
    shift = np.where(np.isfinite(largest), largest, 0.0)
    scaled = np.exp(log_ratio - np.repeat(shift, lengths))
    total = segment_sum(scaled, lengths)
    squares = segment_sum(np.square(scaled), lengths)
    # A ratio of 0 has a log-ratio of -inf, and adds nothing.
    tilted = segment_sum(np.where(scaled == 0.0, 0.0, scaled * log_ratio), lengths) / total
    return shift + np.log(total), 2.0 * shift + np.log(squares), tilted


def concatenate(tables: Sequence[SequenceTable]) -> SequenceTable:
    """The table of the union of the shards."""
    if len(tables) == 1:
        return tables[0]

    def join(columns: list[Mapping[str, Array]]) -> dict[str, Array]:
        return {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}

    def flat(name: str) -> NDArray:
        return np.concatenate([getattr(table, name) for table in tables])

    return SequenceTable(
        flat("lengths"),
        join([table.sums for table in tables]),
        join([table.maxima for table in tables]),
        flat("ratio_log_sum"),
        flat("ratio_squared_log_sum"),
        flat("tilted_log_ratio"),
        flat("cluster"),
        flat("row"),
        flat("reward"),
    )
