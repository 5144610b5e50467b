"""verl's log of prompts and responses as text, one file of JSON lines per step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from rcdiag.table.readers.jsonl import Int, records_with_rest
from rcdiag.table.readers.reader import Dump, Notes, Reader, Rows
from rcdiag.table.readers.text_only import TextRow, encoded
from rcdiag.table.schema import column_spec

# The end of a key in verl's TransferQueue (prompt_session_output).
SESSION = re.compile(r"_\d+_\d+$")


LARGEST = 2**63  # larger integers are not taken for values of a reward function


class VerlLine(msgspec.Struct, gc=False):
    """One response in verl's log: prompt and response without special tokens."""

    input: str
    output: str
    score: float | None = None
    step: Int | None = None
    uid: str | None = None


class _Extras(Struct, frozen=True):
    """The fields that a reward function adds to the records of a dump, such as `acc` or `pred`."""

    notes: Notes
    kinds: dict[str, type] = field(default_factory=dict)  # column -> float or str

    def of(self, rest: dict[str, Any]) -> dict[str, Any]:
        """Return a record's numbers and texts; the first value determines a column's type."""
        columns: dict[str, Any] = {}
        for name, value in rest.items():
            if value is None:
                continue
            known = isinstance(value, (float, str)) or (
                isinstance(value, int) and abs(value) < LARGEST
            )
            if column_spec(name) is not None or not known:
                why = "it is neither a number nor text, or has the name of a column of the table"
                self.notes.change(f"`{name}` is left out: {why}", 1)
                continue
            kind = str if isinstance(value, str) else float
            if self.kinds.setdefault(name, kind) is not kind:
                self.notes.change(f"`{name}` is text in some records and a number in others", 1)
                continue
            columns[name] = kind(value)
        return columns


def _read_verl(dump: Dump) -> Iterator[Rows]:
    extras = _Extras(dump.notes)
    for file in dump.files:
        yield from encoded(_verl_rows(file, extras), dump, file, specials=False)


def _verl_rows(file: Path, extras: _Extras) -> Iterator[TextRow]:
    step = int(file.stem) if file.stem.isdigit() else None
    for _, number, line, rest in records_with_rest(file, VerlLine):
        columns = {
            "reward": line.score,
            "step": step if line.step is None else line.step,
            "group_id": SESSION.sub("", line.uid) if line.uid else None,
            "sample_id": line.uid,
            **extras.of(rest),
        }
        yield TextRow(number, line.input, line.output, columns)


VERL_JSONL = Reader(
    name="verl-jsonl",
    says="verl's log of generations, text without special tokens: trainer.rollout_data_dir.",
    patterns=("*.jsonl",),
    # A user's own dump that adds tokens to these records is read as JSON lines, not as text.
    detect=lambda peek: (
        {"input", "output", "score"} <= peek.keys and "response_ids" not in peek.keys
    ),
    read=_read_verl,
    source="https://github.com/verl-project/verl/blob/main/verl/trainer/ppo/ray_trainer.py",
    text_only="verl dumps token ids and rollout_log_probs with skip.rollout_tq.enable=True "
    "skip.rollout_tq.steps=[1,2] (0.9; 0.8: actor_rollout_ref.rollout.skip.enable=True) and "
    "actor_rollout_ref.rollout.calculate_log_probs=True",
)
