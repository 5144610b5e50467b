"""Check the values of one sample in a torch file and convert them to columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import BITS, FLOATS, IDS
from rcdiag.table.readers.reader import DAMAGED
from rcdiag.table.readers.safe import StoredTensor
from rcdiag.table.trajectories import Ragged

LARGEST_ID = 2**31 - 1


class Fields(Struct, frozen=True):
    """The named values of one sample, and its place in its file, for messages."""

    values: Mapping[str, Any]
    where: str

    def wrong(self, name: str, what: str) -> RcdiagError:
        return RcdiagError(
            f"{self.where}: `{name}` {what}",
            hint=DAMAGED,
        )

    def integer(self, name: str) -> int | None:
        """Return an integer; None if it is missing."""
        value = _plain(self.values.get(name))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, f"is not a whole number but {type(value).__name__}")
        if not -(2**63) <= value < 2**63:
            raise self.wrong(name, f"is {value}, which exceeds 64 bits")
        return value

    def count(self, name: str) -> int:
        """Return an integer that every sample must have."""
        value = self.integer(name)
        if value is None:
            raise self.wrong(name, "is missing")
        return value

    def number(self, name: str) -> float | None:
        """Return a number; None if it is missing."""
        value = _plain(self.values.get(name))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, f"is not a number but {type(value).__name__}")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return a boolean; False if it is missing."""
        value = _plain(self.values.get(name))
        if value is not None and not isinstance(value, bool | int):
            raise self.wrong(name, f"is neither true nor false but {type(value).__name__}")
        return bool(value)

    def ids(self, name: str) -> NDArray[np.int32] | None:
        """Return token ids, [tokens]; None if they are missing."""
        array = self._array(name, "iu")
        if array is None:
            return None
        if len(array) and (array.min() < 0 or array.max() > LARGEST_ID):
            bad = array.min() if array.min() < 0 else array.max()
            raise self.wrong(name, f"holds {bad}, which is not a token id")
        return array.astype(IDS)

    def floats(
        self, name: str, length: int, whose: str = "the response has"
    ) -> NDArray[np.float32] | None:
        """Return one number per token, [length]; None if they are missing."""
        array = self._array(name, "fiu")
        if array is None:
            return None
        self._check_length(name, array, length, whose)
        with np.errstate(over="ignore"):
            return array.astype(FLOATS)

    def bits(self, name: str, length: int) -> NDArray[np.uint8] | None:
        """Return a mask, [length]; None if it is missing."""
        array = self._array(name, "biuf")
        if array is None:
            return None
        self._check_length(name, array, length, "the response has")
        if not ((array == 0) | (array == 1)).all():
            raise self.wrong(name, "holds values other than 0 and 1")
        return array.astype(BITS)

    def experts(self, name: str, prompt: int, length: int) -> NDArray[np.uint16] | None:
        """Return the experts of the response's tokens, [length, layers, experts].

        They are recorded for prompt and response; the last token may lack them and then gets 0.
        """
        array = self._stored(name, "array of experts")
        if array is None:
            return None
        tokens = prompt + length
        if array.ndim != 3 or array.dtype.kind not in "iu":
            raise self.wrong(name, f"is not an array of experts ({array.ndim} dimensions)")
        if len(array) not in (tokens - 1, tokens):
            raise self.wrong(name, f"has {len(array)} values; the sample has {tokens} tokens")
        if array.size and (array.min() < 0 or array.max() > np.iinfo(np.uint16).max):
            raise self.wrong(name, "holds values that are not expert numbers")
        made = np.zeros((length, *array.shape[1:]), np.uint16)
        of_response = array[prompt:]
        made[: len(of_response)] = of_response
        return made

    def kept_ids(self, ids: str, offsets: str, length: int) -> Ragged | None:
        """Return the kept ids of response tokens, [length]; None if they are missing.

        The kept ids of token i are `ids[offsets[i]:offsets[i + 1]]`.
        """
        values, ends = self.ids(ids), self._array(offsets, "iu")
        if values is None and ends is None:
            return None
        if values is None or ends is None:
            raise self.wrong(offsets if ends is None else ids, "is missing")
        if len(ends) != length + 1:
            raise self.wrong(offsets, f"has {len(ends)} values for {length} tokens and the end")
        if ends[0] != 0 or ends[-1] != len(values) or (np.diff(ends) < 0).any():
            raise self.wrong(offsets, f"does not go from 0 to the {len(values)} ids of `{ids}`")
        return Ragged(values, ends.astype(np.int64))

    def _array(self, name: str, kinds: str) -> NDArray[Any] | None:
        """Return a 1-dimensional list or tensor whose numpy dtype has one of the `kinds`."""
        array = self._stored(name, "list of numbers")
        if array is None:
            return None
        if array.ndim != 1 or (len(array) and array.dtype.kind not in kinds):
            raise self.wrong(
                name, f"is not a list of numbers ({array.ndim} dimensions, {array.dtype})"
            )
        return array

    def _stored(self, name: str, wanted: str) -> NDArray[Any] | None:
        """Return a list or tensor as an array; None if it is missing."""
        value = self.values.get(name)
        if value is None:
            return None
        try:
            return value.numpy() if isinstance(value, StoredTensor) else np.asarray(value)
        except (ValueError, OverflowError) as error:
            raise self.wrong(name, f"is not a {wanted}") from error

    def _check_length(self, name: str, array: NDArray[Any], length: int, whose: str) -> None:
        if len(array) != length:
            raise self.wrong(name, f"has {len(array)} values; {whose} {length} tokens")


def _plain(value: Any) -> Any:
    """Return the number in an array or tensor of one element; any other value unchanged."""
    if isinstance(value, StoredTensor):
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic) and value.size == 1:
        return value.item()
    return value


def version_number(version: Any) -> int | None:
    """Return a version of the weights as a number; None for a name, or beyond 64 bits."""
    text = str(version).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def samples_of(samples: Sequence[Any], path: Path, option: str) -> Iterator[Fields]:
    """Yield the samples (dictionaries) of a file that slime writes with `option`."""
    for position, values in enumerate(samples):
        where = f"{path}, sample {position}"
        if not isinstance(values, dict):
            raise RcdiagError(
                f"{where}: not a dictionary but {type(values).__name__}",
                hint=f"is this a file of {option}?",
            )
        yield Fields(values, where)


def prompt_and_response(fields: Fields, length: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Split a sample's `tokens` into prompt and response, whose length the field `length` has."""
    ids = fields.ids("tokens")
    size = fields.count(length)
    if ids is None:
        raise fields.wrong("tokens", "is missing")
    if not 0 <= size <= len(ids):
        raise fields.wrong(length, f"is {size}, but the sample has {len(ids)} tokens")
    start = len(ids) - size
    return ids[:start], ids[start:]
