"""What pickles hold most is recognised as a whole: torch's call for a tensor, a list of numbers.

A pattern stands for a run of instructions that torch and Python write in one order; whatever is
written in another order is done by the machine one instruction at a time, with the same outcome.
"""

from __future__ import annotations

import pickle
import re
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Whole numbers that are 0 or more, and places in the memo.
_COUNT = rb"(K.|M..|J...[\0-\x7f])"
_PLACE = rb"(h.|j....)"
# torch._utils._rebuild_tensor_v2 and its arguments, of a tensor of one dimension without gaps, as
# torch.save writes them in protocol 2 when it has written a few tensors.
_TENSOR = re.compile(
    rb"\(\(h(.)" + _PLACE
    # the key of its storage, new or one of a storage that tensors share
    + rb"(?:X(.)\0\0\0([0-9]++)r(....)|" + _PLACE + rb")"
    rb"h(.)" + _COUNT + rb"tr(....)Q" + _COUNT * 2
    + rb"(\x85r....K\x01\x85r....([\x88\x89])h.\)Rr....tr....Rr....)",
    re.DOTALL,
)  # fmt: skip
_TAIL = struct.Struct("<2xI4xI2xB3xI2xI2xI")


class TensorCall(NamedTuple):
    """The call for a tensor of one dimension: its arguments, and where the memo has each part."""

    end: int
    word: int  # where the memo has "storage",
    kind: int  # the storage's class,
    location: int  # and its device
    key: str | None  # None for one that the memo has
    key_at: int
    elements: int
    reference_at: int
    offset: int
    size: int
    size_at: int
    stride_at: int
    grad: bool
    hooks: int
    hooks_at: int
    arguments_at: int
    tensor_at: int


def tensor_call(data: memoryview, at: int) -> TensorCall | None:
    """Return the call for a tensor whose arguments begin here; None for anything else."""
    match = _TENSOR.match(data, at)
    if match is None:
        return None
    word, kind, length, key, new, known, location, count, reference, offset, size, _, grad = (
        match.groups()
    )
    if known is None and len(key) != length[0]:
        return None
    size_at, stride_at, hooks, hooks_at, arguments_at, tensor_at = _TAIL.unpack_from(
        data, match.start(12)
    )
    return TensorCall(
        match.end(),
        word[0],
        _number(kind),
        location[0],
        None if key is None else key.decode(),
        _number(known) if key is None else int.from_bytes(new, "little"),
        _number(count),
        int.from_bytes(reference, "little"),
        _number(offset),
        _number(size),
        size_at,
        stride_at,
        grad == b"\x88",
        hooks,
        hooks_at,
        arguments_at,
        tensor_at,
    )


def _number(argument: bytes) -> int:
    """Return the number behind the byte of its instruction."""
    return int.from_bytes(argument[1:], "little")


# A list from here on is worth an array.
SHORTEST_ARRAY = 64
_PUT = re.compile(rb"(?:q(.)|r(....)|(\x94))?\((?=[GKMJ])", re.DOTALL)
_INTEGERS = re.compile(rb"(?:(?:M..)++|(?:K.)++|(?:J....)++)++", re.DOTALL)
_FLOAT, _FLOATS = ord("G"), np.dtype([("code", "u1"), ("value", ">f8")])
_SHORT, _SMALLS = ord("K"), np.dtype([("code", "u1"), ("value", "u1")])  # from 0 to 255
BATCH = 1_000  # items that Python's pickle appends at once
MARK, APPENDS = ord("("), ord("e")


class LongList(NamedTuple):
    """A list of numbers of one kind: where it ends, and where the memo is to have it."""

    values: NDArray[Any]
    end: int
    key: int | None  # -1: the next place in the memo; None: nowhere


def long_list(data: memoryview, at: int) -> LongList | None:
    """Return the list of numbers whose items begin here; None for a short or another list.

    Whole numbers and floats are not mixed, and None, True and False do not stand among them.
    """
    put = _PUT.match(data, at)
    if put is None:
        return None
    at = put.end() - 1
    parts: list[NDArray[Any]] = []
    while data[at] == MARK:
        part, at = _numbers(data, at + 1)
        if part is None or data[at] != APPENDS:
            return None
        parts.append(part)
        at += 1
    values = np.concatenate(parts)
    if len(values) < SHORTEST_ARRAY or len({part.dtype.kind for part in parts}) > 1:
        return None
    key = None if put[0] == b"(" else -1 if put[3] else int.from_bytes(put[1] or put[2], "little")
    return LongList(values, at, key)


def _numbers(data: memoryview, at: int) -> tuple[NDArray[Any] | None, int]:
    """Return the numbers of one kind that follow each other here, and where they end."""
    if data[at] == _FLOAT:
        floats, end = _of_one_code(data, at, _FLOATS)
        return floats.astype(np.float64), end
    if data[at] == _SHORT:
        small, end = _of_one_code(data, at, _SMALLS)
        if data[end] == APPENDS:
            return small.astype(np.int64), end
    match = _INTEGERS.match(data, at)
    if match is None:
        return None, at
    numbers = pickle.loads(b"\x80\x02](" + match[0] + b"e.")
    return np.frombuffer(struct.pack(f"{len(numbers)}q", *numbers), np.int64), match.end()


def _of_one_code(data: memoryview, at: int, layout: np.dtype[Any]) -> tuple[NDArray[Any], int]:
    """Return the arguments of one instruction that is repeated here, and where they end."""
    code, parts = data[at], []
    while len(items := data[at : at + BATCH * layout.itemsize]) >= layout.itemsize:
        whole = len(items) // layout.itemsize
        part = np.frombuffer(items, layout, whole)
        other = np.flatnonzero(part["code"] != code)
        if len(other):
            whole = int(other[0])
        parts.append(part["value"][:whole])
        at += whole * layout.itemsize
        if whole < BATCH:
            break
    return np.concatenate(parts) if parts else np.empty(0, layout["value"]), at
