"""ART's log of trajectories: chat messages without token ids, one parquet file per step.

https://github.com/OpenPipe/ART/blob/main/src/art/utils/trajectory_logging.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.parquet import read_whole
from rcdiag.table.readers.reader import Notes, Reader
from rcdiag.table.readers.text_only import RECORD, TextRow, encoding

DAMAGED = "the file is damaged, or of a version of ART that rcdiag does not know"
NO_TRAJECTORY = "A group without any trajectory: left out."
UNTRAINED = "A trajectory without a trained message: left out."


def _art_rows(file: Path, notes: Notes) -> Iterator[TextRow]:
    """Yield one row per trajectory; its response begins with the first trained message."""
    step = int(file.stem) if file.stem.isdecimal() else None
    for number, row in enumerate(read_whole(file).to_pylist()):
        where, messages = f"{file}, row {number}", row["messages"]
        if messages is None and row.get("trajectory_json") is not None:
            raise RcdiagError(
                f"{where}: `messages` is null: ART stores a trajectory of this kind only as JSON, "
                "in `trajectory_json`, which rcdiag does not read",
                hint=RECORD,
            )
        if messages is None and row.get("format_version") is not None:
            notes.change(NO_TRAJECTORY, 1)
            continue
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            raise RcdiagError(f"{where}: `messages` is not a list of messages", hint=DAMAGED)
        # Older files do not mark which of the policy's messages are trained.
        trained = [
            one.get("role") == "assistant" and one.get("trainable") is not False for one in messages
        ]
        first = trained.index(True) if True in trained else None
        if first is None:
            notes.change(UNTRAINED, 1)
            continue
        group = row["group_index"]
        columns = {
            "group_id": None if group is None else f"{file.parent.name}-{file.stem}-{group}",
            "reward": row["reward"],
            "step": step,
        }
        prompt, response = _plain(messages[:first], where), _plain(messages[first:], where)
        yield TextRow(number, prompt, response, columns)


def _plain(messages: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """Return messages with only those fields that a chat template reads."""
    plain = []
    for message in messages:
        kept = {name: message.get(name) for name in ("role", "content", "tool_calls")}
        kept["tool_call_id"] = message.get("tool_call_id")
        if isinstance(kept["tool_calls"], str):
            try:
                kept["tool_calls"] = json.loads(kept["tool_calls"])
            except (ValueError, RecursionError) as error:
                raise RcdiagError(
                    f"{where}: `tool_calls` of a message is not JSON ({error})", hint=DAMAGED
                ) from error
        plain.append({name: value for name, value in kept.items() if value is not None})
    return plain


ART = Reader(
    name="art",
    says="ART's log of trajectories, chat messages without log-probs: trajectories/SPLIT/STEP.",
    patterns=("*.parquet",),
    detect=lambda peek: (
        {"group_index", "messages", "reward"} <= peek.columns and "response_ids" not in peek.columns
    ),
    read=encoding(_art_rows, "row", specials=False),
    source="https://github.com/OpenPipe/ART/blob/main/src/art/utils/trajectory_logging.py",
    text_only=f"ART's columns hold chat messages without log-probs; {RECORD}",
)
