"""The sequence table: one row per sequence, from which every metric and interval is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.pair import PolicyPair
from rcdiag.segments import segment_logsumexp, segment_max, segment_sum

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TokenValues:
    """What the token quantities are made of, computed once."""

    behavior: Array  # [tokens] log-probs, nats
    target: Array  # [tokens] log-probs, nats
    log_ratio: Array  # [tokens] target - behavior, nats
    behavior_probs: Array  # [tokens]
    target_probs: Array  # [tokens]

    @classmethod
    def of(cls, pair: PolicyPair) -> TokenValues:
        behavior, target = pair.behavior_log_probs, pair.target_log_probs
        return cls(behavior, target, pair.log_ratio, np.exp(behavior), np.exp(target))


def k3(values: TokenValues) -> Array:
    """Ratio - 1 - log_ratio of each token, in nats: never negative.

    By expm1, so that small log-ratios keep their digits. Source: Schulman 2020,
    http://joschu.net/blog/kl-approx.html
    """
    return np.expm1(values.log_ratio) - values.log_ratio


TOKEN_SUMS: dict[str, Callable[[TokenValues], Array]] = {
    "behavior": lambda v: v.behavior,
    "target": lambda v: v.target,
    "log_ratio": lambda v: v.log_ratio,
    "log_ratio_abs": lambda v: np.abs(v.log_ratio),
    "log_ratio_squared": lambda v: np.square(v.log_ratio),
    "k3": k3,
    "ratio_squared_excess": lambda v: np.expm1(2.0 * v.log_ratio),
    "prob_diff": lambda v: np.abs(v.target_probs - v.behavior_probs),
    # 1 - p, not p: confident policies are near p = 1, where p has lost its digits.
    "behavior_miss": lambda v: -np.expm1(v.behavior),
    "target_miss": lambda v: -np.expm1(v.target),
    "behavior_miss_squared": lambda v: np.square(np.expm1(v.behavior)),
    "target_miss_squared": lambda v: np.square(np.expm1(v.target)),
    "miss_product": lambda v: np.expm1(v.behavior) * np.expm1(v.target),
}

TOKEN_MAXIMA: dict[str, Callable[[TokenValues], Array]] = {
    "log_ratio_abs": lambda v: np.abs(v.log_ratio),
    "prob_diff": lambda v: np.abs(v.target_probs - v.behavior_probs),
}

TOKEN_LOGSUMEXPS: dict[str, Callable[[TokenValues], Array]] = {
    "ratio": lambda v: v.log_ratio,
    "ratio_squared": lambda v: 2.0 * v.log_ratio,
}


@dataclass(frozen=True, slots=True)
class SequenceTable:
    """Per-sequence reductions of the token values; sequences without a token are left out."""

    lengths: NDArray[np.int64]  # [sequences] unmasked tokens, at least 1
    sums: Mapping[str, Array]  # name -> [sequences]
    maxima: Mapping[str, Array]  # name -> [sequences]
    logs: Mapping[str, Array]  # name -> [sequences] log of a sum of exponentials
    cluster: NDArray[np.uint64]  # [sequences] sequences of one prompt share it
    step: NDArray[np.int64] | None = None  # [sequences]

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, keep: NDArray[np.bool_]) -> SequenceTable:
        """The sequences where `keep` is True."""

        def kept(columns: Mapping[str, Array]) -> dict[str, Array]:
            return {name: column[keep] for name, column in columns.items()}

        step = None if self.step is None else self.step[keep]
        parts = kept(self.sums), kept(self.maxima), kept(self.logs)
        return SequenceTable(self.lengths[keep], *parts, self.cluster[keep], step)


def sequence_table(
    pair: PolicyPair, cluster: NDArray[np.uint64], step: NDArray[np.int64] | None
) -> SequenceTable:
    """Reduce the tokens of a pair to their sequences."""
    values = TokenValues.of(pair)
    filled = pair.lengths > 0
    lengths = pair.lengths[filled]
    # Ratios beyond the range of float64 become inf, and inf - inf NaN, which is what they are.
    with np.errstate(over="ignore", invalid="ignore"):
        return SequenceTable(
            lengths,
            {name: segment_sum(f(values), lengths) for name, f in TOKEN_SUMS.items()},
            {name: segment_max(f(values), lengths) for name, f in TOKEN_MAXIMA.items()},
            {name: segment_logsumexp(f(values), lengths) for name, f in TOKEN_LOGSUMEXPS.items()},
            cluster[filled],
            None if step is None else step[filled],
        )


def concatenate(tables: Sequence[SequenceTable]) -> SequenceTable:
    """The table of the union of the shards."""

    def join(columns: list[Mapping[str, Array]]) -> dict[str, Array]:
        return {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}

    steps = [table.step for table in tables if table.step is not None]
    return SequenceTable(
        np.concatenate([table.lengths for table in tables]),
        join([table.sums for table in tables]),
        join([table.maxima for table in tables]),
        join([table.logs for table in tables]),
        np.concatenate([table.cluster for table in tables]),
        np.concatenate(steps) if steps else None,
    )
