"""A recorder writes the trajectory table from inside a training loop, a part of it at a time."""

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
# A recorder counts its rows in a small file, so that the next one knows what a kill has lost. The
# file is locked as long as the process of the recorder lives: one that can be locked belongs to a
# process that ended without closing its recorder, killed or out of memory.
LEDGER, LEDGERS = ".run-{run}.rows", ".run-*.rows"


class Recorder:
    """A writer of sampled responses to a folder that `rcdiag.open_table` reads as one table.

        with rcdiag.Recorder("dump/", metadata={"policies": {...}}) as recorder:
            recorder.add(response_ids=..., rollout_log_probs=..., old_log_probs=..., step=12)

    Rows gather in memory and become a parquet file, whole or not at all, when there are
    `flush_rows` rows or `flush_tokens` response tokens of them, when the oldest has waited
    `flush_seconds`, and when the recorder is closed. A process that is killed loses the rows since
    then (`pending_rows`), and `lost_rows` of the next recorder says how many those were.

    Any number of ranks, processes and restarts write to one folder. A recorder may be used by
    several threads. A process that was forked, or that received the recorder by pickling, writes
    files of its own and leaves the rows of its parent to its parent.
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
        """Open a folder, which is made where it does not exist; files in it stay as they are.

        `metadata` is what is known of the run, as JSON: `{"policies": {"rollout": {"backend":
        "vllm", "dtype": "bfloat16"}}}`. `rank` is this process's among those that record, by
        default the environment's RANK, else 0. RcdiagError says where nothing can be written.
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
        """Set out with no row and a name for files that no other process has."""
        # Numbers alone: the files of one run sort by its time, whether as text or as numbers.
        self.run = (
            f"{time.time_ns() // 1000}-{os.getpid()}-{random.SystemRandom().randrange(10**6)}"
        )
        self._lock = threading.RLock()
        self._schema: pa.Schema | None = None  # with every column that was seen
        self._pending: list[pa.Table] = []
        self._tokens = 0  # response tokens of pending rows
        self._timer: threading.Timer | None = None
        self._parts = 0
        self._taken = 0
        self._written = 0
        self._reported = 0  # rows that were added when the loop last had an error of writing
        self._closed = False

    def _open(self) -> Ledger:
        """Make the folder and the ledger, and count what others have lost there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lost_rows = rows_lost(self.folder)
            self._ledger = Ledger(self.folder, self.run)
        except OSError as error:
            raise not_writable(self.folder, error) from error
        return self._ledger

    def _leave_to_parent(self) -> None:
        """Forget, in a process that was just forked, what is its parent's to write."""
        if self._ledger is not None:
            self._ledger.leave()
        self._ledger = None
        closed = self._closed
        self._begin()
        self._closed = closed

    @property
    def rows(self) -> int:
        """Return how many rows this process has added."""
        return self._taken

    @property
    def pending_rows(self) -> int:
        """Return how many rows are in memory alone: those that a kill would lose now."""
        return self._taken - self._written

    def describe(self, policy: str, **facts: Any) -> None:
        """Add to the metadata what is known of a policy: backend, dtype, temperature, model."""
        with self._lock:
            policies = self._metadata.setdefault("policies", {})
            known = _as_json({"policies": {policy: facts}})["policies"][policy]
            policies.setdefault(policy, {}).update(known)

    def add(self, *, response_ids: Any = None, **columns: Any) -> None:
        """Add a batch of sampled responses.

        `response_ids` and columns with a value for each token (`rollout_log_probs`,
        `old_log_probs`, `response_mask`, `advantages`, `rollout_entropy`, ...) are lists of rows,
        ragged, or matrices [rows, width] of torch, numpy or lists; of one response alone they may
        be [tokens]. Matrices are padded: one of these cuts them, and is not stored itself:

        - `attention_mask`, [rows, width] or, over prompt and response, [rows, prompt + width]:
          1 for tokens, also those of tools, 0 for padding on either side
        - `lengths`, [rows]: the tokens of every response, which begins in column 0
        - `response_mask`, where neither of them is given: the response ends with its last 1
        - `prompt_mask`, [rows, prompt width], for `prompt_ids`

        Columns with a value for each row (`step`, `group_id`, `sample_id`, `reward`, `advantage`,
        `temperature`, `top_p`, `finish_reason`, `policy_version`, `engine`, ...) are lists or
        arrays [rows], or one value for all. A column that is None is absent. Columns of other
        names are kept. RcdiagError names the argument and the row that do not fit, by shape, type
        or range (`temperature=-1`); no row of the batch is added then. Log-probs are taken as they
        are, NaN and positive ones too, which a diagnosis names. Where a file cannot be written,
        the rows are added and stay pending.
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
        """Put rows to those that wait, whose file will have the columns of all of them."""
        schema = rows.schema
        if self._schema is not None:
            _check_same_columns(self._schema, rows.schema)
            schema, without = common_schema(self._schema, rows.schema)
            for name in without:
                raise RcdiagError(
                    f"Recorder.add: `{name}` was {self._schema.field(name).type} in earlier "
                    f"batches, and is {rows.schema.field(name).type}",
                    hint="values of one column are of one kind",
                )
        self._schema = schema
        self._pending.append(rows)
        self._tokens += len(rows["response_ids"].combine_chunks().values)
        self._taken += rows.num_rows

    def flush(self) -> None:
        """Write the rows that are pending as one file.

        Where that fails, RcdiagError says why; the rows stay pending, and the next flush tries
        again.
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
        """Flush from the timer's thread; an error comes again from the next flush or close."""
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
            # Pieces of about as many tokens as a row group holds.
            per_row = max(self._tokens / rows.num_rows, 1.0)
            size = max(int(VALUES_PER_ROW_GROUP / per_row), 1)
            for start in range(0, rows.num_rows, size):
                writer.write(rows.slice(start, size))

    def close(self) -> None:
        """Write what is pending and end; closing twice does nothing the second time."""
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
        """Close with the process; an error that the loop had for the same rows is not repeated."""
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
            # The error of the training loop is the one that its user must see.
            error.add_note(f"{self.pending_rows} recorded rows were not written: {failure}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings: the other process records to files of its own."""
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
    """Refuse a batch that lacks what rows are told apart by, or has it where earlier ones had not.

    A table in which some rows have no group or step is refused when it is read.
    """
    for name in (*NEVER_NULL, PROMPT):
        if (name in before.names) != (name in now.names):
            had, has = ("had", "has not") if name in before.names else ("had not", "has")
            raise RcdiagError(
                f"Recorder.add: earlier batches {had} `{name}`, and this one {has}",
                hint="give it for all rows, or for none",
            )


def _as_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as it will be read again, or refuse what JSON cannot hold."""
    for key, value in metadata.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise RcdiagError(
                f"metadata of the recorder: `{key}` is no JSON ({error})",
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
    """Counts the rows that a recorder took and those that it wrote, so that a kill leaves both."""

    def __init__(self, folder: Path, run: str) -> None:
        """`run` names the recorder, and is part of the names of its files."""
        self._path = folder / LEDGER.format(run=run)
        temporary = self._path.with_suffix(".new")
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: losses stay unknown
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.count(0, 0)
            # Under its own name it is locked already, so that no other recorder takes it for dead.
            os.replace(temporary, self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            os.close(self._descriptor)
            raise

    def count(self, taken: int, written: int) -> None:
        """Store how many rows were taken and written until now."""
        os.pwrite(self._descriptor, f"{taken:>19} {written:>19}\n".encode(), 0)

    def remove(self) -> None:
        """Remove the file: every row is written."""
        self._path.unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """Close the file and leave it where it is."""
        os.close(self._descriptor)


def rows_lost(folder: Path) -> int:
    """Return how many rows recorders of this folder took and, killed, never wrote.

    Their half-written files are removed. A kill between the rename of a part and the count counts
    the part's rows, though they are there.
    """
    return sum(_rows_lost_by(path) for path in folder.glob(LEDGERS))


def _rows_lost_by(path: Path) -> int:
    """Return the rows lost by the recorder of one ledger; 0 where its process lives."""
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
