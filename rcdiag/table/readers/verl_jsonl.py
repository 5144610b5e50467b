"""verl logs prompts and responses as text, one file of JSON lines for each step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rcdiag.table.readers.jsonl import Int, records
from rcdiag.table.readers.reader import Dump, Reader, Rows
from rcdiag.table.readers.text import TextRow, encoded

# The end of a key of verl's TransferQueue: prompt, session, output.
SESSION = re.compile(r"_\d+_\d+$")


class VerlLine(msgspec.Struct, gc=False):
    """One response in verl's log: prompt and response without special tokens."""

    input: str
    output: str
    score: float | None = None
    step: Int | None = None
    uid: str | None = None


def _read_verl(dump: Dump) -> Iterator[Rows]:
    for file in dump.files:
        yield from encoded(_verl_rows(file), dump, file, specials=False)


def _verl_rows(file: Path) -> Iterator[TextRow]:
    step = int(file.stem) if file.stem.isdigit() else None
    for _, number, line in records(file, VerlLine):
        columns = {
            "reward": line.score,
            "step": step if line.step is None else line.step,
            "group_id": SESSION.sub("", line.uid) if line.uid else None,
            "sample_id": line.uid,
        }
        yield TextRow(number, line.input, line.output, columns)


VERL_JSONL = Reader(
    name="verl-jsonl",
    says="verl's log of generations, text without special tokens: trainer.rollout_data_dir.",
    patterns=("*.jsonl",),
    detect=lambda peek: {"input", "output", "score"} <= peek.keys,
    read=_read_verl,
    source="https://github.com/verl-project/verl/blob/main/verl/trainer/ppo/ray_trainer.py",
    text_only="verl dumps token ids and rollout_log_probs with "
    "actor_rollout_ref.rollout.skip.rollout.enable=True (0.9; 0.8: skip.enable) and "
    "rollout.calculate_log_probs=True",
)
