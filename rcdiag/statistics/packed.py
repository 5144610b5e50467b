"""Columns of numbers that are alike are kept in the fewest bytes that give back every bit.

A pass keeps many quantities of every sequence until its end. Most of them say little that others
do not: a truncated ratio is the ratio where nothing is truncated, a count of tokens beyond a bound
is nearly always 0, what was computed in float32 needs half of the bytes and is close to what was
computed in float64, and rows of one prompt follow each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bits = NDArray[np.uint64]
K = TypeVar("K", bound=Hashable)

# Pieces with fewer rows wait as they are for those that follow, so that rows are packed once, and a
# piece costs little by itself.
ROWS_OF_PIECE = 2_048
# Fewer rows are not worth a comparison of their columns.
FEWEST_TO_COMPARE = 512
# A row in which a column differs from another takes 4 bytes for its place and 8 for its number; a
# run of equal numbers takes 4 for its length and 8 for the number.
BYTES_OF_DIFFERENCE = 12
# So many rows tell which columns are worth a comparison of all rows, and so many of these have it.
ROWS_LOOKED_AT = 64
MOST_COMPARED = 4
SIGN = np.uint64(1 << 63)


class Plain(Struct, frozen=True):
    """The numbers of a column as they are, in float32 where that holds each of them exactly."""

    values: NDArray[np.floating]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def unpacked(self, others: Mapping[int, Array]) -> Array:
        """Return the numbers in float64."""
        return self.values.astype(np.float64, copy=False)


class Differences(Struct, frozen=True):
    """A column that is another one, or the same number everywhere, but for some rows."""

    base: int | float  # the place of the other column among those of the piece, or the number
    rows: NDArray[np.int32]  # where the two differ, ascending
    values: Array  # what the column has there
    size: int
    negated: bool = False  # the column is minus the other one

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.values.nbytes

    def unpacked(self, others: Mapping[int, Array]) -> Array:
        """Return the numbers; `others` are the unpacked columns by their places."""
        if isinstance(self.base, int):
            bits = others[self.base].view(np.uint64)
            values = (bits ^ SIGN if self.negated else bits.copy()).view(np.float64)
        else:
            values = np.full(self.size, self.base)
        values[self.rows] = self.values
        return values


class Close(Struct, frozen=True):
    """A column near another one: by how many of float64's steps each of its numbers is away."""

    base: int  # the place of the other column among those of the piece
    steps: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        return self.steps.nbytes

    def unpacked(self, others: Mapping[int, Array]) -> Array:
        """Return the numbers; `others` are the unpacked columns by their places."""
        return (others[self.base].view(np.int64) + self.steps).view(np.float64)


class Runs(Struct, frozen=True):
    """A column in which neighbouring rows have the same number."""

    lengths: NDArray[np.int32]
    values: Array

    @property
    def nbytes(self) -> int:
        return self.lengths.nbytes + self.values.nbytes

    def unpacked(self, others: Mapping[int, Array]) -> Array:
        """Return the numbers."""
        return np.repeat(self.values, self.lengths)


Packed = Plain | Differences | Close | Runs


class Piece(Struct, frozen=True):
    """Neighbouring rows of all columns; columns may have different numbers of rows."""

    rows: int  # of most of the columns
    columns: tuple[Packed, ...]

    def column(self, place: int) -> Array:
        """Return the numbers of one column."""
        own = self.columns[place]
        others = {}
        if isinstance(own, (Differences, Close)) and isinstance(own.base, int):
            others[own.base] = self.columns[own.base].unpacked({})
        return own.unpacked(others)

    def unpacked(self) -> list[Array]:
        """Return the numbers of all columns."""
        return [self.column(place) for place in range(len(self.columns))]


