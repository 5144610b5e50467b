"""NeMo-RL's log of training data: one line per sample of a step, with lists of one value each.

Sequences are whole (prompt, response, and padding on the right); value i of each list belongs to
token i.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.gather import gather
from rcdiag.table.readers.jsonl import Bit, Id, Int, bits, check_length, floats, ids, records
from rcdiag.table.readers.reader import Dump, Notes, Reader, Rows

FILE_NAME = re.compile(r"train_data_step(?P<step>\d+)")

NO_RESPONSE = "a sample without any assistant token in token_loss_mask has no response: left out"
NO_LENGTH = (
    "a sample without input_lengths ends with its last assistant token, as padding and tool tokens "
    "after it cannot be told apart"
)
REMOVED = "a sample with sample_loss_mask 0 keeps its row; its response_mask is 0"
WEIGHTED = (
    "a sample with a sample_loss_mask between 0 and 1 counts in full; its trainer uses it as a "
    "weight"
)
NOT_COMPUTED = (
    "prev_logprobs of a sample are 0.0 at every token of prompt and response: NeMo-RL did not "
    "compute them (force_on_policy_ratio), so that old_log_probs are left out"
)


class TrainedSample(msgspec.Struct):
    """The fields of a line: a batch of one sample, so each value is a list of length 1."""

    token_ids: list[list[Id]] | None = None
    input_lengths: list[Int] | None = None
    token_loss_mask: list[list[Bit]] | None = None
    sample_loss_mask: list[float] | None = None
    generation_logprobs: list[list[float]] | None = None
    prev_logprobs: list[list[float]] | None = None
    advantages: list[float | list[float]] | None = None
    rewards: list[float] | None = None
    filtered_rewards: list[float] | None = None


def _read(dump: Dump) -> Iterator[Rows]:
    _check_once(dump.files)
    for file in dump.files:
        name = FILE_NAME.search(file.name)
        step = int(name["step"]) if name else None
        made = (
            (number, _row(sample, where, dump.notes))
            for where, number, sample in records(file, TrainedSample)
        )
        yield from gather(((number, {**row, "step": step}) for number, row in made if row), file)


def _check_once(files: Sequence[Path]) -> None:
    """Raise an error if two folders have the same step: of two runs, or of one that restarted."""
    places: dict[str, Path] = {}
    for file in files:
        first = places.setdefault(file.name, file)
        if first != file and FILE_NAME.search(file.name):
            raise RcdiagError(
                f"{file}: the same step as {first}",
                hint="each start of a run has a folder exp_NNN of its own: give one of them, or "
                "the files whose steps were trained on",
            )


def _row(sample: TrainedSample, where: str, notes: Notes) -> dict[str, Any] | None:
    """Split the sequence of a sample into prompt and response; None if it has no response."""
    tokens = _one(sample.token_ids, "token_ids", where)
    mask = _one(sample.token_loss_mask, "token_loss_mask", where)
    if tokens is None or mask is None:
        raise RcdiagError(
            f"{where}: no `{'token_ids' if tokens is None else 'token_loss_mask'}`, without which "
            "the tokens are unknown",
            hint="the synchronous trainer (grpo_sync) may leave token ids out of its log: dump "
            "with the other trainer, or add them to the data that it logs",
        )
    check_length(mask, len(tokens), where, "token_loss_mask", "token_ids")
    is_sampled = bits(mask, where, "token_loss_mask")
    end = _one(sample.input_lengths, "input_lengths", where)
    if end is None:
        notes.change(NO_LENGTH, 1)
        end = len(tokens) - int(np.argmax(is_sampled[::-1])) if is_sampled.any() else 0
    _check_end(end, is_sampled, where)
    if not is_sampled.any():
        notes.change(NO_RESPONSE, 1)
        return None
    start = int(np.argmax(is_sampled))

    def response(values: list[float] | None, field: str) -> Any:
        check_length(values, len(tokens), where, field, "token_ids")
        return None if values is None else floats(values[start:end])

    previous = _one(sample.prev_logprobs, "prev_logprobs", where)
    old = response(previous, "prev_logprobs")
    if previous is not None and end > 1 and not any(previous[:end]):
        notes.change(NOT_COMPUTED, 1)
        old = None
    generated = _one(sample.generation_logprobs, "generation_logprobs", where)
    advantages = _one(sample.advantages, "advantages", where)
    # Dynamic sampling logs the rewards of all samples, including those it filtered out; only the
    # filtered rewards belong to the rows.
    scores = sample.rewards if sample.filtered_rewards is None else sample.filtered_rewards
    row = {
        "prompt_ids": ids(tokens[:start]),
        "response_ids": ids(tokens[start:end]),
        "response_mask": is_sampled[start:end] * _in_loss(sample, where, notes),
        "rollout_log_probs": response(generated, "generation_logprobs"),
        "old_log_probs": old,
        "reward": _one(scores, "rewards", where),
    }
    if isinstance(advantages, list) and (len(advantages) != 1 or len(tokens) == 1):
        return {**row, "advantages": response(advantages, "advantages")}
    return {**row, "advantage": advantages[0] if isinstance(advantages, list) else advantages}


def _in_loss(sample: TrainedSample, where: str, notes: Notes) -> np.uint8:
    """Return 1 for a sample that counts in the loss, 0 for one that does not."""
    weight = _one(sample.sample_loss_mask, "sample_loss_mask", where)
    if weight is not None and not math.isfinite(weight):
        raise RcdiagError(
            f"{where}: `sample_loss_mask` is {weight}, which is neither a mask nor a weight",
            hint="0 leaves a sample out of the loss and 1 keeps it; write the dump again",
        )
    if weight not in (None, 0, 1):
        notes.change(WEIGHTED, 1)
    if weight == 0:
        notes.change(REMOVED, 1)
    return np.uint8(weight != 0)


def _one(values: list[Any] | None, name: str, where: str) -> Any:
    """Return the single value of a field; None if the field or its value is missing."""
    if not values:
        return None
    if len(values) > 1:
        raise RcdiagError(
            f"{where}: `{name}` holds {len(values)} samples; a line holds one",
            hint="was this file written by NeMo-RL's log_batched_dict_as_jsonl?",
        )
    return values[0]


def _check_end(end: int, is_sampled: Any, where: str) -> None:
    if not 0 <= end <= len(is_sampled):
        raise RcdiagError(
            f"{where}: `input_lengths` is {end}, but `token_ids` has {len(is_sampled)} tokens",
            hint="the length of a sequence lies between 0 and its padded width",
        )
    if is_sampled[end:].any():
        place = end + int(np.argmax(is_sampled[end:]))
        raise RcdiagError(
            f"{where}: `token_loss_mask[{place}]` is 1 after the end of the sequence, {end}",
            hint="padding is never trained on; do mask and length belong to the same sample?",
        )


NEMO_RL = Reader(
    name="nemo-rl",
    says="NeMo-RL's log of training data, train_data_stepN.jsonl: on by default.",
    patterns=("train_data_step*.jsonl",),
    detect=lambda peek: {"generation_logprobs", "token_loss_mask"} <= peek.keys,
    read=_read,
    source="https://github.com/NVIDIA-NeMo/RL/blob/main/nemo_rl/utils/logger.py",
)
