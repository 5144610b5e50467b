"""Chooses the sequences that a result shows: those asked for, the worst, and some at random.

The worst sequences get the bytes that a page has for sequences; random ones get what is left.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.errors import RcdiagError, setting
from rcdiag.results import ScoreResult, SequenceTokens
from rcdiag.statistics.extremes import LARGEST_LOG_PROB, SMALLEST_LOG_PROB
from rcdiag.table.table import Table
from rcdiag.usecases.reading import SequenceReader
from rcdiag.usecases.shown_tokens import shares

# Bytes of a page for sequences and examples of bins together. Sequences that the user asks for
# come on top.
BYTES = 150_000
# A page writes four compressed bytes as five characters, and needs up to 10% more for names.
LETTERS = 1.25 * 1.1
# Tokens of all worst sequences together at the first reading, and most tokens of a sequence that
# the user asks for.
MOST_TOKENS = 20_000
MOST_DRAWN = 10
AIMED = 0.97  # share of the bytes that the next, smaller reading is meant to take


def with_sequences(
    result: ScoreResult, reader: SequenceReader, named: Sequence[int], seed: int
) -> ScoreResult:
    """Return a result with the sequences that it shows, and the context of their tokens.

    These are its worst sequences, those that the user asks for, and some at random; none is in two
    lists.

    Args:
        result: a result with its worst sequences, and with the texts of its examples, if it has
            any: examples take their bytes first.
        reader: reads rows of the table.
        named: indices of the rows that the user asks for; they are shown in full, up to
            MOST_TOKENS tokens.
        seed: seed of the random choice.
    """
    worst, examples, given = result.worst_sequences, result.examples, reader.table.as_given
    first = {*named, *(sequence.row for sequence in worst)}
    order = np.random.default_rng(seed).permutation(reader.table.num_rows)
    others = [row for row in order[: MOST_DRAWN + len(first)].tolist() if row not in first]
    others = others[:MOST_DRAWN]
    reader.fetch([*first, *others])
    asked = reader.read(dict.fromkeys(named, MOST_TOKENS))
    for row in named:
        _check(asked.get(row), given.where(row), given.number(row))
    rest = [sequence for sequence in worst if sequence.row not in asked]
    left = BYTES - size([] if examples is None else [examples])
    read, taken_up = _within(rest, reader, left)
    whole = {**{one.row: one for one in read}, **asked}
    taken = {one.row for one in worst}
    left -= taken_up
    return replace(
        result,
        # Keep the sum of the first pass, which may differ in the last digit.
        worst_sequences=[
            replace(whole[one.row], log_ratio_sum=one.log_ratio_sum) if one.row in whole else one
            for one in worst
        ],
        named_sequences=[asked[row] for row in dict.fromkeys(named) if row not in taken],
        drawn_sequences=list(_drawn(reader, others, left)),
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


def size(parts: Sequence[Any]) -> int:
    """Return about how many bytes of a page these parts of a result take.

    As in a page, the values under one name are compressed together.
    """
    columns: dict[str, list[str]] = {}
    for part in parts:
        _gather(part, "", columns)
    text = "\n".join("\n".join(column) for column in columns.values())
    return round(LETTERS * len(zlib.compress(text.encode(), 6))) if text else 0


def _gather(value: Any, name: str, columns: dict[str, list[str]]) -> None:
    """Add the plain values within a part of a result as text, each under its field's name."""
    kind: Any = type(value)
    if (inner := _field_names(kind)) is not None:
        for field in inner:
            _gather(getattr(value, field), field, columns)
    elif issubclass(kind, dict):
        for key, item in value.items():
            _gather(item, key, columns)
    elif issubclass(kind, list) and any(
        issubclass(one, (list, dict, Struct)) for one in set(map(type, value))
    ):
        for item in value:
            _gather(item, name, columns)
    else:
        columns.setdefault(name, []).append(_text_of(value))


# `json.dumps` would make an encoder for each of many thousand values.
_text_of = json.JSONEncoder(separators=("\n", ":")).encode


@cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Return the names of a struct's fields; None of other types."""
    return kind.__struct_fields__ if issubclass(kind, Struct) else None


def _within(
    worst: Sequence[SequenceTokens], reader: SequenceReader, most: int
) -> tuple[list[SequenceTokens], int]:
    """Read the worst sequences with as many tokens as fit into `most` bytes; return bytes too."""
    tokens, lengths = MOST_TOKENS, [sequence.num_tokens for sequence in worst]
    while True:
        given = shares(lengths, tokens)
        read = reader.read({one.row: share for one, share in zip(worst, given, strict=True)})
        found = [read[one.row] for one in worst if one.row in read]
        stored, needed = sum(len(one.log_ratio) for one in found), size(found)
        if needed <= most or stored <= len(found):
            return found, needed
        tokens = min(math.floor(stored * AIMED * max(most, 0) / needed), stored - 1)


def _drawn(reader: SequenceReader, rows: Sequence[int], left: int) -> Iterator[SequenceTokens]:
    """Yield randomly drawn sequences in full, as long as they fit into `left` bytes."""
    if left <= 0 or not rows:
        return
    read = reader.read(dict.fromkeys(rows, MOST_TOKENS))
    for row in rows:
        sequence = read.get(row)
        if sequence is None or not _of_numbers(sequence):
            continue
        left -= size([sequence])
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
