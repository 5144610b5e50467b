"""JSON lines that are packed by gzip or zstd are read as they are unpacked, a block at a time."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.peek import BYTE_ORDER_MARK
from rcdiag.table.remote import AnyFile

# Bytes that are unpacked at a time.
BLOCK = 1 << 20


# End of a file's name -> its first bytes, and Arrow's name for how it is packed.
PACKINGS = {".gz": (b"\x1f\x8b", "gzip"), ".zst": (b"\x28\xb5\x2f\xfd", "zstd")}


class PackedFile(type(Path())):  # type: ignore[misc]
    """The path of a packed file that stands for the file in it.

    Its name lacks the end that says how it is packed, and what is read of it is unpacked. Its text
    is the path that the user gave.
    """

    @property
    def name(self) -> str:
        """Return the name of the file inside."""
        return unpacked_name(super().name)

    def open(self, mode: str = "r", buffering: int = -1, *text: Any, **of_text: Any) -> Any:
        """Open the file inside for reading, its bytes or its text."""
        import pyarrow as pa

        _, packing = PACKINGS[_end(str(self))]
        unpacked = pa.input_stream(str(self), compression=packing)
        stream = io.BufferedReader(_Unpacked(str(self), unpacked), BLOCK)
        return stream if "b" in mode else io.TextIOWrapper(stream, *text, **of_text)

    def read_bytes(self) -> bytes:
        """Return the bytes of the file inside."""
        with self.open("rb") as stream:
            return bytes(stream.read())


class _Unpacked(io.RawIOBase):
    """The bytes of a packed file; damage is an error that names it."""

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._name = name
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._stream.read(len(buffer))
        except (OSError, ValueError) as error:
            raise RcdiagError(
                f"{self._name}: a packed file that breaks off or is damaged ({error})",
                hint="its writer did not finish or the copy broke off; copy or write it again",
            ) from error
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._stream.close()
        super().close()


def unpacked_name(name: str) -> str:
    """Return a file's name without the end that says how it is packed."""
    return name.removesuffix(_end(name))


def _end(name: str) -> str:
    return next((end for end in PACKINGS if name.endswith(end)), "")


def seen_through(path: AnyFile) -> AnyFile:
    """Return a packed file of JSON as the file inside, any other as it is.

    Files of tensors are read where they lie on disk, so that they have to be unpacked first.
    """
    end = _end(str(path))
    if not end or not isinstance(path, Path):
        return path
    magic, _ = PACKINGS[end]
    try:
        with path.open("rb") as stream:
            if stream.read(len(magic)) != magic:
                return path
    except OSError:
        return path
    packed = PackedFile(path)
    with packed.open("rb") as inside:
        head = inside.read(1 << 10)
    is_json = head.removeprefix(BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"[")
    return packed if is_json else path
