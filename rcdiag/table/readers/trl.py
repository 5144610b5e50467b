"""TRL's log of prompts and completions as text, one parquet file per logging step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from rcdiag.table.readers.parquet import read_whole
from rcdiag.table.readers.reader import Dump, Notes, Reader, Rows
from rcdiag.table.readers.text_only import TextRow, encoded

REPEATED = "A file that repeats the rows of the file before it, as TRL writes between generations."


def _read_trl(dump: Dump) -> Iterator[Rows]:
    before: list[TextRow] = []
    for file in dump.files:
        rows = list(_trl_rows(file, dump.notes))
        without_step = [replace(row, columns={**row.columns, "step": None}) for row in rows]
        if rows and without_step == before:
            dump.notes.change(REPEATED, len(rows))
            continue
        before = without_step
        yield from encoded(rows, dump, file, "row", specials=False)


def _trl_rows(file: Path, notes: Notes) -> Iterator[TextRow]:
    """Yield the rows of one logging step, which are those of one generation."""
    import pyarrow.types as pt

    table = read_whole(file)
    known = ("step", "prompt", "completion", "advantage")
    numbers = [
        name
        for name, kind in zip(table.schema.names, table.schema.types, strict=True)
        if name not in known and (pt.is_floating(kind) or pt.is_integer(kind))
    ]
    if len(numbers) > 1:
        notes.changes.setdefault(
            "Rewards of several functions are separate columns; their weights are unknown.", 0
        )
    for number, row in enumerate(table.to_pylist()):
        columns = {name: row[name] for name in ("step", "advantage")}
        columns |= {"reward" if len(numbers) == 1 else name: row[name] for name in numbers}
        yield TextRow(number, row["prompt"], row["completion"], columns)


TRL = Reader(
    name="trl",
    says="TRL's log of completions, text without special tokens: log_completions.",
    patterns=("completions_*.parquet",),
    detect=lambda peek: (
        {"prompt", "completion", "advantage", "step"} <= peek.columns
        and "response_ids" not in peek.columns
    ),
    read=_read_trl,
    source="https://github.com/huggingface/trl/blob/v1.16.0/trl/trainer/grpo_trainer.py",
    text_only="TRL has no option that dumps tokens; rcdiag.recorders.trl records them",
)
