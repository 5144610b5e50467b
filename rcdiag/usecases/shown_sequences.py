"""Chooses the sequences that a result shows: those asked for, the worst, and some at random.

The worst sequences get the tokens that a page has for sequences; random ones get what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from rcdiag.errors import RcdiagError, setting
from rcdiag.results import ScoreResult, SequenceTokens
from rcdiag.statistics.extremes import LARGEST_LOG_PROB, SMALLEST_LOG_PROB
from rcdiag.table.table import Table
from rcdiag.usecases.reading import SequenceReader
from rcdiag.usecases.shown_tokens import shares

# Tokens of the worst and the random sequences together: 8 to 20 bytes of a page each, with texts
# and the weights of a trainer's presets, so 100 to 250 kB.
TOKENS = 12_000
# Most tokens of a sequence that the user asks for; these come on top.
TOKENS_NAMED = 20_000
MOST_DRAWN = 10


def with_sequences(
    result: ScoreResult, reader: SequenceReader, named: Sequence[int], seed: int
) -> ScoreResult:
    """Return a result with the sequences that it shows, and the context of their tokens.

    These are its worst sequences, those that the user asks for, and some at random; none is in two
    lists.

    Args:
        result: a result with its worst sequences.
        reader: reads rows of the table.
        named: indices of the rows that the user asks for; they are shown in full, up to
            TOKENS_NAMED tokens.
        seed: seed of the random choice.
    """
    worst, given = result.worst_sequences, reader.table.as_given
    first = {*named, *(sequence.row for sequence in worst)}
    order = np.random.default_rng(seed).permutation(reader.table.num_rows)
    others = [row for row in order[: MOST_DRAWN + len(first)].tolist() if row not in first]
    rest = [sequence for sequence in worst if sequence.row not in named]
    tokens = shares([sequence.num_tokens for sequence in rest], TOKENS)
    left = TOKENS - sum(tokens)
    drawn = others[:MOST_DRAWN] if left else []
    read = reader.read(
        {
            **dict.fromkeys(named, TOKENS_NAMED),
            **{one.row: most for one, most in zip(rest, tokens, strict=True)},
            **dict.fromkeys(drawn, left),
        }
    )
    for row in named:
        _check(read.get(row), given.where(row), given.number(row))
    taken = {one.row for one in worst}
    return replace(
        result,
        # Keep the sum of the first pass, which may differ in the last digit.
        worst_sequences=[
            replace(read[one.row], log_ratio_sum=one.log_ratio_sum) if one.row in read else one
            for one in worst
        ],
        named_sequences=[read[row] for row in dict.fromkeys(named) if row not in taken],
        drawn_sequences=list(_whole_ones(read, drawn, left)),
    )


def rows_named(table: Table, named: Sequence[int]) -> list[int]:
    """Return the indices of the rows that a user names by number; refuse rows that are not there.

    Index and number differ if the table's rows were drawn from another table.
    """
    source = table.drawn_from or table
    for row in named:
        if not 0 <= row < source.num_rows:
            raise RcdiagError(
                f"{_asked(row)}: {source.name} has {source.num_rows:,} rows, 0 to "
                f"{source.num_rows - 1}",
                hint="rows are counted from 0 over the whole table",
            )
    if table.drawn_from is None or not named:
        return list(named)
    places = {table.number(place): place for place in range(table.num_rows)}
    for row in named:
        if row not in places:
            raise RcdiagError(
                f"{_asked(row)}: not among the {table.num_rows:,} rows that were drawn",
                hint=f"omit {setting('rows')}, or name a row that the page shows",
            )
    return [places[row] for row in named]


def _asked(row: int) -> str:
    return setting("sequences", row, option="--sequence")


def _whole_ones(
    read: Mapping[int, SequenceTokens], rows: Sequence[int], left: int
) -> Iterator[SequenceTokens]:
    """Yield the sequences of rows in full, as long as they have at most `left` tokens together."""
    for row in rows:
        sequence = read.get(row)
        if sequence is None or not _of_numbers(sequence):
            continue
        left -= sequence.num_tokens
        if left < 0:
            return
        yield sequence


def _check(sequence: SequenceTokens | None, where: str, row: int) -> None:
    """Refuse a row that the user asks for but that has no valid tokens to show."""
    if sequence is None:
        raise RcdiagError(
            f"{_asked(row)}: {where} has no sampled token with log-probs of both policies",
            hint="name another row",
        )
    if not _of_numbers(sequence):
        raise RcdiagError(
            f"{_asked(row)}: {where} holds a log-prob that is NaN, infinite, positive or below "
            "-1e12",
            hint="name another row; the findings `non-finite-log-probs` and `positive-log-probs` "
            "name such rows",
        )


def _of_numbers(sequence: SequenceTokens) -> bool:
    """Tell whether all stored log-probs of a sequence are valid."""
    behavior = np.asarray(sequence.behavior_log_probs)
    with np.errstate(invalid="ignore"):
        target = behavior + np.asarray(sequence.log_ratio)
    both = np.concatenate([behavior, target])
    return bool(((both >= 2 * SMALLEST_LOG_PROB) & (both <= 2 * LARGEST_LOG_PROB)).all())
