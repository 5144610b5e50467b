"""AReaL's log of trajectories as text, one file of JSON lines per task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rcdiag.table.readers.jsonl import Int, records
from rcdiag.table.readers.reader import Notes, Reader
from rcdiag.table.readers.text_only import RECORD, TextRow, encoding


class ArealLine(msgspec.Struct, gc=False):
    """One trajectory in AReaL's log; lengths are in tokens, versions are those of the weights."""

    prompt: str
    completion: str
    seqlen: Int
    prompt_len: Int
    task_id: str | Int | None = None
    sample_idx: Int | None = None
    head_version: Int | None = None
    tail_version: Int | None = None
    reward: float | None = None


MIXED_VERSIONS = "Weights changed while a trajectory was sampled; policy_version is the last one."


def _areal_rows(file: Path, notes: Notes) -> Iterator[TextRow]:
    for _, number, line in records(file, ArealLine):
        # Prompt tokens have version -1, so that head_version, the lowest of all, is then -1.
        if line.head_version not in (None, -1, line.tail_version):
            notes.change(MIXED_VERSIONS, 1)
        columns = {
            "group_id": None if line.task_id is None else str(line.task_id),
            "policy_version": line.tail_version,
            "reward": line.reward,
        }
        tokens = line.seqlen - line.prompt_len
        yield TextRow(number, line.prompt, line.completion, columns, tokens)


AREAL = Reader(
    name="areal",
    says="AReaL's log of trajectories, text with special tokens: rollout.dump_to_file.",
    patterns=("*.jsonl",),
    detect=lambda peek: {"task_id", "seqlen", "prompt", "completion"} <= peek.keys,
    read=encoding(_areal_rows, specials=True),
    source="https://github.com/inclusionAI/AReaL/blob/main/areal/infra/workflow_executor.py",
    text_only=f"AReaL has no option that dumps tokens; {RECORD}",
)
