"""The sequence table has one short row per sequence; totals are sums over it.

Totals are made of the table as it is, and of those with one cluster left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rcdiag.registry import Registry
from rcdiag.statistics.clusters import ClusterSums, cluster_sums
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.ratios import RATIO_SUMS, TOKEN_MAXIMA, TOKEN_SUMS, Array, Ratios
from rcdiag.table.segments import starts_of


@dataclass(frozen=True, slots=True)
class SequenceTable:
    """Sequences with at least one unmasked token, in the order of the rows."""

    lengths: NDArray[np.int64]  # [sequences] unmasked tokens
    sums: Mapping[str, Array]  # name of a TokenSum with `by_sequence` -> [sequences]
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

    def take(self, keep: NDArray[np.bool_]) -> SequenceTable:
        """Take some of the sequences, where `keep` [sequences] holds."""
        return SequenceTable(
            self.lengths[keep],
            {name: column[keep] for name, column in self.sums.items()},
            {name: column[keep] for name, column in self.maxima.items()},
            self.ratio_log_sum[keep],
            self.ratio_squared_log_sum[keep],
            self.tilted_log_ratio[keep],
            self.cluster[keep],
            self.row[keep],
            self.reward[keep],
        )

    def __add__(self, other: SequenceTable) -> SequenceTable:
        """Join the sequences of both shards, in order."""
        return joined_tables([self, other])


def joined_tables(tables: Sequence[SequenceTable]) -> SequenceTable:
    """Join the sequences of tables, in order."""
    if len(tables) == 1:
        return tables[0]

    def joined(name: str) -> NDArray:
        return np.concatenate([getattr(table, name) for table in tables])

    def by_name(name: str) -> dict[str, Array]:
        columns = [getattr(table, name) for table in tables]
        return {key: np.concatenate([column[key] for column in columns]) for key in columns[0]}

    return SequenceTable(
        joined("lengths"),
        by_name("sums"),
        by_name("maxima"),
        joined("ratio_log_sum"),
        joined("ratio_squared_log_sum"),
        joined("tilted_log_ratio"),
        joined("cluster"),
        joined("row"),
        joined("reward"),
    )


def token_sums(pair: PolicyPair) -> Array:
    """Add up every quantity of TOKEN_SUMS by sequence: [sequences, len(TOKEN_SUMS)]."""
    sums = np.empty((len(TOKEN_SUMS), len(pair.lengths)))
    starts = starts_of(pair.lengths)
    # inf - inf is NaN, which is what it is; no warning needed.
    with np.errstate(over="ignore", invalid="ignore"):
        for index, quantity in enumerate(TOKEN_SUMS.values()):
            np.add.reduceat(quantity.of(pair.values), starts, out=sums[index])
    return sums.T


def sequence_table(pair: PolicyPair, sums: Array) -> SequenceTable:
    """Make the rows of a pair's sequences; `sums` are its `token_sums`."""
    lengths = pair.lengths
    starts = starts_of(lengths)
    quantities = enumerate(TOKEN_SUMS.values())
    kept = {quantity.name: index for index, quantity in quantities if quantity.by_sequence}
    maxima = {
        name: np.maximum.reduceat(of(pair.values), starts) for name, of in TOKEN_MAXIMA.items()
    }
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return SequenceTable(
            lengths,
            {name: sums[:, index].copy() for name, index in kept.items()},
            maxima,
            *_log_ratio_sums(pair.log_ratio, lengths, starts),
            pair.tokens.cluster,
            pair.tokens.row,
            pair.tokens.rewards,
        )


