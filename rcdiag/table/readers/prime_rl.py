"""prime-rl's dumps: token exports of each training step, micro-batches, and traces of rollouts.

A token export has log-probs of sampler and trainer. Without one, the micro-batches sent to the
trainer have the sampler's log-probs. A trace has group, reward, temperature and version. They share
no key, so they are joined by their tokens, within one step.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.gather import gather
from rcdiag.table.readers.jsonl import Bit, Id, Int, bits, check_length, floats, ids, records
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.prime_rl_batches import NOT_SAMPLED, batch_rows, is_batches
from rcdiag.table.readers.reader import Dump, Notes, Reader, Rows
from rcdiag.table.readers.verifiers_traces import Episode, RoundedLogProbs, samples

STEP = re.compile(r"step_(\d+)")
RANK = re.compile(r"rank_(\d+)")

NO_RATIO = (
    "a sequence without any importance ratio (distillation) has no log-probs of the sampler: "
    "rollout_log_probs are left out"
)
NO_RESPONSE = "a sequence without any trained token has no response: left out"
NOT_FINITE = "values that were not finite, which the export writes as null, are NaN"
INCOMPLETE = "step {step} has no STABLE marker: its token export may be incomplete"
OTHER_TRACES = "files of traces of evaluations, or of rollouts that were not trained on: not read"
MATCHED = "a sequence takes group and reward from the trace of its step that has the same tokens"
UNMATCHED = (
    "a sequence has the tokens of no trace of its step: its reward is unknown; it is grouped by "
    "its prompt"
)
SAME_SEQUENCES = "micro-batches hold the same sequences as the token export, and are not read"
LEFT = "a sample of a trace without a sequence in the token export of its step is left out"

# Columns that a sequence of the export takes from the trace with the same tokens.
JOINED = (
    "group_id",
    "reward",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "finish_reason",
    "policy_version",
    "first_policy_version",
    "last_policy_version",
)


class ExportedSequence(msgspec.Struct):
    """A sequence of a token export; value i of each list belongs to token i."""

    token_ids: list[Id]
    loss_mask: list[Bit]
    step: Int | None = None
    env_name: str | None = None
    advantages: list[float | None] | None = None
    inference_logprobs: list[float | None] | None = None
    trainer_logprobs: list[float | None] | None = None
    entropy: list[float | None] | None = None
    log_importance_ratio: list[float | None] | None = None
    ce_weights: list[float | None] | None = None
    schema_version: Int | None = None


def _read(dump: Dump) -> Iterator[Rows]:
    exports = [file for file in dump.files if _is_export(Peek(file))]
    batches = [file for file in dump.files if is_batches(Peek(file))]
    others = set(dump.files) - {*exports, *batches}
    traces = _trained([file for file in dump.files if file in others], dump.notes)
    rounding = RoundedLogProbs()
    if exports and batches:
        dump.notes.change(f"{SAME_SEQUENCES} ({len(batches)} files)")
    if not exports and not batches:
        for file in traces:
            yield from gather(_trace_rows(file, dump.notes, rounding), file)
        rounding.note(dump.notes)
        return
    _note_incomplete(exports, dump.notes)
    _note_missing_ranks(exports or batches, dump.notes)
    joined = _Traces(traces) if traces else None
    for file in exports:
        yield from gather(_export_rows(file, dump.notes, joined), file)
    for file in [] if exports else batches:
        yield from gather(_batch_rows(file, dump.notes, joined), file, "sequence")
    if joined is not None:
        joined.note(dump.notes)


def _note_incomplete(exports: Sequence[Path], notes: Notes) -> None:
    """Note the steps whose export lacks the marker that the trainer writes last."""
    for folder in dict.fromkeys(file.parent for file in exports):
        step = STEP.fullmatch(folder.name)
        if step and not (folder / "STABLE").exists():
            notes.change(INCOMPLETE.format(step=step[1]))


def _note_missing_ranks(files: Sequence[Path], notes: Notes) -> None:
    """Note the steps that lack the file of a rank which another step has."""
    ranks: dict[int, set[int]] = {}
    for file in files:
        step, rank = STEP.fullmatch(file.parent.name), RANK.fullmatch(file.stem)
        if step and rank:
            ranks.setdefault(int(step[1]), set()).add(int(rank[1]))
    notes.missing_ranks(ranks)


def _trained(files: Sequence[Path], notes: Notes) -> list[Path]:
    """Return the traces that were trained on; if a step has "effective" ones, not "all"."""
    effective = {file.parent.parent for file in files if file.parent.name == "effective"}
    training = any("train" in file.parts for file in files)
    chosen = [
        file
        for file in files
        if not (training and "eval" in file.parts)
        and not (file.parent.name == "all" and file.parent.parent in effective)
    ]
    if len(chosen) < len(files):
        notes.change(f"{OTHER_TRACES} ({len(files) - len(chosen)} files)")
    return chosen


def _export_rows(
    file: Path, notes: Notes, traces: _Traces | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    for where, number, sequence in records(file, ExportedSequence):
        if row := _export_row(sequence, where, notes):
            yield number, {**row, **(traces.columns(row) if traces else {})}


def _batch_rows(
    file: Path, notes: Notes, traces: _Traces | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in batch_rows(file, _step_of(file), notes):
        of_trace = traces.columns(row) if traces else {}
        if row["temperature"] is not None:
            of_trace.pop("temperature", None)
        yield number, {**row, **of_trace}


def _export_row(sequence: ExportedSequence, where: str, notes: Notes) -> dict[str, Any] | None:
    if sequence.schema_version not in (None, 1):
        raise RcdiagError(
            f"{where}: a token export of schema version {sequence.schema_version}",
            hint="rcdiag knows version 1; look for a newer rcdiag",
        )
    tokens = sequence.token_ids
    check_length(sequence.loss_mask, len(tokens), where, "loss_mask", "token_ids")
    mask = bits(sequence.loss_mask, where, "loss_mask")
    if not mask.any():
        notes.change(NO_RESPONSE, 1)
        return None
    start = int(np.argmax(mask))

    def response(field: str) -> NDArray[np.float32] | None:
        values = getattr(sequence, field)
        check_length(values, len(tokens), where, field, "token_ids")
        if values is None:
            return None
        numbers = floats(values[start:])
        return None if bool(np.isnan(numbers).all()) else numbers

    columns = {
        "rollout_log_probs": response("inference_logprobs"),
        "old_log_probs": response("trainer_logprobs"),
        "old_entropy": response("entropy"),
        "advantages": response("advantages"),
    }
    response_mask = mask[start:]
    if any(
        values is not None and bool(np.isnan(values[response_mask == 1]).any())
        for values in columns.values()
    ):
        notes.change(NOT_FINITE, 1)
    if sequence.log_importance_ratio is not None and response("log_importance_ratio") is None:
        notes.change(NO_RATIO, 1)
        columns["rollout_log_probs"] = None
    weights = response("ce_weights")
    if weights is not None:
        copied = (np.nan_to_num(weights) != 0) & (response_mask == 1)
        if copied.any():
            notes.change(NOT_SAMPLED, 1)
        response_mask = np.where(copied, 0, response_mask).astype(np.uint8)
    return {
        "prompt_ids": ids(tokens[:start]),
        "response_ids": ids(tokens[start:]),
        "response_mask": response_mask,
        **columns,
        "step": sequence.step,
        "env_name": sequence.env_name,
    }


def _trace_rows(
    file: Path, notes: Notes, rounding: RoundedLogProbs
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a file of traces; the step in its path is the one that trained on them."""
    step = _step_of(file)
    for where, number, episode in records(file, Episode):
        for row in samples(episode, where, notes, rounding):
            yield number, {**row, "step": row["step"] if step is None else step}


