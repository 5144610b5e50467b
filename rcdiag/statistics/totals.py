"""SequenceTable: one short row per sequence; Totals: sums over these rows.

Totals are made of the whole table, and of the table without each cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.registry import Registry
from rcdiag.statistics.clusters import ClusterSums, content_order, grouping
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import RATIO_SUMS, TOKEN_SUMS, Array, Ratios
from rcdiag.table.token_batch import RowFrame
from rcdiag.table.trajectories import starts_of


class RatioSums(RowFrame, frozen=True):
    """Sums of ratios for the ESS, safe from overflow: sums over exp(log_ratio - largest).

    `largest` is kept apart because adding a huge value to the logs would lose their digits. All
    arrays are [sequences].
    """

    largest: Array  # largest log_ratio, nats; 0 if not finite
    log_sum: Array  # log sum ratio
    log_squares: Array  # log sum ratio^2
    tilted: Array  # mean of log_ratio - largest, weighted by ratio


class SequenceTable(RowFrame, frozen=True):
    """Sequences with at least one unmasked token, in row order."""

    lengths: NDArray[np.int64]  # [sequences] unmasked tokens
    cluster: NDArray[np.uint64]  # [sequences] equal for the sequences of one prompt
    sums: Mapping[str, Array]  # [sequences] token sums, of each TokenSum with `by_sequence`
    ratio_sums: RatioSums  # over the tokens of each sequence

    def __len__(self) -> int:
        return len(self.lengths)


def token_sums(pair: PolicyPair) -> Array:
    """Sum every quantity of TOKEN_SUMS by sequence: [sequences, len(TOKEN_SUMS)]."""
    sums = np.empty((len(TOKEN_SUMS), len(pair.lengths)))
    starts = starts_of(pair.lengths)
    # inf - inf is NaN, as it should be, so no warning is needed.
    with np.errstate(over="ignore", invalid="ignore"):
        for index, quantity in enumerate(TOKEN_SUMS.values()):
            np.add.reduceat(quantity.of(pair.values), starts, out=sums[index])
    return sums.T


def sequence_table(pair: PolicyPair, sums: Array) -> SequenceTable:
    """Make the table of a pair's sequences; `sums` are the pair's `token_sums`."""
    lengths = pair.lengths
    starts = starts_of(lengths)
    quantities = enumerate(TOKEN_SUMS.values())
    kept = {quantity.name: index for index, quantity in quantities if quantity.by_sequence}
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return SequenceTable(
            lengths,
            pair.tokens.cluster,
            {name: sums[:, index].copy() for name, index in kept.items()},
            _ratio_sums(pair.log_ratio, lengths, starts),
        )


def _ratio_sums(
    log_ratio: Array, lengths: NDArray[np.int64], starts: NDArray[np.int64]
) -> RatioSums:
    largest = np.maximum.reduceat(log_ratio, starts)
    # Subtracting +-inf would give NaN; without a shift exp correctly gives inf or 0.
    largest = np.where(np.isfinite(largest), largest, 0.0)
    away = log_ratio - np.repeat(largest, lengths)
    scaled = np.exp(away)
    total = np.add.reduceat(scaled, starts)
    squares = np.add.reduceat(np.square(scaled), starts)
    tilted = scaled * away
    if not scaled.all():  # a ratio of 0 has a log-ratio of -inf, but adds nothing
        tilted[scaled == 0.0] = 0.0
    weighted = np.add.reduceat(tilted, starts) / total
    return RatioSums(largest, np.log(total), np.log(squares), weighted)


class Totals(Struct, frozen=True):
    """Sums over the sequences of a table, each [replicates]; the full table is one replicate."""

    sequences: Array
    tokens: Array
    sums: Mapping[str, Array]  # of TOKEN_SUMS and of SEQUENCE_SUMS
    # For "token_ratio" and "seq_ratio": log sum ratio, log sum ratio^2, and the mean log_ratio
    # weighted by ratio. All log-ratios are less a common number, which cancels in any ESS.
    log_sums: Mapping[str, Array]
    log_squares: Mapping[str, Array]
    tilted: Mapping[str, Array]

    def per_token(self, name: str) -> Array:
        return self.sums[name] / self.tokens

    def per_sequence(self, name: str) -> Array:
        return self.sums[name] / self.sequences


def _of_ratios(formula: Callable[[Ratios], Array], table: SequenceTable) -> Array:
    """Return a formula of the whole-sequence ratios, the products of token ratios."""
    return formula(Ratios.of(table.sums["log_ratio"]))


def _log_ppl_diff(table: SequenceTable) -> Array:
    """Return log perplexity under the target less that under the behavior policy, nats."""
    return -table.sums["log_ratio"] / table.lengths


class SequenceSum(Struct, frozen=True):
    """A quantity of whole sequences that is summed by cluster."""

    name: str
    of: Callable[[SequenceTable], Array]  # [sequences]


SEQUENCE_SUMS: Registry[SequenceSum] = Registry(
    "sequence sum",
    [
        SequenceSum("behavior_ppl", lambda t: np.exp(-t.sums["behavior"] / t.lengths)),
        SequenceSum("target_ppl", lambda t: np.exp(-t.sums["target"] / t.lengths)),
        SequenceSum("ppl_ratio", lambda t: np.exp(_log_ppl_diff(t))),
        SequenceSum("log_ppl_diff", _log_ppl_diff),
        SequenceSum("log_ppl_diff_abs", lambda t: np.abs(_log_ppl_diff(t))),
        *(
            SequenceSum(f"seq_{name}", partial(_of_ratios, formula))
            for name, formula in RATIO_SUMS.items()
        ),
        SequenceSum("log_ratio_by_length", lambda t: t.sums["log_ratio"] * t.lengths),
        SequenceSum("length_squared", lambda t: np.square(t.lengths.astype(np.float64))),
    ],
)


RATIOS = ("token_ratio", "seq_ratio")


class Addends(Struct, frozen=True):
    """Rows that sum to totals, one per cluster."""

    names: tuple[str, ...]
    matrix: Array  # [clusters, names]

    def __len__(self) -> int:
        return len(self.matrix)

    def by_content(self) -> Addends:
        """Return the rows sorted by content, so that sums do not depend on cluster names."""
        return replace(self, matrix=self.matrix[content_order(self.matrix)])

    def column(self, name: str) -> Array:
        """Return what each row adds to a sum, [clusters]."""
        return self.matrix[:, self.names.index(name)]

    def totals(self, sums: Array) -> Totals:
        """Make totals from `sums` [replicates, names] of the rows."""
        columns = dict(zip(self.names, np.ascontiguousarray(sums.T), strict=True))
        log_sums, log_squares, tilted = {}, {}, {}
        with np.errstate(divide="ignore", invalid="ignore"):
            for name in RATIOS:
                total = columns.pop(name)
                log_sums[name] = np.log(total)
                log_squares[name] = np.log(columns.pop(f"{name}_squared"))
                tilted[name] = columns.pop(f"{name}_log") / total
        return Totals(
            columns.pop("sequences"), columns.pop("tokens"), columns, log_sums, log_squares, tilted
        )


def addends(table: SequenceTable, tokens: ClusterSums) -> Addends:
    """Sum everything by cluster: `tokens` has the sums of TOKEN_SUMS, `table` the other values."""
    clusters = grouping(table.cluster, tokens.most)
    assert np.array_equal(clusters.keys, tokens.keys)
    columns = {}
    with np.errstate(over="ignore", invalid="ignore"):
        # Only one column of all sequences is in memory at a time.
        for name, quantity in SEQUENCE_SUMS.items():
            columns[name] = clusters.added(quantity.of(table)[:, None])
        columns["sequences"] = clusters.added(np.ones((len(table), 1)))
        columns["tokens"] = clusters.added(table.lengths.astype(np.float64)[:, None])
        for name in RATIOS:
            for part, of_sequences in _scaled_ratios(name, table):
                columns[part] = clusters.added(of_sequences[:, None])
    names = (*TOKEN_SUMS, *columns)
    assert len(set(names)) == len(names), "a token sum and a sequence sum have the same name"
    matrix = np.concatenate([tokens.sums, *(one.sums for one in columns.values())], axis=1)
    return Addends(names, matrix)


def _scaled_ratios(name: str, table: SequenceTable) -> Iterator[tuple[str, Array]]:
    """Yield name and values of sums of ratios per sequence, of tokens or of whole sequences.

    Ratios are exp(log_ratio - the largest of all), so that none overflows.
    """
    sums = table.ratio_sums
    if name == "seq_ratio":
        log_ratio, nothing = table.sums["log_ratio"], np.zeros(len(table))
        sums = RatioSums(log_ratio, nothing, nothing, nothing)
    largest = float(np.max(sums.largest))
    away = sums.largest - (largest if np.isfinite(largest) else 0.0)
    ratios = np.exp(away + sums.log_sum)
    yield name, ratios
    yield f"{name}_squared", np.exp(2.0 * away + sums.log_squares)
    yield f"{name}_log", np.where(ratios == 0.0, 0.0, ratios * (away + sums.tilted))
