"""Captured sampler calls of tinker-cookbook, from an SQLite table or JSON lines.

The calls of different trajectories are interleaved. Positions of calls are sorted by trajectory,
and calls are read in that order, so that only one trajectory is in memory at a time.
"""

from __future__ import annotations

import contextlib
import sqlite3
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.jsonl import (
    Id,
    Int,
    NotJson,
    Parser,
    lines_of,
    malformed,
    open_file,
)
from rcdiag.table.readers.peek import LONGEST_RECORD

MAGIC = b"SQLite format 3\0"
# Messages on a damaged store quote its bytes, which may not be valid text.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
COPY_AGAIN = "copy it again, together with the files beside it that end in -wal and -shm"
# The fields that identify a trajectory.
KEY = ("run_id", "run_attempt", "split", "iteration", "group_idx", "traj_idx")


class Scope(msgspec.Struct, frozen=True):
    """The sample and training step that a call belongs to; None for what the run did not record."""

    run_id: str | None = None
    run_attempt: Int | None = None
    split: str | None = None
    iteration: Int | None = None
    group_idx: Int | None = None
    traj_idx: Int | None = None
    purpose: str | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Return a key that identifies the trajectory and sorts missing values last."""
        values = (getattr(self, name) for name in KEY)
        return tuple((value is None, 0 if value is None else value) for value in values)


class SamplingParameters(msgspec.Struct):
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None


class CallSample(msgspec.Struct):
    tokens: list[Id] | None = None
    logprobs: list[float] | None = None
    stop_reason: str | None = None


class LineHead(msgspec.Struct):
    """The fields of a line that are parsed in the first pass."""

    kind: str | None = None
    scope: Scope | None = None


class SamplingCall(msgspec.Struct):
    """A call of the sampler; all its samples have the same prompt."""

    prompt_tokens: list[Id] | None = None
    samples: list[CallSample] | None = None
    sampling_params: SamplingParameters | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: Int | None = None

    @property
    def identity(self) -> str | None:
        """Return an id that rows of the same call share; None if it is not recorded."""
        if self.sampling_session_id is None or self.seq_id is None:
            return None
        return f"{self.sampling_session_id}/{self.seq_id}"


class Metadata(msgspec.Struct):
    """The last column of the table of calls."""

    sampling_params: SamplingParameters | None = None
    stop_reason: str | None = None


class LineStore:
    """JSON lines with one call each; a first pass finds the scope and the place of every call."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._parser: Parser[SamplingCall] = Parser(SamplingCall)
        self._stream = open_file(file)
        if not self._stream.seekable():
            raise RcdiagError(
                f"{file}: a compressed file of calls, whose lines cannot be read out of order",
                hint="decompress it with gunzip -k or unzstd",
            )
        # Of each call: its scope, the byte at which its line begins, the line's number.
        self._calls: list[tuple[Scope, int, int]] = []
        try:
            self._find()
        except BaseException:
            self._stream.close()
            raise

    def _find(self) -> None:
        head: Parser[LineHead] = Parser(LineHead)
        scopes: dict[Scope, Scope] = {}  # calls of one scope share it
        for number, start, line in lines_of(self._stream, self.file):
            try:
                call = head.parse(line, f"{self.file}, line {number}")
            except NotJson:
                raise malformed(self.file, number, line, self._stream) from None
            if call.kind in (None, "sample"):
                scope = call.scope or Scope()
                self._calls.append((scopes.setdefault(scope, scope), start, number))

    def ordered(self) -> Iterator[tuple[Scope, int]]:
        """Yield the scope and place of each call, sorted by trajectory, then by time."""
        for place in sorted(range(len(self._calls)), key=lambda i: self._calls[i][0].key):
            yield self._calls[place][0], place

    def read(self, place: int) -> tuple[str, int, SamplingCall]:
        """Return the call at a place: the place for messages, its number, and the call."""
        _, start, number = self._calls[place]
        self._stream.seek(start)
        where = f"{self.file}, line {number}"
        line = self._stream.readline(LONGEST_RECORD)
        try:
            return where, number, self._parser.parse(line, where)
        except NotJson:
            raise malformed(self.file, number, line, self._stream) from None

    def close(self) -> None:
        self._stream.close()