def _step_of(file: Path) -> int | None:
    steps = [match[1] for part in file.parts if (match := STEP.fullmatch(part))]
    return int(steps[-1]) if steps else None


class _Traces:
    """The samples of traces by their tokens; only one step is in memory at a time."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files: dict[int | None, list[Path]] = {}
        for file in files:
            self._files.setdefault(_step_of(file), []).append(file)
        self._step: int | None = None
        self._samples: dict[bytes, list[dict[str, Any]]] = {}
        self._groups: dict[bytes, str] = {}  # digest of a prompt -> group
        self._loaded = False
        self.matched = self.unmatched = self.left = 0

    def columns(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of the trace that has the tokens of a row."""
        if not self._loaded or row["step"] != self._step:
            self._load(row["step"])
        found = self._samples.get(_digest(row))
        if found:
            self.matched += 1
            return found.pop(0)
        self.unmatched += 1
        prompt = _digest_of(row["prompt_ids"])
        return {"group_id": self._groups.get(prompt, f"prompt {prompt.hex()}")}

    def _load(self, step: int | None) -> None:
        self._count_left()
        self._step, self._loaded = step, True
        self._samples, self._groups = {}, {}
        files = dict.fromkeys([*self._files.get(step, []), *self._files.get(None, [])])
        for file in files:
            for _, row in _trace_rows(file, Notes(), RoundedLogProbs()):
                columns = {name: row.get(name) for name in JOINED}
                if columns["group_id"] is not None:
                    self._groups[_digest_of(row["prompt_ids"])] = columns["group_id"]
                else:
                    columns["group_id"] = f"prompt {_digest_of(row['prompt_ids']).hex()}"
                self._samples.setdefault(_digest(row), []).append(columns)

    def _count_left(self) -> None:
        self.left += sum(map(len, self._samples.values()))

    def note(self, notes: Notes) -> None:
        self._count_left()
        for text, rows in ((MATCHED, self.matched), (UNMATCHED, self.unmatched), (LEFT, self.left)):
            if rows:
                notes.change(text, rows)


def _digest(row: dict[str, Any]) -> bytes:
    return _digest_of(np.concatenate([row["prompt_ids"], row["response_ids"]]))


def _digest_of(tokens: NDArray[np.int32]) -> bytes:
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()


def _is_export(peek: Peek) -> bool:
    return {"inference_logprobs", "trainer_logprobs", "loss_mask"} <= peek.keys


def _detect(peek: Peek) -> bool:
    episode = {"traces", "task"} <= peek.keys
    trace = {"nodes", "agent"} <= peek.keys
    return _is_export(peek) or episode or trace or is_batches(peek)


PRIME_RL = Reader(
    name="prime-rl",
    says="prime-rl's token exports (--enable-token-export), its traces of rollouts, or both, "
    "joined by their tokens; its micro-batches on disk; and traces of verifiers.",
    patterns=("rank_*.jsonl", "traces.jsonl", "rank_*.bin"),
    detect=_detect,
    read=_read,
    source="https://github.com/PrimeIntellect-ai/prime-rl/blob/main/"
    "src/prime_rl/trainer/rl/token_export.py",
)