@dataclass(frozen=True, slots=True)
class PackedColumns(Mapping[K, Array]):
    """Columns of the same rows, in pieces that follow each other; two add up by joining."""

    places: Mapping[K, int]  # name of a column -> its place in every piece
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, columns: Mapping[K, Array], rows: int) -> PackedColumns[K]:
        """Pack columns; those with as many as `rows` numbers are compared with each other."""
        places = {name: place for place, name in enumerate(columns)}
        of_rows = _waiting if rows < ROWS_OF_PIECE else _piece
        return cls(places, (of_rows(columns.values(), rows),))

    def __add__(self, other: PackedColumns[K]) -> PackedColumns[K]:
        """Join the rows of both, in order."""
        pieces = list(self.pieces)
        for piece in other.pieces:
            if pieces and pieces[-1].rows < ROWS_OF_PIECE:
                last = pieces.pop()
                if piece.rows < ROWS_OF_PIECE:
                    piece = _joined(last, piece)
                else:  # it waits no longer
                    pieces.append(_piece(last.unpacked(), last.rows))
            pieces.append(piece)
        return PackedColumns(self.places, tuple(pieces))

    def __getitem__(self, name: K) -> Array:
        """Return the numbers of one column, in float64."""
        place = self.places[name]
        return np.concatenate([piece.column(place) for piece in self.pieces])

    def __iter__(self) -> Iterator[K]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all numbers that are kept."""
        return sum(column.nbytes for piece in self.pieces for column in piece.columns)


def packed_where_many(columns: Mapping[K, Array], rows: int) -> Mapping[K, Array]:
    """Pack columns of many rows; those of few rows stay as they are."""
    if rows < FEWEST_TO_COMPARE or isinstance(columns, PackedColumns):
        return columns
    return PackedColumns.of(columns, rows)


def joined_columns(shards: Sequence[tuple[Mapping[K, Array], int]]) -> Mapping[K, Array]:
    """Join the rows of shards, each with its number of rows; packed where one of them is."""
    if not any(isinstance(columns, PackedColumns) for columns, _ in shards):
        names = shards[0][0]
        return {name: np.concatenate([columns[name] for columns, _ in shards]) for name in names}
    return reduce(
        add,
        (
            columns if isinstance(columns, PackedColumns) else PackedColumns.of(columns, rows)
            for columns, rows in shards
        ),
    )


def _joined(one: Piece, other: Piece) -> Piece:
    columns = [np.concatenate(both) for both in zip(one.unpacked(), other.unpacked(), strict=True)]
    rows = one.rows + other.rows
    return (_waiting if rows < ROWS_OF_PIECE else _piece)(columns, rows)


def _waiting(columns: Iterable[Array], rows: int) -> Piece:
    """Return columns of few rows as they are; none is part of a larger array."""
    own = (column if column.base is None else column.copy() for column in columns)
    return Piece(rows, tuple(Plain(column) for column in own))


class _Kept:
    """The columns of a piece that are kept as they are, which others are compared with."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows = rows
        self.bits: dict[int, Bits] = {}  # by the place of a column
        # A look at rows all over the piece tells which columns are worth a comparison.
        self._looked_at = np.linspace(0, rows - 1, ROWS_LOOKED_AT).astype(np.intp)
        self._looks = np.empty((columns, ROWS_LOOKED_AT), np.uint64)

    def add(self, place: int, bits: Bits) -> None:
        """Take in a column that is kept as it is."""
        self._looks[len(self.bits)] = bits[self._looked_at]
        self.bits[place] = bits

    def alike(self, bits: Bits) -> list[tuple[int, bool]]:
        """Name the columns that are most like one, and whether it is minus theirs."""
        look, looks = bits[self._looked_at], self._looks[: len(self.bits)]
        of_both = [np.count_nonzero(looks != own, axis=1).tolist() for own in (look, look ^ SIGN)]
        found = [
            (different, place, negated)
            for negated, of_columns in zip((False, True), of_both, strict=True)
            for place, different in zip(self.bits, of_columns, strict=True)
            if different < ROWS_LOOKED_AT // 2
        ]
        return [(place, negated) for _, place, negated in sorted(found)[:MOST_COMPARED]]

    def near(self, bits: Bits) -> list[int]:
        """Name the columns that one is near, where one looks."""
        steps = bits[self._looked_at].view(np.int64) - self._looks[: len(self.bits)].view(np.int64)
        return [place for place, each in zip(self.bits, steps, strict=True) if _fits(each)]


