"""tinker-cookbook's captures of sampler calls, in SQLite or as JSON lines.

A trajectory consists of several calls, each with its whole context as the prompt; `turns` joins
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rcdiag.table.readers.gather import gather
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Dump, Notes, Reader, Rows
from rcdiag.table.readers.tinker_stores import MAGIC, Scope, Store, is_store, open_store
from rcdiag.table.readers.turns import Turn, rows_of_turns, turn_of

OLDER = "a call of an earlier attempt of a resumed run (run_attempt) is left out"
FAILED = "a call that failed or was cancelled has no samples: left out"


def _read(dump: Dump) -> Iterator[Rows]:
    for file in dump.files:
        yield from gather(
            _rows(file, dump), file, "row" if Peek(file).head.startswith(MAGIC) else "line"
        )


def _rows(file: Path, dump: Dump) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of one store, one trajectory after the other."""
    with open_store(file) as store:
        # The newest attempt of each run; an attempt without a number is the oldest.
        newest: dict[str | None, int | None] = {}
        for own, _ in store.ordered():
            before = newest.setdefault(own.run_id, own.run_attempt)
            if own.run_attempt is not None and (before is None or own.run_attempt > before):
                newest[own.run_id] = own.run_attempt
        held: list[Turn] = []
        scope = Scope()
        for own, place in store.ordered():
            if own.run_attempt != newest[own.run_id]:
                dump.notes.change(OLDER, 1)
                continue
            if own.key != scope.key or own.traj_idx is None:
                yield from _finished(held, scope, dump)
                held, scope = [], own
            held += _turns(store, place, dump.notes)
        yield from _finished(held, scope, dump)


def _turns(store: Store, place: int, notes: Notes) -> Iterator[Turn]:
    """Yield the sampled sequences of a call, or of one row of the table of calls."""
    where, number, call = store.read(place)
    if not call.samples:
        notes.change(FAILED, 1)
        return
    parameters = call.sampling_params
    for position, sample in enumerate(call.samples):
        here = f"{where}, sample {position}" if len(call.samples) > 1 else where
        yield turn_of(
            number,
            here,
            call.prompt_tokens,
            sample.tokens or [],
            sample.logprobs,
            ("logprobs", "tokens"),
            call=call.identity or place,
            temperature=parameters.temperature if parameters else None,
            top_p=parameters.top_p if parameters else None,
            top_k=parameters.top_k if parameters else None,
            model_path=call.model_path,
            finish_reason=sample.stop_reason,
        )


def _finished(
    turns: Sequence[Turn], scope: Scope, dump: Dump
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of one trajectory, or of calls that belong to no trajectory."""
    group = None
    if scope.group_idx is not None:
        parts = (scope.run_id, scope.split, scope.iteration, scope.group_idx)
        group = "/".join(str(part) for part in parts if part is not None)
    elif turns and scope.traj_idx is None:
        group = f"call {turns[0].call}"
    columns = {
        "step": scope.iteration,
        "group_id": group,
        "split": scope.split,
        "purpose": scope.purpose,
    }
    yield from rows_of_turns(turns, dump, columns)


def _detect(peek: Peek) -> bool:
    if peek.head.startswith(MAGIC):
        return is_store(peek.path)
    kind = peek.record.get("kind")
    return kind == "sample" and ({"samples", "prompt_tokens"} & peek.keys) != set()


TINKER = Reader(
    name="tinker",
    says="tinker-cookbook's captures: the store capture.sqlite, or capture/sample.jsonl.",
    patterns=("capture.sqlite", "sample.jsonl"),
    beside=("capture.sqlite-wal", "capture.sqlite-shm"),
    detect=_detect,
    read=_read,
    source="https://github.com/thinking-machines-lab/tinker-cookbook/tree/main/"
    "tinker_cookbook/capture",
)
