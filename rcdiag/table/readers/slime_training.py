"""Training dumps of slime and miles: samples with log-probs of sampler and trainer.

slime gathers all ranks into one file (format_version 2). miles writes one file per rank; with
context parallelism, its values per token are slices, which are put together again here.
https://github.com/radixark/miles/blob/main/miles/backends/training_utils/cp_utils.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.reader import Notes
from rcdiag.table.readers.safe import StoredTensor, load_torch
from rcdiag.table.readers.samples import Fields, prompt_and_response, samples_of
from rcdiag.table.readers.slime_rollouts import Row, kept_ids

OPTION = "--save-debug-train-data"
COPIES = "a sample that several ranks hold is read once"
ABORTED = "a sample without any response token is left out"
RESTORED = "slices of {size} context-parallel ranks were put together again"

# Field of a sample, one value per response token -> column of the table.
STREAMS = {
    "rollout_log_probs": "rollout_log_probs",
    "log_probs": "old_log_probs",
    "ref_log_probs": "ref_log_probs",
    "teacher_log_probs": "teacher_log_probs",
    "entropy": "old_entropy",
    "advantages": "advantages",
}


class TrainSample(Struct, frozen=True):
    """A sample as a row of the table, with its positions and index in the rollout file."""

    row: Row
    path: Path
    position: int  # in its file
    index: int | None
    rollout_position: int | None


class _Slices(Struct):
    """The parts of one sample in the files of all ranks, and the file that the row is read from."""

    path: Path
    position: int
    fields: Fields
    sizes: set[int] = field(default_factory=set)
    parts: dict[int, Fields] = field(default_factory=dict)  # context-parallel rank -> its fields
    copies: int = 0


def train_samples(paths: Sequence[Path], notes: Notes) -> list[TrainSample]:
    """Return the samples in the files of one training step."""
    payloads = [(path, _payload(path)) for path in paths]
    gathered = [(path, payload) for path, payload in payloads if "samples" in payload]
    ranks = [(path, payload) for path, payload in payloads if "samples" not in payload]
    out = [sample for path, payload in gathered for sample in _gathered(path, payload, notes)]
    return out + (_of_ranks(ranks, notes) if ranks else [])


def _payload(path: Path) -> dict[str, Any]:
    payload = load_torch(path)
    if isinstance(payload, dict):
        version = payload.get("format_version")
        if version not in (None, 2):
            raise RcdiagError(
                f"{path}: format_version {version} of slime's train dump",
                hint="rcdiag knows version 2; look for a newer rcdiag",
            )
        if isinstance(payload.get("samples"), list) or isinstance(
            payload.get("rollout_data"), dict
        ):
            return payload
    raise RcdiagError(
        f"{path}: neither `samples` nor `rollout_data`",
        hint=f"is this a file of {OPTION}?",
    )


def _gathered(path: Path, payload: dict[str, Any], notes: Notes) -> list[TrainSample]:
    step = Fields(payload, str(path)).integer("rollout_id")
    rewards = payload.get("raw_reward")
    out = []
    for position, fields in enumerate(samples_of(payload["samples"], path, OPTION)):
        row = _row(fields, {None: fields}, 1, notes)
        if row is None:
            continue
        total = fields.integer("total_lengths")
        tokens = len(row["prompt_ids"]) + len(row["response_ids"])
        if total not in (None, tokens):
            raise fields.wrong("total_lengths", f"is {total}, but the sample has {tokens} tokens")
        place = fields.integer("rollout_position")
        known = _length(rewards)
        if place is not None and known is not None and not 0 <= place < known:
            raise fields.wrong(
                "rollout_position", f"is {place}, but the file has {known} rewards (raw_reward)"
            )
        row |= {"step": step, "reward": _raw_reward(rewards, place, fields.where)}
        index = fields.integer("sample_index")
        out.append(TrainSample(row, path, position, index, place))
    return out


def _of_ranks(payloads: Sequence[tuple[Path, dict[str, Any]]], notes: Notes) -> list[TrainSample]:
    """Return the samples from files of one rank each; every sample once."""
    held: dict[tuple[Any, int], _Slices] = {}
    step = None
    for path, payload in payloads:
        top = Fields(payload, str(path))
        step = top.integer("rollout_id")
        size, rank = top.integer("cp_size") or 1, top.integer("cp_rank") or 0
        times: dict[Any, int] = {}
        for position, fields in enumerate(_columns(path, payload)):
            # A sample is known by its position, its index, else its tokens.
            identity: Any = None
            for name in ("partition", "sample_indices"):
                if identity is None and (own := fields.integer(name)) is not None:
                    identity = name, own
            if identity is None:
                tokens = fields.ids("tokens")
                identity = b"" if tokens is None else tokens.tobytes()
            times[identity] = times.get(identity, 0) + 1
            slices = held.setdefault((identity, times[identity]), _Slices(path, position, fields))
            slices.sizes.add(size)
            if rank in slices.parts:
                slices.copies += 1
            # Of two copies keep the one with log-probs, which early pipeline stages lack.
            before = slices.parts.get(rank)
            if before is not None:
                present = {name: v for name, v in before.values.items() if v is not None}
                fields = Fields({**fields.values, **present}, before.where)
            slices.parts[rank] = fields
    return [sample for slices in held.values() if (sample := _joined(slices, step, notes))]


def _columns(path: Path, payload: dict[str, Any]) -> list[Fields]:
    """Return the samples of one rank; in its file, each field is a list over samples."""
    data = payload["rollout_data"]
    count = _length(data.get("response_lengths"))
    if count is None:
        raise RcdiagError(
            f"{path}: no list `response_lengths` in `rollout_data`",
            hint=f"is this a file of {OPTION}?",
        )
    rewards = data.get("raw_reward")
    columns = {name: values for name, values in data.items() if _length(values) == count}
    out = []
    for position in range(count):
        values = {name: column[position] for name, column in columns.items()}
        where = f"{path}, sample {position}"
        place = Fields(values, where).integer("partition")
        values["raw_reward"] = _raw_reward(rewards, place, where)
        out.append(Fields(values | {"qkv_format": payload.get("qkv_format")}, where))
    return out


def _joined(slices: _Slices, step: int | None, notes: Notes) -> TrainSample | None:
    if len(slices.sizes) > 1:
        raise slices.fields.wrong("cp_size", f"differs between ranks: {sorted(slices.sizes)}")
    size = slices.sizes.pop()
    first = slices.parts[min(slices.parts)]
    row = _row(first, slices.parts, size, notes)
    if row is None:
        return None
    if slices.copies:
        notes.change(COPIES, 1)
    if size > 1:
        notes.change(RESTORED.format(size=size), 1)
    row |= {"step": step, "reward": first.number("raw_reward")}
    index = first.integer("sample_indices")
    return TrainSample(row, slices.path, slices.position, index, first.integer("partition"))


def _row(fields: Fields, parts: Mapping[Any, Fields], size: int, notes: Notes) -> Row | None:
    """Return the row of a sample, whose values per token are whole or cut into several parts."""
    if not fields.count("response_lengths"):
        notes.change(ABORTED, 1)
        return None
    prompt, response = prompt_and_response(fields, "response_lengths")
    mask = fields.bits("loss_masks", len(response))
    row: Row = {"prompt_ids": prompt, "response_ids": response}
    row["rollout_kept_ids"] = kept_ids(fields, len(response))  # whole on every rank
    if mask is not None:
        row["response_mask"] = mask
    for name, column in STREAMS.items():
        row[column] = (
            fields.floats(name, len(response))
            if size == 1
            else _restored(name, parts, size, len(prompt), len(response))
        )
    index = fields.integer("sample_index")
    return {**row, "sample_index": fields.integer("sample_indices") if index is None else index}


def _restored(
    name: str, parts: Mapping[int, Fields], size: int, prompt: int, response: int
) -> NDArray[np.float32] | None:
    """Put the slices of a field together; None if no rank has the field.

    The sequence is cut into 2 `size` chunks; rank k holds the response tokens of chunks k and
    2 `size` - 1 - k, in this order.
    """
    having = {rank: part for rank, part in parts.items() if part.values.get(name) is not None}
    if not having:
        return None
    out = np.zeros(response, np.float32)
    for rank in range(size):
        if rank not in having:
            raise RcdiagError(
                f"{next(iter(having.values())).where}: `{name}` of context-parallel rank {rank} of "
                f"{size} is missing, so that the response cannot be put together",
                hint="give the files of all ranks (a whole train_data folder)",
            )
        places = _places(having[rank], rank, size, prompt, response)
        if len(having[rank].values[name]) == response != len(places):
            return having[rank].floats(name, response)  # this field was not sliced
        values = having[rank].floats(name, len(places), "this rank's slice of the response has")
        assert values is not None
        out[places] = values
    return out


def _places(fields: Fields, rank: int, size: int, prompt: int, response: int) -> NDArray[np.int64]:
    """Return the positions in the response of the tokens that a context-parallel rank holds."""
    total = prompt + response
    padded = total
    if fields.values.get("qkv_format") not in (None, "thd"):
        longest = fields.integer("max_seq_lens")
        if longest is None:
            raise fields.wrong(
                "max_seq_lens", "is missing, without which padded slices cannot be placed"
            )
        padded = longest
    chunk = -(-padded // (2 * size))
    places = []
    for number in (rank, 2 * size - 1 - rank):
        # Log-probs are sliced like the logits that predict them: one token earlier.
        first = max(number * chunk, prompt - 1)
        last = min((number + 1) * chunk, total - 1)
        places.append(np.arange(first, max(last, first)) + 1 - prompt)
    order: NDArray[np.int64] = np.concatenate(places).astype(np.int64)
    return order


def _raw_reward(rewards: Any, position: int | None, where: str) -> float | None:
    """Return the reward before normalisation, from a list in the order of the rollout."""
    if position is None or not 0 <= position < (_length(rewards) or 0):
        return None
    return Fields({"raw_reward": rewards[position]}, where).number("raw_reward")


def _length(values: Any) -> int | None:
    """Return the number of values of a list or tensor; None for anything else."""
    if isinstance(values, StoredTensor | np.ndarray):
        return values.shape[0] if values.shape else None
    return len(values) if isinstance(values, list | tuple) else None