class TableStore:
    """The table `wire_rows` of an SQLite store, with one sample per row."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._connection = _connect(file)
        self._tokens: Parser[list[Id] | None] = Parser(list[Id] | None)
        self._log_probs: Parser[list[float] | None] = Parser(list[float] | None)
        self._metadata: Parser[Metadata | None] = Parser(Metadata | None)
        try:
            self._check()
        except BaseException:
            self._connection.close()
            raise

    def _check(self) -> None:
        """Refuse a store without a table of calls; a view could execute anything."""
        try:
            found = _has_calls(self._connection)
        except UNREADABLE as error:
            raise _damaged(self.file, error) from error
        if not found:
            raise RcdiagError(
                f"{self.file}: an SQLite file without a table `wire_rows`",
                hint="is this a capture.sqlite of tinker-cookbook?",
            )

    def ordered(self) -> Iterator[tuple[Scope, int]]:
        names = ", ".join(Scope.__struct_fields__)
        order = ", ".join(f"{name} IS NULL, {name}" for name in KEY)
        for cursor, *values in self._connection.execute(
            f"SELECT cursor, {names} FROM wire_rows ORDER BY {order}, cursor"
        ):
            if not isinstance(cursor, int):
                raise RcdiagError(
                    f"{self.file}: a `cursor` of wire_rows is not a whole number",
                    hint="is this a capture.sqlite of tinker-cookbook?",
                )
            plain = dict(zip(Scope.__struct_fields__, map(_text, values), strict=True))
            try:
                scope = msgspec.convert(plain, Scope)
            except msgspec.ValidationError as error:
                raise RcdiagError(
                    f"{self.file}, wire_rows {cursor}: {str(error).replace('`', '')}",
                    hint="tinker-cookbook writes whole numbers and text here",
                ) from error
            yield scope, cursor

    def read(self, place: int) -> tuple[str, int, SamplingCall]:
        where = f"{self.file}, wire_rows {place}"
        found = self._connection.execute(
            "SELECT prompt_tokens, sampled_tokens, logprobs, metadata, policy_version, "
            "sampling_session_id, seq_id FROM wire_rows WHERE cursor = ?",
            (place,),
        ).fetchone()
        if found is None:  # the index of a damaged file may name rows that do not exist
            raise RcdiagError(f"{where}: the row cannot be found", hint=COPY_AGAIN)
        prompt, sampled, log_probs, metadata, version, session, number = found
        facts = self._value(self._metadata, metadata, where, "metadata") or Metadata()
        sample = CallSample(
            tokens=self._value(self._tokens, sampled, where, "sampled_tokens"),
            logprobs=self._value(self._log_probs, log_probs, where, "logprobs"),
            stop_reason=facts.stop_reason,
        )
        return (
            where,
            place,
            SamplingCall(
                prompt_tokens=self._value(self._tokens, prompt, where, "prompt_tokens"),
                samples=[sample],
                sampling_params=facts.sampling_params,
                model_path=None if version is None else str(_text(version)),
                sampling_session_id=None if session is None else str(_text(session)),
                seq_id=number if isinstance(number, int) else None,
            ),
        )

    @staticmethod
    def _value(parser: Parser[Any], text: Any, where: str, name: str) -> Any:
        """Parse a column's JSON text; return None if the column is null."""
        if text is None:
            return None
        here = f"{where}, {name}"
        if not isinstance(text, bytes):
            raise RcdiagError(
                f"{here}: {type(text).__name__} instead of JSON text",
                hint="tinker-cookbook writes JSON text here",
            )
        try:
            return parser.parse(text, here)
        except NotJson as error:
            raise RcdiagError(
                f"{here}: not valid JSON ({error})", hint="tinker-cookbook writes JSON text here"
            ) from error

    def close(self) -> None:
        self._connection.close()


Store = LineStore | TableStore


@contextlib.contextmanager
def open_store(file: Path) -> Iterator[Store]:
    """Open a file of captured calls, read-only."""
    with open_file(file) as stream:
        is_sqlite = stream.read(len(MAGIC)) == MAGIC
    store = TableStore(file) if is_sqlite else LineStore(file)
    try:
        yield store
    except UNREADABLE as error:
        raise _damaged(file, error) from error
    finally:
        store.close()


def _connect(file: Path) -> sqlite3.Connection:
    """Open a store read-only, including its write-ahead log if there is one."""
    log = file.with_name(file.name + "-wal")
    has_log = log.exists() and log.stat().st_size > 0
    path = urllib.parse.quote(str(file.resolve()))
    mode = "mode=ro" if has_log else "mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(f"file:{path}?{mode}", uri=True)
    except UNREADABLE as error:
        raise _damaged(file, error) from error
    connection.text_factory = bytes
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_RECORD)
    return connection


def _has_calls(connection: sqlite3.Connection) -> bool:
    """Tell whether `wire_rows` is an ordinary table (not a view or a virtual table)."""
    query = "SELECT type, sql FROM sqlite_master WHERE name = 'wire_rows'"
    tables = connection.execute(query).fetchall()
    virtual = any(b"VIRTUAL" in (sql or b"").upper() for _, sql in tables)
    return [kind for kind, _ in tables] == [b"table"] and not virtual


def is_store(file: Path) -> bool:
    """Tell whether an SQLite file, or its write-ahead log, has a table of calls."""
    try:
        with contextlib.closing(_connect(file)) as connection:
            return _has_calls(connection)
    except (RcdiagError, *UNREADABLE):
        return False


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _damaged(file: Path, error: Exception) -> RcdiagError:
    return RcdiagError(
        f"{file}: the SQLite store cannot be read ({error})",
        hint=COPY_AGAIN,
    )