def _log_ratio_sums(
    log_ratio: Array, lengths: NDArray[np.int64], starts: NDArray[np.int64]
) -> tuple[Array, Array, Array]:
    largest = np.maximum.reduceat(log_ratio, starts)
    # A shift of +-inf would turn the terms into NaN; without it exp gives inf or 0, as it should.
    shift = np.where(np.isfinite(largest), largest, 0.0)
    scaled = np.exp(log_ratio - np.repeat(shift, lengths))
    total = np.add.reduceat(scaled, starts)
    squares = np.add.reduceat(np.square(scaled), starts)
    tilted = scaled * log_ratio
    if not scaled.all():  # a ratio of 0 has a log-ratio of -inf, and adds nothing
        tilted[scaled == 0.0] = 0.0
    weighted = np.add.reduceat(tilted, starts) / total
    return shift + np.log(total), 2.0 * shift + np.log(squares), weighted


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the sequences of a table, each [replicates]; the table itself is one replicate."""

    sequences: Array
    tokens: Array
    sums: Mapping[str, Array]  # of TOKEN_SUMS and of SEQUENCE_SUMS
    # "token_ratio" and "seq_ratio" hold log sum ratio, log sum ratio^2, and the mean log_ratio
    # weighted by ratio.
    log_sums: Mapping[str, Array]
    log_squares: Mapping[str, Array]
    tilted: Mapping[str, Array]

    def per_token(self, name: str) -> Array:
        return self.sums[name] / self.tokens

    def per_sequence(self, name: str) -> Array:
        return self.sums[name] / self.sequences


def _of_ratios(formula: Callable[[Ratios], Array], table: SequenceTable) -> Array:
    """Return sums that are weighted by whole-sequence ratios, the products of token ratios."""
    return formula(Ratios.of(table.sums["log_ratio"]))


def _log_ppl_diff(table: SequenceTable) -> Array:
    """Return log perplexity under the target less that under the behavior policy, nats."""
    return -table.sums["log_ratio"] / table.lengths


@dataclass(frozen=True, slots=True)
class SequenceSum:
    """A quantity of whole sequences that is added up by cluster."""

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


@dataclass(frozen=True, slots=True)
class Addends:
    """Rows that add up to totals: one per cluster."""

    names: tuple[str, ...]
    matrix: Array  # [clusters, names]
    shifts: Mapping[str, float]  # of the ratios that are held as exp(log - shift)

    def __len__(self) -> int:
        return len(self.matrix)

    def totals(self, sums: Array) -> Totals:
        """Make totals from `sums` [replicates, names] of the rows."""
        columns = dict(zip(self.names, np.ascontiguousarray(sums.T), strict=True))
        log_sums, log_squares, tilted = {}, {}, {}
        with np.errstate(divide="ignore", invalid="ignore"):
            for name, shift in self.shifts.items():
                total = columns.pop(name)
                log_sums[name] = shift + np.log(total)
                log_squares[name] = 2.0 * shift + np.log(columns.pop(f"{name}_squared"))
                tilted[name] = columns.pop(f"{name}_log") / total
        return Totals(
            columns.pop("sequences"), columns.pop("tokens"), columns, log_sums, log_squares, tilted
        )


def addends(table: SequenceTable, tokens: ClusterSums) -> Addends:
    """Sum everything by cluster: `tokens` are the sums of TOKEN_SUMS, the rest is the table's."""
    with np.errstate(over="ignore", invalid="ignore"):
        columns = {name: quantity.of(table) for name, quantity in SEQUENCE_SUMS.items()}
        columns["sequences"] = np.ones(len(table))
        columns["tokens"] = table.lengths.astype(np.float64)
        log_ratio = table.sums["log_ratio"]
        ratios = {
            "token_ratio": (
                table.ratio_log_sum,
                table.ratio_squared_log_sum,
                table.tilted_log_ratio,
            ),
            "seq_ratio": (log_ratio, 2.0 * log_ratio, log_ratio),
        }
        shifts = {}
        for name, (log_sum, log_squares, tilted) in ratios.items():
            # Not below half of the squares' largest, so that neither overflows.
            shift = shifts[name] = _shift(log_squares)
            columns[name] = np.exp(log_sum - shift)
            columns[f"{name}_squared"] = np.exp(log_squares - 2.0 * shift)
            columns[f"{name}_log"] = np.where(columns[name] == 0.0, 0.0, columns[name] * tilted)
    whole = cluster_sums(table.cluster, np.stack(list(columns.values()), axis=1))
    assert np.array_equal(whole.keys, tokens.keys)
    names = (*TOKEN_SUMS, *columns)
    assert len(set(names)) == len(names), "a token sum and a sequence sum have the same name"
    return Addends(names, np.concatenate([tokens.sums, whole.sums], axis=1), shifts)


def _shift(log_squares: Array) -> float:
    largest = float(np.max(log_squares)) / 2.0
    return largest if np.isfinite(largest) else 0.0


def point(rows: Addends) -> Totals:
    """Return the totals of the table itself: one replicate."""
    return rows.totals(_sum(rows.matrix)[None])


def _sum(matrix: Array) -> Array:
    return matrix.sum(axis=0)


def leave_one_out(rows: Addends) -> Totals:
    """Return totals without each cluster in turn: [clusters] replicates, the jackknife."""
    with np.errstate(invalid="ignore"):
        return rows.totals(_sum(rows.matrix) - rows.matrix)
