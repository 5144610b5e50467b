"""ART keeps trajectories as chat messages, one parquet file for each step, without token ids.

https://github.com/OpenPipe/ART/blob/main/src/art/utils/trajectory_logging.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.parquet import read_whole
from rcdiag.table.readers.reader import Dump, Notes, Reader, Rows
from rcdiag.table.readers.text_only import RECORD, TextRow, encoded

UNTRAINED = "A trajectory without a message that is trained: left out."


def _read_art(dump: Dump) -> Iterator[Rows]:
    for file in dump.files:
        yield from encoded(_art_rows(file, dump.notes), dump, file, "row", specials=False)


def _art_rows(file: Path, notes: Notes) -> Iterator[TextRow]:
    """Yield a row for each trajectory: its prompt ends where the first trained message begins."""
    step = int(file.stem) if file.stem.isdecimal() else None
    for number, row in enumerate(read_whole(file).to_pylist()):
        messages = row["messages"]
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            raise RcdiagError(
                f"{file}, row {number}: `messages` is no list of messages",
                hint="the file is damaged, or of a version of ART that rcdiag does not know",
            )
        first = next((i for i, message in enumerate(messages) if _is_trained(message)), None)
        if first is None:
            notes.change(UNTRAINED, 1)
            continue
        group = row["group_index"]
        columns = {
            "group_id": None if group is None else f"{file.stem}-{group}",
            "reward": row["reward"],
            "step": step,
        }
        yield TextRow(number, _plain(messages[:first]), _plain(messages[first:]), columns)


def _is_trained(message: dict[str, Any]) -> bool:
    """Tell whether the policy wrote a message; older files do not mark those that are trained."""
    trained = message.get("trainable")
    return message.get("role") == "assistant" and trained is not False


def _plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the fields alone that a chat template reads."""
    return [
        {
            name: value
            for name, value in message.items()
            if value is not None and name != "trainable"
        }
        for message in messages
    ]


ART = Reader(
    name="art",
    says="ART's log of trajectories, chat messages without log-probs: trajectories/SPLIT/STEP.",
    patterns=("*.parquet",),
    detect=lambda peek: (
        {"group_index", "messages", "reward"} <= peek.columns and "response_ids" not in peek.columns
    ),
    read=_read_art,
    source="https://github.com/OpenPipe/ART/blob/main/src/art/utils/trajectory_logging.py",
    text_only=f"ART drops the log-probs of its choices when it writes them; {RECORD}",
)
