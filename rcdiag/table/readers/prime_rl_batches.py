"""prime-rl's packed micro-batches, which the orchestrator sends to the trainer as msgpack files.

The file of a rank is a list of micro-batches; each is a list of fields by position, to which newer
versions append. Source: prime-rl commit 559b4477, src/prime_rl/transports/rollouts/types.py and
filesystem.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import IDS
from rcdiag.table.readers.jsonl import Bit, Id, bits, floats
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Notes
from rcdiag.table.trajectories import Ragged

FIELDS = 9  # number of fields that every micro-batch has; later ones are optional
PACKED = "sequences were packed into micro-batches, and are split by their lengths"
UNTRAINED = "a sequence without any trained token, such as padding, has no response: left out"
TEMPERATURES = "a sequence was sampled at several temperatures: its temperature is left out"
NOT_SAMPLED = (
    "tokens trained by cross-entropy (ce_weights) were not sampled by the policy: their "
    "response_mask is 0"
)


class RoutedExperts(msgspec.Struct, array_like=True, gc=False):
    """The experts of all tokens, [tokens, layers, experts], as the bytes of an array."""

    data: bytes
    shape: list[int]
    dtype: str


class SamplingMask(msgspec.Struct, array_like=True, gc=False):
    """The kept ids of all tokens, and the number of them per token, as bytes of int32 arrays."""

    ids: bytes
    counts: bytes


class TrainerMicroBatch(msgspec.Struct, array_like=True, gc=False):
    """Concatenated sequences; all lists are per token, except the two of lengths."""

    input_ids: list[Id]
    loss_mask: list[Bit]
    advantages: list[float]
    inference_logprobs: list[float | None]
    position_ids: list[int]
    sequence_lengths: list[int]
    temperatures: list[float]
    env_names: list[str]
    seq_lens: list[int]
    ref_logprobs: list[float] | None = None
    routed_experts: RoutedExperts | None = None
    mm_kwargs: Any = None
    mm_token_type_ids: Any = None
    rl_weights: list[float] | None = None
    ce_weights: list[float] | None = None
    ref_kl_weights: list[float] | None = None
    sampling_mask: SamplingMask | None = None


def is_batches(peek: Peek) -> bool:
    """Tell whether a file begins like a msgpack list of lists of at least nine fields."""
    if peek.path.suffix != ".bin":
        return False
    outer, rest = _array(peek.head)
    inner, rest = _array(rest)
    ids, _ = _array(rest)
    return outer is not None and inner is not None and inner >= FIELDS and ids is not None


def _array(text: bytes) -> tuple[int | None, bytes]:
    """Return the length of a msgpack array (None if it is not one) and the bytes after its head."""
    if not text:
        return None, b""
    if 0x90 <= text[0] <= 0x9F:
        return text[0] - 0x90, text[1:]
    if text[0] in (0xDC, 0xDD):
        size = 2 if text[0] == 0xDC else 4
        return int.from_bytes(text[1 : 1 + size], "big"), text[1 + size :]
    return None, b""


def batch_rows(file: Path, step: int | None, notes: Notes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the sequences of a file that have a response, with their number in the file."""
    try:
        batches = msgspec.msgpack.decode(file.read_bytes(), type=list[TrainerMicroBatch])
    except (msgspec.DecodeError, OSError) as error:
        raise RcdiagError(
            f"{file}: not a file of micro-batches of prime-rl ({error})",
            hint="it was truncated, or is of a version of prime-rl that rcdiag does not know",
        ) from error
    number = 0
    for place, batch in enumerate(batches):
        where = f"{file}, micro-batch {place}"
        experts, kept = _experts(batch, where), _kept_ids(batch, where)
        start = 0
        for length in _lengths(batch, where):
            notes.change(PACKED, 1)
            tokens = slice(start, start + length)
            if row := _row(batch, tokens, experts, kept, where, notes):
                yield number, {**row, "step": step}
            start += length
            number += 1