def _piece(columns: Iterable[Array], rows: int) -> Piece:
    """Pack each column beside those before it that are kept as they are."""
    given = list(columns)
    packed: list[Packed] = []
    kept = _Kept(rows, len(given))
    for place, column in enumerate(given):
        own: Packed = Plain(column)
        if len(column) >= FEWEST_TO_COMPARE:
            own = _packed(column, kept)
            if isinstance(own, Plain) and len(column) == rows:
                kept.add(place, column.view(np.uint64))
        packed.append(own)
    return Piece(rows, tuple(packed))


def _packed(column: Array, kept: _Kept) -> Packed:
    """Pack one column in the way that takes the fewest bytes."""
    bits = np.ascontiguousarray(column).view(np.uint64)
    plain = _plain(column)
    most = plain.nbytes // BYTES_OF_DIFFERENCE  # so many differences are worth less than it
    different = _different(column, bits, kept, most)
    if different is not None:
        most = len(different.rows)
    runs = _runs(column, bits, most) if most else None
    packed = runs or different or plain
    if packed.nbytes == column.nbytes:
        return _close(bits, kept) or packed
    return packed


def _different(column: Array, bits: Bits, kept: _Kept, most: int) -> Differences | None:
    """Return what has the fewest differences from the column; None if not below `most`."""
    fewest, base, negated = most, None, False
    for number in (0.0, float(column[len(column) // 2])):
        different = _differences(bits, np.float64(number).view(np.uint64))
        if different < fewest:
            fewest, base = different, number
    alike = kept.alike(bits) if fewest and len(column) == kept.rows else []
    for place, minus in alike:
        other = kept.bits[place]
        different = _differences(bits, other ^ SIGN if minus else other)
        if different < fewest:
            fewest, base, negated = different, place, minus
    if base is None:
        return None
    against = kept.bits[base] if isinstance(base, int) else np.float64(base).view(np.uint64)
    rows = np.flatnonzero(bits != (against ^ SIGN if negated else against)).astype(np.int32)
    return Differences(base, rows, column[rows], len(column), negated)


def _differences(bits: Bits, other: Bits | np.uint64) -> int:
    """Count the numbers that are not the same to the last bit."""
    return int(np.count_nonzero(bits != other))


def _runs(column: Array, bits: Bits, most: int) -> Runs | None:
    """Return the column as runs of equal numbers; None if they are not fewer than `most`."""
    changes = bits[1:] != bits[:-1]
    if np.count_nonzero(changes) + 1 >= most:
        return None
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    lengths = np.diff(starts, append=len(column)).astype(np.int32)
    return Runs(lengths, column[starts])


def _close(bits: Bits, kept: _Kept) -> Close | None:
    """Return the column by its distances from another one; None where these take more bytes."""
    if len(bits) != kept.rows:
        return None
    own = bits.view(np.int64)
    for place in kept.near(bits):
        steps = own - kept.bits[place].view(np.int64)
        if _fits(steps):
            return Close(place, steps.astype(np.int32))
    return None


def _fits(steps: NDArray[np.int64]) -> bool:
    limits = np.iinfo(np.int32)
    return bool(steps.min() >= limits.min and steps.max() <= limits.max)


def _plain(column: Array) -> Plain:
    """Keep a column in float32 where that gives back every bit; a copy of its own in any case."""
    with np.errstate(over="ignore", invalid="ignore"):
        short = column.astype(np.float32)
    if _differences(short.astype(np.float64).view(np.uint64), column.view(np.uint64)) == 0:
        return Plain(short)
    return Plain(column.copy())
