"""The recorder, which writes the trajectory table from inside a training loop, part by part."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import random
import threading
import time
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from rcdiag.errors import RcdiagError
from rcdiag.files import not_writable
from rcdiag.table.recorder_padding import PROMPT
from rcdiag.table.recorder_rows import NEVER_NULL, rows_of
from rcdiag.table.schema import RECORDER, check_metadata, common_schema, conformed
from rcdiag.table.writer import VALUES_PER_ROW_GROUP, TableWriter

NAME = "step-{step:010d}.rank-{rank:05d}.run-{run}.{number:06d}.parquet"
# A recorder stores its row counts in a small file (its ledger), so that the next recorder knows how
# many rows were lost if this one is killed. The file stays locked while the recorder's process
# lives: if it can be locked, that process ended without closing its recorder.
LEDGER, LEDGERS = ".run-{run}.rows", ".run-*.rows"


class Recorder:
    """Writes sampled responses to a folder that `rcdiag.open_table` reads as one table.

        with rcdiag.Recorder("dump/", metadata={"policies": {...}}) as recorder:
            recorder.add(response_ids=..., rollout_log_probs=..., old_log_probs=..., step=12)

    Rows are buffered in memory and written as one parquet file, atomically, when the buffer holds
    `flush_rows` rows or `flush_tokens` response tokens, when its oldest row is `flush_seconds` old,
    and on close. A process that is killed loses its buffered rows (`pending_rows`); `lost_rows` of
    the next recorder reports how many.

    Any number of ranks, processes and restarts may write to one folder, and several threads may
    share a recorder. After a fork or unpickling, the new process writes files of its own; rows
    that its parent buffered are written by the parent.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        metadata: Mapping[str, Any] | None = None,
        rank: int | None = None,
        flush_rows: int = 8192,
        flush_tokens: int = VALUES_PER_ROW_GROUP,
        flush_seconds: float = 30.0,
    ) -> None:
        """Create the folder if needed; existing files in it are kept.

        `metadata` describes the run, as JSON: `{"policies": {"rollout": {"backend": "vllm",
        "dtype": "bfloat16"}}}`. `rank` is this process's rank among the recording processes, by
        default the environment's RANK, else 0. Raises an RcdiagError if the folder is not writable.
        """
        self.folder = Path(folder)
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.flush_rows = flush_rows
        self.flush_tokens = flush_tokens
        self.flush_seconds = flush_seconds
        self._metadata = _as_json(metadata or {})
        self._ledger: Ledger | None = None
        self._begin()
        self._open()
        _recorders.add(self)
        atexit.register(self._close_at_exit)

    def _begin(self) -> None:
        """Start with no rows and with a file name prefix that no other process has."""
        # Digits only, so that the files of a run sort by time, as text and as numbers.
        self.run = (
            f"{time.time_ns() // 1000}-{os.getpid()}-{random.SystemRandom().randrange(10**6)}"
        )
        self._lock = threading.RLock()
        self._schema: pa.Schema | None = None  # all columns seen so far
        self._pending: list[pa.Table] = []
        self._tokens = 0  # response tokens in pending rows
        self._timer: threading.Timer | None = None
        self._parts = 0
        self._taken = 0
        self._written = 0
        self._reported = 0  # number of added rows when a write error was last raised
        self._closed = False

    def _open(self) -> Ledger:
        """Create the folder and the ledger, and count the rows that killed recorders lost."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lost_rows = rows_lost(self.folder)
            self._ledger = Ledger(self.folder, self.run)
        except OSError as error:
            raise not_writable(self.folder, error) from error
        return self._ledger

    def _leave_to_parent(self) -> None:
        """In a newly forked process, forget the pending rows and files: the parent writes them."""
        if self._ledger is not None:
            self._ledger.leave()
        self._ledger = None
        closed = self._closed
        self._begin()
        self._closed = closed

    @property
    def rows(self) -> int:
        """Return the number of rows that this process has added."""
        return self._taken

    @property
    def pending_rows(self) -> int:
        """Return the number of rows that are only in memory, and lost if the process is killed."""
        return self._taken - self._written

    def describe(self, policy: str, **facts: Any) -> None:
        """Add facts about a policy to the metadata: backend, dtype, temperature, model."""
        with self._lock:
            policies = self._metadata.setdefault("policies", {})
            known = _as_json({"policies": {policy: facts}})["policies"][policy]
            policies.setdefault(policy, {}).update(known)

    def add(self, *, response_ids: Any = None, **columns: Any) -> None:
        """Add a batch of sampled responses.

        `response_ids` and columns with one value per token (`rollout_log_probs`, `old_log_probs`,
        `response_mask`, `advantages`, `rollout_entropy`, ...) are ragged lists of rows, or matrices
        [rows, width] of torch, numpy or lists; for a single response they may be [tokens]. Matrices
        are padded. One of the following arguments says how to cut them, and is not stored itself
        (except `response_mask`):
        - `attention_mask`, [rows, width], or [rows, prompt + width] over prompt and response: 1 at
          tokens, including those of tools, 0 at padding on either side
        - `lengths`, [rows]: the number of tokens of each response, which begins in column 0
        - `response_mask`, if neither is given: the response ends with its last 1
        - `prompt_mask`, [rows, prompt width], for `prompt_ids`

        Columns with one value per row (`step`, `group_id`, `sample_id`, `reward`, `advantage`,
        `temperature`, `top_p`, `finish_reason`, `policy_version`, `engine`, ...) are lists or
        arrays [rows], or one value for all rows. None means that the column is absent. Columns of
        other names are kept. If an argument has a wrong shape, type or range (`temperature=-1`), an
        RcdiagError names it and the row, and no row of the batch is added. Log-probs are stored as
        they are, including NaN and positive values, which the diagnosis reports. If a file cannot
        be written, the rows are added and stay pending.
        """
        rows = rows_of({"response_ids": response_ids, **columns})
        if rows.num_rows == 0:
            return
        with self._lock:
            if self._closed:
                raise RcdiagError(
                    f"{self.folder}: the recorder is closed", hint="open another one and add to it"
                )
            ledger = self._ledger or self._open()
            self._take(rows)
            ledger.count(self._taken, self._written)
            if self.pending_rows >= self.flush_rows or self._tokens >= self.flush_tokens:
                self.flush()
            elif self._timer is None:
                self._timer = threading.Timer(self.flush_seconds, self._flush_in_time)
                self._timer.daemon = True
                self._timer.start()

    def _take(self, rows: pa.Table) -> None:
        """Add rows to the pending ones, and their columns to the schema."""
        schema = rows.schema
        if self._schema is not None:
            _check_same_columns(self._schema, rows.schema)
            schema, without = common_schema(self._schema, rows.schema)
            for name in without:
                raise RcdiagError(
                    f"Recorder.add: `{name}` was {self._schema.field(name).type} in earlier "
                    f"batches, and is {rows.schema.field(name).type}",
                    hint="all values of a column need the same type",
                )
        self._schema = schema
        self._pending.append(rows)
        self._tokens += len(rows["response_ids"].combine_chunks().values)
        self._taken += rows.num_rows

    def flush(self) -> None:
        """Write the pending rows as one file.

        If that fails, an RcdiagError says why; the rows stay pending, and the next flush retries.
        """
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._schema is None or self._ledger is None or not self._pending:
                return
            rows = pa.concat_tables([conformed(part, self._schema) for part in self._pending])
            try:
                self._write(rows)
            except RcdiagError:
                self._reported = self._taken
                raise
            self._parts += 1
            self._written += rows.num_rows
            self._pending, self._tokens = [], 0
            self._ledger.count(self._taken, self._written)

    def _flush_in_time(self) -> None:
        """Flush in the timer's thread; an error is raised again by the next flush or close."""
        with self._lock:
            self._timer = None
            reported = self._reported
            try:
                self.flush()
            except RcdiagError:
                self._reported = reported

    def _write(self, rows: pa.Table) -> None:
        import pyarrow.compute as pc

        step = (pc.min(rows["step"]).as_py() or 0) if "step" in rows.column_names else 0
        path = self.folder / NAME.format(
            step=max(step, 0), rank=self.rank, run=self.run, number=self._parts
        )
        about = {"rank": self.rank, "run": self.run, "rows_lost_before": self.lost_rows}
        with TableWriter(path, rows.schema, {**self._metadata, RECORDER: about}) as writer:
            # Slices of about one row group each.
            per_row = max(self._tokens / rows.num_rows, 1.0)
            size = max(int(VALUES_PER_ROW_GROUP / per_row), 1)
            for start in range(0, rows.num_rows, size):
                writer.write(rows.slice(start, size))

    def close(self) -> None:
        """Write the pending rows and stop; closing again does nothing."""
        with self._lock:
            if self._closed:
                return
            self.flush()
            self._closed = True
            if self._ledger is not None:
                self._ledger.remove()
                self._ledger = None
            atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        """Close when the process exits; do not repeat an error already raised for these rows."""
        reported = self._reported
        try:
            self.close()
        except RcdiagError:
            if reported < self._taken:
                raise

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except RcdiagError as failure:
            if error is None:
                raise
            # The user must see the error of the training loop first.
            error.add_note(f"{self.pending_rows} recorded rows were not written: {failure}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the settings: the other process writes files of its own."""
        again = partial(
            Recorder,
            self.folder,
            metadata=self._metadata,
            rank=self.rank,
            flush_rows=self.flush_rows,
            flush_tokens=self.flush_tokens,
            flush_seconds=self.flush_seconds,
        )
        return again, ()


def _check_same_columns(before: pa.Schema, now: pa.Schema) -> None:
    """Refuse a batch in which a key column is missing or new compared with earlier batches.

    Reading a table in which only some rows have a group or step would fail.
    """
    for name in (*NEVER_NULL, PROMPT):
        if (name in before.names) != (name in now.names):
            had, has = ("had", "has not") if name in before.names else ("had not", "has")
            raise RcdiagError(
                f"Recorder.add: earlier batches {had} `{name}`, but this one {has}",
                hint="give it for all rows, or for none",
            )


def _as_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as JSON will restore it; refuse what JSON cannot hold."""
    for key, value in metadata.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise RcdiagError(
                f"metadata of the recorder: `{key}` is not JSON ({error})",
                hint="give text, numbers, lists and dicts: str(torch.bfloat16)",
            ) from error
    written: dict[str, Any] = json.loads(json.dumps(dict(metadata)))
    try:
        check_metadata(written)
    except ValueError as error:
        raise RcdiagError(
            f"metadata of the recorder: {error}",
            hint='for example metadata={"policies": {"rollout": {"dtype": "bfloat16"}}}',
        ) from error
    return written


class Ledger:
    """A file with the number of rows that a recorder took and wrote; it survives a kill."""

    def __init__(self, folder: Path, run: str) -> None:
        """Create and lock the file; `run` identifies the recorder and is part of the file name."""
        self._path = folder / LEDGER.format(run=run)
        temporary = self._path.with_suffix(".new")
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            with contextlib.suppress(OSError):  # no locks on this file system: losses stay unknown
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.count(0, 0)
            # Locked before it gets its final name, so that no other recorder takes it for dead.
            os.replace(temporary, self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            os.close(self._descriptor)
            raise

    def count(self, taken: int, written: int) -> None:
        """Store the number of rows taken and written so far."""
        os.pwrite(self._descriptor, f"{taken:>19} {written:>19}\n".encode(), 0)

    def remove(self) -> None:
        """Remove the file, because every row is written."""
        self._path.unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """Close the file without removing it."""
        os.close(self._descriptor)


def rows_lost(folder: Path) -> int:
    """Return the number of rows that killed recorders of this folder took but never wrote.

    Removes their incomplete files. If a recorder was killed between renaming a part and updating
    its ledger, that part's rows are counted as lost although they are there.
    """
    return sum(_rows_lost_by(path) for path in folder.glob(LEDGERS))


def _rows_lost_by(path: Path) -> int:
    """Return the rows lost by one ledger's recorder; 0 while its process lives."""
    try:
        with path.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            taken, written = map(int, stream.read().split())
    except (OSError, ValueError):  # locked, gone, or on a file system without locks
        return 0
    run = path.name.removeprefix(".").removesuffix(".rows")
    for half in path.parent.glob(f".*{run}.*.tmp"):
        half.unlink(missing_ok=True)
    if taken == written:
        path.unlink(missing_ok=True)
    return taken - written


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