def _lengths(batch: TrainerMicroBatch, where: str) -> list[int]:
    """Return the lengths of the packed sequences; refuse columns of inconsistent lengths."""
    tokens = len(batch.input_ids)
    columns = ("loss_mask", "advantages", "inference_logprobs", "temperatures", "ce_weights")
    for name in columns:
        values = getattr(batch, name)
        if values is not None and len(values) != tokens:
            raise _wrong(where, f"`{name}` has {len(values)} values for {tokens} tokens")
    lengths = batch.sequence_lengths
    if any(length < 0 for length in lengths) or sum(lengths) > tokens:
        raise _wrong(where, f"sequence_lengths {lengths} do not fit {tokens} tokens")
    return lengths


def _wrong(where: str, what: str) -> RcdiagError:
    return RcdiagError(
        f"{where}: {what}", hint="the file is damaged, or of a version that rcdiag does not know"
    )


def _experts(batch: TrainerMicroBatch, where: str) -> NDArray[np.integer] | None:
    """Return the experts of all tokens, [tokens, layers, experts]; None if not recorded."""
    packed = batch.routed_experts
    if packed is None:
        return None
    try:
        kind = np.dtype(packed.dtype)
        if kind.kind not in "iu" or len(packed.shape) != 3:
            raise ValueError(f"{packed.dtype} of shape {packed.shape}")
        values = np.frombuffer(packed.data, kind).reshape(packed.shape)
    except (TypeError, ValueError) as error:
        raise _wrong(where, f"routed_experts are not an array of experts ({error})") from error
    if len(values) < sum(batch.sequence_lengths):
        raise _wrong(where, f"routed_experts have {len(values)} values")
    return values


def _kept_ids(batch: TrainerMicroBatch, where: str) -> Ragged | None:
    """Return the kept ids of all tokens; None if not recorded."""
    packed = batch.sampling_mask
    if packed is None:
        return None
    try:
        ids, counts = (np.frombuffer(part, "<i4") for part in (packed.ids, packed.counts))
    except ValueError as error:
        raise _wrong(where, f"sampling_mask has no 32-bit numbers ({error})") from error
    if len(counts) < sum(batch.sequence_lengths) or counts.min(initial=0) < 0:
        raise _wrong(where, f"sampling_mask has {len(counts)} counts, or counts below 0")
    if counts.sum() != len(ids):
        raise _wrong(where, f"sampling_mask has {len(ids)} ids, but counts sum to {counts.sum()}")
    return Ragged.of(ids, counts)


def _row(
    batch: TrainerMicroBatch,
    tokens: slice,
    experts: NDArray[np.integer] | None,
    kept: Ragged | None,
    where: str,
    notes: Notes,
) -> dict[str, Any] | None:
    """Return one sequence as a row; the response begins at the first trained token."""
    mask = bits(batch.loss_mask[tokens], where, "loss_mask")
    if not mask.any():
        notes.change(UNTRAINED, 1)
        return None
    first = tokens.start + int(np.argmax(mask))
    response = slice(first, tokens.stop)
    sampled = mask[first - tokens.start :]
    if batch.ce_weights is not None:
        copied = (np.array(batch.ce_weights[response]) != 0) & (sampled == 1)
        if copied.any():
            notes.change(NOT_SAMPLED, 1)
        sampled = np.where(copied, 0, sampled).astype(np.uint8)
    temperatures = {
        value for value, one in zip(batch.temperatures[response], sampled, strict=True) if one
    }
    if len(temperatures) > 1:
        notes.change(TEMPERATURES, 1)
    return {
        "prompt_ids": np.array(batch.input_ids[tokens.start : first], IDS),
        "response_ids": np.array(batch.input_ids[response], IDS),
        "response_mask": sampled,
        "rollout_log_probs": floats(batch.inference_logprobs[response]),
        "advantages": floats(batch.advantages[response]),
        "temperature": temperatures.pop() if len(temperatures) == 1 else None,
        "rollout_routed_experts": None if experts is None else experts[response],
        "rollout_kept_ids": kept and kept.slice(response.start, response.stop),
        "env_name": batch.env_names[first] if first < len(batch.env_names) else None,
    }
