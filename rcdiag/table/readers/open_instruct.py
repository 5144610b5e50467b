"""open-instruct's rollouts (--save_traces), in files of JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rcdiag.table.readers.gather import gathering
from rcdiag.table.readers.jsonl import Id, Int, check_length, floats, ids, records
from rcdiag.table.readers.reader import Dump, Notes, Reader

TOOLS = (
    "a row that called a tool has tokens with a log-prob of exactly 0.0, as open-instruct writes "
    "for tool tokens: their response_mask is 0. A sampled token of log-prob 0.0 is masked too"
)
NOT_SAMPLED = (
    "an empty response is stored as one end token, which was not sampled, with log-prob NaN: its "
    "response_mask is 0"
)
EMPTY = "a row without any response token is left out"


class Rollout(msgspec.Struct):
    """The fields of a line; `prompt_idx` counts from 0 in each step."""

    prompt_tokens: list[Id]
    response_tokens: list[Id]
    step: Int | None = None
    prompt_idx: Int | None = None
    logprobs: list[float | None] | None = None
    reward: float | None = None
    advantage: float | None = None
    finish_reason: str | None = None
    dataset: Any = None
    request_info: Any = None


def _rows(file: Path, dump: Dump) -> Iterator[tuple[int, dict[str, Any]]]:
    for where, number, rollout in records(file, Rollout):
        if row := _row(rollout, where, dump.notes):
            yield number, row


def _row(rollout: Rollout, where: str, notes: Notes) -> dict[str, Any] | None:
    tokens = rollout.response_tokens
    if not tokens:
        notes.change(EMPTY, 1)
        return None
    check_length(rollout.logprobs, len(tokens), where, "logprobs", "response_tokens")
    log_probs = None if rollout.logprobs is None else floats(rollout.logprobs)
    group = None
    if rollout.step is not None and rollout.prompt_idx is not None:
        group = f"{rollout.step}/{rollout.prompt_idx}"
    return {
        "prompt_ids": ids(rollout.prompt_tokens),
        "response_ids": ids(tokens),
        "response_mask": _mask(rollout, log_probs, notes),
        "rollout_log_probs": log_probs,
        "reward": rollout.reward,
        "advantage": rollout.advantage,
        "step": rollout.step,
        "group_id": group,
        "finish_reason": rollout.finish_reason,
        "dataset": rollout.dataset if isinstance(rollout.dataset, str) else None,
    }


def _mask(rollout: Rollout, log_probs: Any, notes: Notes) -> Any:
    """Return the mask; the file has none, so tool tokens are recognised by a log-prob of 0.0."""
    mask = np.ones(len(rollout.response_tokens), np.uint8)
    if log_probs is None:
        return mask
    if len(log_probs) == 1 and np.isnan(log_probs[0]):
        notes.change(NOT_SAMPLED, 1)
        return np.zeros_like(mask)
    # `request_info` holds a flag for tool calls, or a list of flags.
    info = rollout.request_info
    called = info.get("tool_calleds") if isinstance(info, dict) else None
    called_tool = any(called) if isinstance(called, list) else called is True
    if called_tool and (log_probs == 0).any():
        notes.change(TOOLS, 1)
        return (log_probs != 0).astype(np.uint8)
    return mask


OPEN_INSTRUCT = Reader(
    name="open-instruct",
    says="open-instruct's rollouts, RUN_rollouts_NNNNNN.jsonl (--save_traces).",
    patterns=("*_rollouts_*.jsonl",),
    detect=lambda peek: (
        {"prompt_tokens", "response_tokens", "finish_reason"} <= peek.keys
        and not peek.name.endswith("_metadata.jsonl")
    ),
    read=gathering(_rows),
    source="https://github.com/allenai/open-instruct/blob/main/open_instruct/rl_utils.py",
)
