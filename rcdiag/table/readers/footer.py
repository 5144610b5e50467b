"""Check a parquet footer before Arrow reads it.

Arrow parses footers itself, but it throws C++ exceptions past Python, which end the process, at a
column chunk without metadata (as in files with encrypted columns) or with damaged statistics; and
it reads beyond its arrays if the columns of a row group differ from the schema. With pyarrow 26, 86
of 16,200 damaged footers ended the process. Therefore the facts about column chunks are read here.
Source: parquet-format 2.11, src/main/thrift/parquet.thrift; Apache Thrift, compact protocol,
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

import functools
from typing import Any

from msgspec import Struct

MAGIC = b"PAR1"
# Deepest nesting of structs that is accepted; a footer has six levels.
DEEPEST = 32

# Types of the compact protocol.
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)
SIZES = {BYTE: 1, DOUBLE: 8, UUID: 16}  # bytes of the types of fixed size

Fields = dict[int, Any]

# Fields of FileMetaData, SchemaElement, RowGroup, ColumnChunk, ColumnMetaData, Statistics.
SCHEMA, NUM_ROWS, ROW_GROUPS, ENCRYPTION = 2, 3, 4, 8
REPETITION = 3
COLUMNS, GROUP_ROWS = 1, 3
META_DATA, CRYPTO = 3, 8
PATH, NUM_VALUES, DATA_PAGE, DICTIONARY_PAGE, COMPRESSED = 3, 5, 9, 11, 7
STATISTICS, NULL_COUNT = 12, 3


class FooterError(ValueError):
    """A footer that contradicts itself or the file."""


class EncryptedError(FooterError):
    """The footer of a file with encrypted columns."""


class ColumnChunk(Struct, frozen=True):
    """What a footer says about one column of one row group."""

    column: str  # column name, which may contain dots
    path: str  # names from the column down to its values, joined by dots
    num_values: int
    null_count: int | None  # None if the footer does not state it


class RowGroup(Struct, frozen=True):
    """What a footer says about one row group."""

    num_rows: int
    columns: tuple[ColumnChunk, ...]


@functools.lru_cache(maxsize=16)
def row_groups(content: bytes, end: int) -> tuple[RowGroup, ...]:
    """Return the row groups of a footer `content` that begins at byte `end` of its file.

    Cached, because a command reads the footer of a table several times.

    Raises:
        FooterError: Arrow could not read the footer safely, or the file has encrypted columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = _Compact(content).struct()
        if ENCRYPTION in footer:
            raise EncryptedError("it has encrypted columns")
        whole = MAGIC + content + len(content).to_bytes(4, "little") + MAGIC
        schema = pq.read_metadata(pa.BufferReader(whole)).schema
        _check(footer, [column.path for column in schema], end)
        return tuple(_row_group(group) for group in footer[ROW_GROUPS])
    except FooterError:
        raise
    except (
        *(IndexError, KeyError, TypeError, AttributeError, ValueError),
        *(pa.ArrowException, OSError, OverflowError, MemoryError),
    ) as error:
        raise FooterError("its footer is not valid parquet metadata") from error


def _row_group(group: Fields) -> RowGroup:
    chunks = [chunk[META_DATA] for chunk in group[COLUMNS]]
    return RowGroup(
        group[GROUP_ROWS],
        tuple(
            ColumnChunk(
                chunk[PATH][0].decode(),
                ".".join(name.decode() for name in chunk[PATH]),
                chunk[NUM_VALUES],
                chunk.get(STATISTICS, {}).get(NULL_COUNT),
            )
            for chunk in chunks
        ),
    )


def _check(footer: Fields, leaves: list[str], end: int) -> None:
    """Compare the row groups with `leaves`, the schema's columns that hold values, and with
    `end`, the number of bytes before the footer.
    """
    if any(element[REPETITION] not in (0, 1, 2) for element in footer[SCHEMA][1:]):
        raise FooterError("its schema has columns of an unknown kind")
    groups = footer[ROW_GROUPS]
    if sum(group[GROUP_ROWS] for group in groups) != footer[NUM_ROWS]:
        raise FooterError("the row counts of its row groups do not add up to that of the file")
    for number, group in enumerate(groups):
        chunks = group[COLUMNS]
        where = f"row group {number}"
        if group[GROUP_ROWS] < 0 or len(chunks) != len(leaves):
            raise FooterError(f"{where} has other columns than the schema")
        for leaf, chunk in zip(leaves, chunks, strict=True):
            if CRYPTO in chunk or META_DATA not in chunk:
                raise EncryptedError("it has encrypted columns")
            about = chunk[META_DATA]
            if ".".join(name.decode() for name in about[PATH]) != leaf or about[NUM_VALUES] < 0:
                raise FooterError(f"{where} has other columns than the schema")
            start = min(about[DATA_PAGE], about.get(DICTIONARY_PAGE) or about[DATA_PAGE])
            if start < 0 or about[COMPRESSED] < 0 or start + about[COMPRESSED] > end:
                raise FooterError(f"{where} extends beyond the end of the file")


class _Compact:
    """Reads consecutive values in Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int = 0) -> Fields:
        """Return the values of a struct, by field number."""
        fields: Fields = {}
        number = 0
        while head := self._byte():
            kind = head & 0x0F
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = kind == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > DEEPEST:
            raise FooterError("its footer is nested too deeply")
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind in (LIST, SET):
            return self._list(depth + 1)
        if kind == MAP:
            return self._map(depth + 1)
        if kind in (I16, I32, I64):
            return self._signed()
        # Bytes, floats and UUIDs are not needed, and only skipped.
        count = self._varint() if kind == BINARY else SIZES[kind]
        self._check(count)
        self.at += count
        return self.data[self.at - count : self.at]

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count, kind = head >> 4, head & 0x0F
        if count == 15:
            count = self._varint()
        self._check(count)
        return [self._value(BYTE if kind in (TRUE, FALSE) else kind, depth) for _ in range(count)]

    def _map(self, depth: int) -> list[Any]:
        count = self._varint()
        if count == 0:
            return []
        self._check(count)
        kinds = self._byte()
        return [
            (self._value(kinds >> 4, depth), self._value(kinds & 0x0F, depth)) for _ in range(count)
        ]

    def _varint(self) -> int:
        byte = self._byte()
        value, shift = byte & 0x7F, 7
        while byte >= 0x80:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 70:
                raise FooterError("its footer holds a number of more than 64 bits")
        return value

    def _signed(self) -> int:
        value = self._varint()  # zigzag encoding: 0, -1, 1, -2, ...
        return (value >> 1) ^ -(value & 1)

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _check(self, count: int) -> None:
        """Raise an error if fewer than `count` bytes are left."""
        if count > len(self.data) - self.at:
            raise FooterError("its footer is truncated")
