"""XTuner's log of trajectories as text: a summary line, then one line per response."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rcdiag.table.readers.jsonl import Int, records
from rcdiag.table.readers.reader import Notes, Reader
from rcdiag.table.readers.text_only import RECORD, Messages, TextRow, encoding


class XtunerLine(msgspec.Struct):
    """One response in XTuner's log; the first line of a file is a summary without a response."""

    prompt: str | Messages | None = None
    response: str | None = None
    reward: float | None = None
    response_len: Int | None = None
    group_id: str | Int | None = None
    rollout_id: str | Int | None = None
    finish_reason: str | None = None
    total_len: Int | None = None


XTUNER_FILE = re.compile(r"_rollout_(?P<step>\d+)")
NO_TEXT = "A record without a response: left out."


def _xtuner_rows(file: Path, notes: Notes) -> Iterator[TextRow]:
    name = XTUNER_FILE.search(file.name)
    step = int(name["step"]) if name else None
    for _, number, line in records(file, XtunerLine):
        if line.total_len is not None and line.response is None:
            continue  # the summary
        if line.response is None or line.prompt is None:
            notes.change(NO_TEXT, 1)
            continue
        columns = {
            "group_id": None if line.group_id is None else str(line.group_id),
            "sample_id": None if line.rollout_id is None else str(line.rollout_id),
            "finish_reason": line.finish_reason,
            "reward": line.reward,
            "step": step,
        }
        yield TextRow(number, line.prompt, line.response, columns, line.response_len)


XTUNER = Reader(
    name="xtuner",
    says="XTuner's log of trajectories, text: train_rollout_{step}.jsonl.",
    patterns=("*_rollout_*.jsonl",),
    detect=lambda peek: (
        {"reward_mean", "response_len_mean", "total_len"} <= peek.keys  # the summary
        or {"rollout_id", "response", "response_len", "prompt_len"} <= peek.keys
    ),
    read=encoding(_xtuner_rows, specials=True),
    source="https://github.com/InternLM/xtuner/blob/main/xtuner/v1/train/rl_trainer.py",
    text_only=f"XTuner has no option that dumps tokens; {RECORD}",
)
