"""What is kept of the tokens: a few numbers per sequence and quantity. Shards add up by joining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.quantities import Array, Quantity, Reduction, Tokens
from rcdiag.statistics.block import Block
from rcdiag.statistics.quantiles import Sketch, union_of_sketches
from rcdiag.table.segments import segment_max, segment_sum

EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Column:
    """A quantity of tokens, reduced by sequence; [sequences] float64, empty what is not kept."""

    sum: NDArray[np.float64]
    squares: NDArray[np.float64]
    max: NDArray[np.float64]
    min: NDArray[np.float64]

    @classmethod
    def of_tokens(
        cls, values: Array, lengths: NDArray[np.int64], keeps: Sequence[Reduction]
    ) -> Column:
        wide = values.astype(np.float64, copy=False)
        none = np.empty(0)
        return cls(
            segment_sum(wide, lengths) if "sum" in keeps else none,
            segment_sum(np.square(values).astype(np.float64, copy=False), lengths)
            if "squares" in keeps
            else none,
            segment_max(wide, lengths) if "max" in keeps else none,
            -segment_max(-wide, lengths) if "min" in keeps else none,
        )

    @classmethod
    def of_sequences(cls, values: Array, lengths: NDArray[np.int64]) -> Column:
        """A quantity that is the same at every token of a sequence."""
        wide = values.astype(np.float64, copy=False)
        return cls(wide * lengths, np.square(wide) * lengths, wide, wide)


@dataclass(frozen=True, slots=True)
class Rows:
    """Sequences with at least one unmasked token, and the number of those without."""

    lengths: NDArray[np.int64]
    behavior: NDArray[np.float64]  # [sequences] summed log-probs
    target: NDArray[np.float64]  # [sequences]
    cluster: NDArray[np.uint64]
    reward: NDArray[np.float64]  # NaN = unknown
    columns: Mapping[Quantity, Column]
    empty: int
    ratios: Sketch | None = None  # of tokens, clamped; where percentiles are logged
    dtype: type[np.floating] = np.float64  # arithmetic of the trainer

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def epsilon(self) -> float:
        """What trainers add to counts before they divide; in float32 a count swallows it."""
        return EPSILON if self.dtype == np.float64 else 0.0

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())


def rows_of(
    block: Block,
    quantities: Sequence[Quantity],
    empty: int,
    *,
    keep_ratios: bool = False,
    dtype: type[np.floating] = np.float64,
) -> Rows:
    """Reduce the tokens of a block; `empty` of its sequences have none."""
    behavior = block.pair.behavior_log_probs.astype(dtype, copy=False)
    target = block.pair.target_log_probs.astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        tokens = Tokens(target - behavior)
        columns = {
            quantity: Column.of_tokens(quantity.of(tokens), block.lengths, quantity.keeps)
            for quantity in quantities
        }
        return Rows(
            block.lengths,
            segment_sum(behavior.astype(np.float64), block.lengths),
            segment_sum(target.astype(np.float64), block.lengths),
            block.cluster,
            np.full(len(block.lengths), np.nan) if block.reward is None else block.reward,
            columns,
            empty,
            Sketch([tokens.ratio.astype(np.float64)]) if keep_ratios else None,
            dtype,
        )


def union_of_rows(parts: Sequence[Rows]) -> Rows:
    """The rows of all shards."""
    if len(parts) == 1:
        return parts[0]

    def join(name: str) -> NDArray:
        return np.concatenate([getattr(part, name) for part in parts])

    def join_column(quantity: Quantity) -> Column:
        columns = [part.columns[quantity] for part in parts]
        return Column(
            *(
                np.concatenate([getattr(column, name) for column in columns])
                for name in ("sum", "squares", "max", "min")
            )
        )

    sketches = [part.ratios for part in parts if part.ratios is not None]
    return Rows(
        join("lengths"),
        join("behavior"),
        join("target"),
        join("cluster"),
        join("reward"),
        {quantity: join_column(quantity) for quantity in parts[0].columns},
        sum(part.empty for part in parts),
        union_of_sketches(sketches) if sketches else None,
        parts[0].dtype,
    )
