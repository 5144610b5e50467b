"""Columns of numbers that are alike are kept in the fewest bytes that give back every bit.

A pass keeps many quantities of every sequence until its end. Most of them say little that others
do not: a truncated ratio is the ratio where nothing is truncated, a count of tokens beyond a bound
is nearly always 0, and what was computed in float32 needs half of the bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bits = NDArray[np.uint64]
K = TypeVar("K", bound=Hashable)

# Pieces with fewer rows are joined with their neighbours, so that a piece costs little by itself.
ROWS_OF_PIECE = 8_192
# Fewer rows are not worth a comparison of their columns.
FEWEST_TO_COMPARE = 512
# A row in which a column differs from another takes 4 bytes for its place and 8 for its number.
BYTES_OF_DIFFERENCE = 12


@dataclass(frozen=True, slots=True)
class Plain:
    """The numbers of a column as they are, in float32 where that holds each of them exactly."""

    values: NDArray[np.floating]

    def unpacked(self, others: Mapping[int, Array]) -> Array:
        """Return the numbers in float64."""
        return self.values.astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True)
class Differences:
    """A column that is another one, or the same number everywhere, but for some rows."""

    base: int | float  # the place of the other column among those of the piece, or the number
    rows: NDArray[np.int32]  # where the two differ, ascending
    values: Array  # what the column has there
    size: int

    def unpacked(self, others: Mapping[int, Array]) -> Array:
        """Return the numbers; `others` are the unpacked columns by their places."""
        if isinstance(self.base, int):
            values = others[self.base].copy()
        else:
            values = np.full(self.size, self.base)
        values[self.rows] = self.values
        return values


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring rows of all columns; columns may have different numbers of rows."""

    rows: int  # of most of the columns
    columns: tuple[Plain | Differences, ...]

    def column(self, place: int) -> Array:
        """Return the numbers of one column."""
        own = self.columns[place]
        others = {}
        if isinstance(own, Differences) and isinstance(own.base, int):
            others[own.base] = self.columns[own.base].unpacked({})
        return own.unpacked(others)


@dataclass(frozen=True, slots=True)
class PackedColumns(Generic[K]):
    """Columns of the same rows, in pieces that follow each other; two add up by joining."""

    places: Mapping[K, int]  # name of a column -> its place in every piece
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, columns: Mapping[K, Array], rows: int) -> PackedColumns[K]:
        """Pack columns; those with as many as `rows` numbers are compared with each other."""
        places = {name: place for place, name in enumerate(columns)}
        return cls(places, (_piece(columns.values(), rows),))

    def __add__(self, other: PackedColumns[K]) -> PackedColumns[K]:
        """Join the rows of both, in order."""
        pieces = list(self.pieces)
        for piece in other.pieces:
            if pieces and pieces[-1].rows + piece.rows <= ROWS_OF_PIECE:
                piece = _joined(pieces.pop(), piece)
            pieces.append(piece)
        return PackedColumns(self.places, tuple(pieces))

    def column(self, name: K) -> Array:
        """Return the numbers of one column, in float64."""
        place = self.places[name]
        return np.concatenate([piece.column(place) for piece in self.pieces])

    @property
    def nbytes(self) -> int:
        """Return the bytes of all numbers that are kept."""
        columns = (column for piece in self.pieces for column in piece.columns)
        return sum(
            one.values.nbytes + (one.rows.nbytes if isinstance(one, Differences) else 0)
            for one in columns
        )


def _joined(one: Piece, other: Piece) -> Piece:
    places = range(len(one.columns))
    columns = [np.concatenate([one.column(place), other.column(place)]) for place in places]
    return _piece(columns, one.rows + other.rows)


def _piece(columns: Iterable[Array], rows: int) -> Piece:
    """Pack each column beside those before it that are kept as they are."""
    packed: list[Plain | Differences] = []
    kept: dict[int, Bits] = {}
    for place, column in enumerate(columns):
        own: Plain | Differences = Plain(column)
        if len(column) >= FEWEST_TO_COMPARE:
            own = _packed(column, kept if len(column) == rows else {})
            if isinstance(own, Plain) and len(column) == rows:
                kept[place] = column.view(np.uint64)
        packed.append(own)
    return Piece(rows, tuple(packed))


def _packed(column: Array, others: Mapping[int, Bits]) -> Plain | Differences:
    """Pack one column in the way that takes the fewest bytes; `others` are columns by place."""
    bits = np.ascontiguousarray(column).view(np.uint64)
    plain = _plain(column)
    fewest, base = len(bits), None
    for number in (0.0, float(column[len(column) // 2])):
        different = _differences(bits, np.float64(number).view(np.uint64))
        if different < fewest:
            fewest, base = different, number
    for place, other in others.items():
        if fewest == 0:
            break
        different = _differences(bits, other)
        if different < fewest:
            fewest, base = different, place
    if base is None or fewest * BYTES_OF_DIFFERENCE >= plain.values.nbytes:
        return plain
    against = others[base] if isinstance(base, int) else np.float64(base).view(np.uint64)
    rows = np.flatnonzero(bits != against).astype(np.int32)
    return Differences(base, rows, column[rows], len(column))


def _differences(bits: Bits, other: Bits | np.uint64) -> int:
    """Count the numbers that are not the same to the last bit."""
    return int(np.count_nonzero(bits != other))


def _plain(column: Array) -> Plain:
    """Keep a column in float32 where that gives back every bit; a copy of its own in any case."""
    with np.errstate(over="ignore", invalid="ignore"):
        short = column.astype(np.float32)
    if _differences(short.astype(np.float64).view(np.uint64), column.view(np.uint64)) == 0:
        return Plain(short)
    return Plain(column.copy())
