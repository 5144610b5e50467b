"""Extreme values: the largest log-ratios, and values that cannot be log-probs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.results import SequenceTokens, WorstToken
from rcdiag.statistics.merging import merge_fields
from rcdiag.statistics.pair import PolicyPair
from rcdiag.table.token_batch import Array, Flags, TokenBatch
from rcdiag.table.trajectories import segment_sum

WORST = 20
WORST_SEQUENCES = 30
# At most this many tokens of each of the worst sequences are kept while a table is read; the tokens
# for the result are chosen when these sequences are read again.
TOKENS_KEPT = 400
ROWS_NAMED = 10
# If all log-probs are equal, that is a fault, but only from this many rows and tokens on: small
# tables made by hand may be constant.
ALIKE_ROWS, ALIKE_TOKENS = 3, 100

# log-softmax in float32 may round a certain token to a few 1e-7 above 0, and bfloat16 logits in a
# fused kernel to about 1e-4; anything above this is not a log-prob.
LARGEST_LOG_PROB = 1e-3
# The most negative float32 logit (-3e38) stands for "never", like -inf. Below -1e12 nats, float64
# sums lose the digits that distinguish the ratios of tokens.
SMALLEST_LOG_PROB = -1e12


class WorstTokens(Struct, frozen=True):
    """The WORST tokens by |log_ratio|, largest first; ties by row and position."""

    tokens: list[WorstToken] = field(default_factory=list)

    @classmethod
    def of(cls, pair: PolicyPair) -> WorstTokens:
        size = pair.values.ratios.size
        least = np.partition(np.fmax(size, 0.0), -WORST)[-WORST] if len(size) > WORST else 0.0
        among = np.flatnonzero(size >= least)  # False for NaN
        best = among[np.argsort(-size[among], kind="stable")[:WORST]]
        batch, values = pair.tokens, pair.values
        rows = batch.row[np.searchsorted(np.cumsum(pair.lengths), best, side="right")]
        return cls(
            [
                WorstToken(
                    row=int(row),
                    position=int(batch.position[token]),
                    token_id=int(batch.token_id[token]),
                    behavior_log_prob=float(values.behavior[token]),
                    target_log_prob=float(values.target[token]),
                    log_ratio=float(pair.log_ratio[token]),
                )
                for token, row in zip(best, rows, strict=True)
            ]
        ).bounded()

    def bounded(self) -> WorstTokens:
        def place(one: WorstToken) -> tuple[float, int, int]:
            return -abs(one["log_ratio"]), one["row"], one["position"]

        return WorstTokens(sorted(self.tokens, key=place)[:WORST])


class SequenceOfPair(Struct, frozen=True, kw_only=True):
    """A sequence of a pair of policies, with some of its tokens as arrays [shown tokens].

    Thousands are made in a pass, few of them are shown; those become `SequenceTokens`.
    """

    row: int
    sample_id: str | int | None
    step: int | None
    reward: float | None
    num_tokens: int
    log_ratio_sum: float
    positions: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    log_ratio: Array
    behavior_log_probs: Array

    @classmethod
    def of(
        cls, pair: PolicyPair, index: int, end: int, shown: NDArray[np.int64] | None = None
    ) -> SequenceOfPair:
        """Take a sequence from a pair, by its index.

        `end` is the index of its last token plus 1. `shown` are the indices, within the sequence,
        of the tokens to keep; by default the first TOKENS_KEPT.
        """
        tokens, start = pair.tokens, end - int(pair.lengths[index])
        kept = start + (np.arange(min(end - start, TOKENS_KEPT)) if shown is None else shown)
        with np.errstate(over="ignore", invalid="ignore"):
            log_ratio_sum = float(pair.log_ratio_at(slice(start, end)).sum())
        reward = None if tokens.reward is None else float(tokens.reward[index])
        return cls(
            row=int(tokens.row[index]),
            sample_id=None if tokens.sample_id is None else tokens.sample_id[index],
            step=None if tokens.step is None else int(tokens.step[index]),
            reward=None if reward is None or np.isnan(reward) else reward,
            num_tokens=end - start,
            log_ratio_sum=log_ratio_sum,
            positions=tokens.position[kept],
            token_ids=tokens.token_id[kept],
            log_ratio=pair.log_ratio_at(kept),
            behavior_log_probs=tokens.log_probs[pair.behavior][kept],
        )

    def rounded(self) -> SequenceTokens:
        """Return the sequence for a result, with the digits that it shows of single tokens."""
        return SequenceTokens(
            row=self.row,
            sample_id=self.sample_id,
            step=self.step,
            reward=self.reward,
            num_tokens=self.num_tokens,
            log_ratio_sum=self.log_ratio_sum,
            positions=self.positions.tolist(),
            token_ids=self.token_ids.tolist(),
            log_ratio=shown_log_ratios(self.log_ratio),
            behavior_log_probs=[float(f"{value:.5g}") for value in self.behavior_log_probs],
        )


class WorstSequences(Struct, frozen=True):
    """The sequences with the largest |sum log_ratio|, largest first; ties by row."""

    sequences: list[SequenceOfPair] = field(default_factory=list)

    @classmethod
    def of(cls, pair: PolicyPair) -> WorstSequences:
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.abs(segment_sum(pair.log_ratio, pair.lengths))
        among = np.flatnonzero(~np.isnan(sums))
        best = among[np.argsort(-sums[among], kind="stable")[:WORST_SEQUENCES]]
        ends = np.cumsum(pair.lengths)
        return cls([SequenceOfPair.of(pair, int(one), int(ends[one])) for one in best]).bounded()

    def bounded(self) -> WorstSequences:
        worst = sorted(self.sequences, key=lambda one: (-abs(one.log_ratio_sum), one.row))
        return WorstSequences(worst[:WORST_SEQUENCES])

    def rounded(self) -> list[SequenceTokens]:
        """Return the sequences for a result."""
        return [sequence.rounded() for sequence in self.sequences]


def shown_log_ratios(log_ratio: Array) -> list[float]:
    """Round log-ratios of single tokens, nats, to the digits that are shown."""
    with np.errstate(over="ignore"):  # rounding may overflow for huge values
        rounded = np.where(np.abs(log_ratio) < 1e9, np.round(log_ratio, 6), log_ratio)
    shown: list[float] = rounded.tolist()
    return shown


def impossible(log_probs: Array) -> Flags:
    """Flag values that cannot be log-probs: NaN, infinite, positive or below -1e12; same shape."""
    return ~((log_probs >= SMALLEST_LOG_PROB) & (log_probs <= LARGEST_LOG_PROB))


def _impossible_places(log_probs: Array) -> NDArray[np.int64]:
    """Return the indices of values that cannot be log-probs."""
    # numpy's min and max are NaN if any value is.
    if not len(log_probs) or _in_range(float(log_probs.min()), float(log_probs.max())):
        return np.empty(0, np.int64)
    return np.flatnonzero(impossible(log_probs))


def _in_range(low: float, high: float) -> bool:
    """Tell whether values in [low, high] are possible log-probs; False if either is NaN."""
    return low >= SMALLEST_LOG_PROB and high <= LARGEST_LOG_PROB


def rows_of_numbers(batch: TokenBatch) -> Flags:
    """Flag the sequences whose log-probs are possible under every policy, [sequences]."""
    keep = np.ones(len(batch.lengths), np.bool_)
    ends = np.cumsum(batch.lengths)
    for log_probs in batch.log_probs.values():
        places = _impossible_places(log_probs)
        keep[np.searchsorted(ends, places, side="right")] = False
    return keep


class RowCount(Struct, frozen=True):
    """Number of rows with a sampled token, and how many of them cannot be used in statistics."""

    sequences: int = 0
    tokens: int = 0
    left_out: int = 0  # number of these sequences with a value that cannot be a log-prob
    # Minimum and maximum of each policy's log-probs; both are NaN if some value is.
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: TokenBatch) -> RowCount:
        ranges = {
            policy: (float(values.min()), float(values.max()))
            for policy, values in batch.log_probs.items()
            if len(values)
        }
        # numpy's min and max are NaN if any value is.
        fine = all(_in_range(low, high) for low, high in ranges.values())
        bad = 0 if fine else int((~rows_of_numbers(batch)).sum())
        return cls(len(batch.lengths), int(batch.lengths.sum()), bad, ranges)

    @classmethod
    def merged(cls, parts: Sequence[RowCount]) -> RowCount:
        ranges = {}
        for policy in dict.fromkeys(policy for part in parts for policy in part.ranges):
            # numpy's min and max, because they are NaN if any value is.
            ends = np.array([part.ranges[policy] for part in parts if policy in part.ranges])
            ranges[policy] = float(ends[:, 0].min()), float(ends[:, 1].max())
        return merge_fields(parts, ranges=ranges)

    @property
    def constant(self) -> set[str]:
        """Return the policies whose log-probs are all equal; empty for few rows and tokens."""
        if self.sequences < ALIKE_ROWS or self.tokens < ALIKE_TOKENS:
            return set()
        return {policy for policy, (low, high) in self.ranges.items() if low == high}

    @property
    def too_few(self) -> bool:
        """Tell whether fewer than half of the rows remain."""
        return 2 * self.left_out > self.sequences


class Places(Struct, frozen=True):
    """For each policy, the number of tokens with a certain flaw, and the rows that have them."""

    tokens: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    first_rows: Mapping[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: TokenBatch, places: Mapping[str, NDArray[np.int64]]) -> Places:
        """Count the tokens at the given indices of each policy's log-probs."""
        tokens, rows, first_rows = {}, {}, {}
        ends = np.cumsum(batch.lengths)
        for policy, own in places.items():
            if not len(own):
                continue
            bad = batch.row[np.unique(np.searchsorted(ends, own, side="right"))]
            tokens[policy], rows[policy] = len(own), len(bad)
            first_rows[policy] = [int(row) for row in bad[:ROWS_NAMED]]
        return cls(tokens, rows, first_rows)

    def bounded(self) -> Places:
        named = {policy: rows[:ROWS_NAMED] for policy, rows in self.first_rows.items()}
        return Places(self.tokens, self.rows, named)


class NonFinite(Struct, frozen=True):
    """Impossible log-probs: values that are NaN, infinite or below -1e12, and positive values."""

    not_finite: Places = field(default_factory=Places)
    positive: Places = field(default_factory=Places)
    nan: Places = field(default_factory=Places)  # the NaN of `not_finite`

    @classmethod
    def of(cls, batch: TokenBatch) -> NonFinite:
        not_finite, positive, nan = {}, {}, {}
        for policy, log_probs in batch.log_probs.items():
            places = _impossible_places(log_probs)
            above = np.isfinite(log_probs[places]) & (log_probs[places] > 0)
            not_finite[policy], positive[policy] = places[~above], places[above]
            nan[policy] = places[np.isnan(log_probs[places])]
        return cls(*(Places.of(batch, found) for found in (not_finite, positive, nan)))

    @property
    def tokens(self) -> dict[str, int]:
        """Return the number of impossible log-probs of each policy that has any."""
        both = (self.not_finite.tokens, self.positive.tokens)
        return {
            policy: sum(one.get(policy, 0) for one in both) for policy in {**both[0], **both[1]}
        }
