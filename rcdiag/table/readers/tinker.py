"""tinker-cookbook captures each call of the sampler, in SQLite or as JSON lines.

A trajectory is several calls, each with its whole context as the prompt; they are joined here. A
call belongs to the trajectory whose tokens its prompt begins with; the tokens between are those of
tools and templates, which nobody sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.table.readers.gather import gather
from rcdiag.table.readers.jsonl import check_length, floats, ids
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Dump, Notes, Reader, Rows
from rcdiag.table.readers.tinker_stores import MAGIC, Scope, Store, is_store, open_store

Tokens = NDArray[np.int32]


class Turn(Struct, frozen=True):
    """A sampled sequence, with the whole context before it."""

    number: int  # of its record in the file
    call: Any  # sequences of one call start from the same context, and do not follow each other
    prompt: Tokens | None  # None where it is not recorded
    tokens: Tokens
    log_probs: NDArray[np.float32] | None
    columns: dict[str, Any] = field(default_factory=dict)


class Trajectory(Struct):
    """Turns of which each one's prompt begins with the tokens of all before it."""

    turns: list[Turn]

    @property
    def tokens(self) -> Tokens | None:
        """Return all tokens so far, those of the prompt included."""
        last = self.turns[-1]
        return None if last.prompt is None else np.concatenate([last.prompt, last.tokens])

    def goes_on_in(self, turn: Turn) -> bool:
        known = self.tokens
        if known is None or turn.prompt is None or turn.call == self.turns[-1].call:
            return False
        return len(turn.prompt) >= len(known) and np.array_equal(turn.prompt[: len(known)], known)

    def row(self) -> tuple[int, dict[str, Any]]:
        """Return the number of its first record, and a row of the table."""
        first, last = self.turns[0], self.turns[-1]
        prompt = first.prompt
        if prompt is None:
            return first.number, {
                "response_ids": first.tokens,
                "rollout_log_probs": first.log_probs,
                "response_mask": np.ones(len(first.tokens), np.uint8),
            }
        assert last.prompt is not None
        response = np.concatenate([last.prompt[len(prompt) :], last.tokens])
        mask = np.zeros(len(response), np.uint8)
        log_probs = np.zeros(len(response), np.float32)
        for turn in self.turns:
            assert turn.prompt is not None
            start = len(turn.prompt) - len(prompt)
            mask[start : start + len(turn.tokens)] = 1
            if turn.log_probs is not None:
                log_probs[start : start + len(turn.tokens)] = turn.log_probs
        measured = all(turn.log_probs is not None for turn in self.turns)
        return first.number, {
            "prompt_ids": prompt,
            "response_ids": response,
            "response_mask": mask,
            "rollout_log_probs": log_probs if measured else None,
        }


def trajectories(turns: Iterable[Turn]) -> list[Trajectory]:
    """Return turns, in the order in which they were sampled, joined where they go on."""
    out: list[Trajectory] = []
    for turn in turns:
        before = [trajectory for trajectory in out if trajectory.goes_on_in(turn)]
        if before:
            longest = max(before, key=lambda each: 0 if each.tokens is None else len(each.tokens))
            longest.turns.append(turn)
        else:
            out.append(Trajectory([turn]))
    return out


OLDER = "a call of an earlier attempt of a resumed run (run_attempt) is left out"
FAILED = "a call that failed or was cancelled has no samples: left out"
EMPTY = "a sample without any token is left out"
JOINED = "calls of one trajectory were joined into a row; tokens between them have response_mask 0"
BROKEN = (
    "a call whose prompt does not begin with the tokens of the calls before it (its history was "
    "written anew) begins another row of its trajectory"
)
MIXED = "calls of one row differ in {name}: it is unknown"


def _read(dump: Dump) -> Iterator[Rows]:
    for file in dump.files:
        yield from gather(
            _rows(file, dump.notes), file, "row" if Peek(file).head.startswith(MAGIC) else "line"
        )


def _rows(file: Path, notes: Notes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of one store, trajectory after trajectory."""
    with open_store(file) as store:
        newest = _newest(store.scopes())
        held: list[Turn] = []
        scope = Scope()
        for own, place in store.ordered():
            if own.run_attempt != newest[own.run_id]:
                notes.change(OLDER, 1)
                continue
            if own.key != scope.key or own.traj_idx is None:
                yield from _finished(held, scope, notes)
                held, scope = [], own
            held += _turns(store, place, notes)
        yield from _finished(held, scope, notes)


def _newest(scopes: Iterator[Scope]) -> dict[str | None, int | None]:
    """Return the newest attempt of each run; an attempt without a number is the oldest."""
    newest: dict[str | None, int | None] = {}
    for scope in scopes:
        before = newest.setdefault(scope.run_id, scope.run_attempt)
        if scope.run_attempt is not None and (before is None or scope.run_attempt > before):
            newest[scope.run_id] = scope.run_attempt
    return newest


def _turns(store: Store, place: int, notes: Notes) -> Iterator[Turn]:
    """Yield the sampled sequences of a call, or of a row of the table of them."""
    where, number, call = store.read(place)
    if not call.samples:
        notes.change(FAILED, 1)
        return
    parameters = call.sampling_params
    for position, sample in enumerate(call.samples):
        here = f"{where}, sample {position}" if len(call.samples) > 1 else where
        if not sample.tokens:
            notes.change(EMPTY, 1)
            continue
        check_length(sample.logprobs, len(sample.tokens), here, "logprobs", "tokens")
        columns = {
            "temperature": parameters.temperature if parameters else None,
            "top_p": parameters.top_p if parameters else None,
            "top_k": parameters.top_k if parameters else None,
            "model_path": call.model_path,
            "finish_reason": sample.stop_reason,
        }
        yield Turn(
            number=number,
            call=call.identity or place,
            prompt=None if call.prompt_tokens is None else ids(call.prompt_tokens),
            tokens=ids(sample.tokens),
            log_probs=None if sample.logprobs is None else floats(sample.logprobs),
            columns=columns,
        )


def _finished(
    turns: Sequence[Turn], scope: Scope, notes: Notes
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of one trajectory, or of calls that belong to none."""
    joined = trajectories(turns)
    beginnings = {trajectory.turns[0].call for trajectory in joined}
    if len(beginnings) > 1:
        notes.change(BROKEN, len(beginnings) - 1)
    for trajectory in joined:
        if len(trajectory.turns) > 1:
            notes.change(JOINED, 1)
        number, row = trajectory.row()
        yield number, {**row, **_shared(trajectory, notes), **_of_scope(scope, trajectory)}


def _shared(trajectory: Trajectory, notes: Notes) -> dict[str, Any]:
    """Return what all calls of a trajectory have in common, and the end of the last one."""
    columns = dict(trajectory.turns[-1].columns)
    for name in columns:
        values = {turn.columns[name] for turn in trajectory.turns}
        if name != "finish_reason" and len(values) > 1:
            notes.change(MIXED.format(name=name), 1)
            columns[name] = None
    return columns


def _of_scope(scope: Scope, trajectory: Trajectory) -> dict[str, Any]:
    group = None
    if scope.group_idx is not None:
        parts = (scope.run_id, scope.split, scope.iteration, scope.group_idx)
        group = "/".join(str(part) for part in parts if part is not None)
    elif scope.traj_idx is None:
        group = f"call {trajectory.turns[0].call}"
    return {
        "step": scope.iteration,
        "group_id": group,
        "split": scope.split,
        "purpose": scope.purpose,
    }


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
