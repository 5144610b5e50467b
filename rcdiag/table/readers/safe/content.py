"""The content of a file, or of a file inside a file: a view of bytes, with a name for errors."""

from __future__ import annotations

import io
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.safe.stand_ins import Buffer


class Content(Struct, frozen=True):
    """Bytes that are read when they are used, and their name in errors."""

    name: str
    view: memoryview

    def inner(self, view: memoryview | bytes | bytearray | Buffer, what: str) -> Content:
        """Return the content of a file that is inside this one."""
        content = memoryview(view.content if isinstance(view, Buffer) else view)
        return Content(f"{self.name} ({what})", content.cast("B"))

    def stream(self) -> io.BufferedReader:
        """Return a binary stream of these bytes, which copies only what is read."""
        import pyarrow as pa

        return io.BufferedReader(pa.BufferReader(self.view), 1 << 18)


def open_content(source: Path | Content) -> Content:
    """Map a file into memory; the system reads pages when used, and drops them when it is short."""
    if isinstance(source, Content):
        return source
    try:
        with source.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise RcdiagError(
            f"{source}: cannot be read ({error})", hint="check the file and its permissions"
        ) from error
    return Content(str(source), memoryview(mapped))


def damaged(content: Content, how: str) -> RcdiagError:
    """Return the error for a damaged file."""
    return RcdiagError(
        f"{content.name}: damaged or truncated file: {how}",
        hint="its writer or a copy did not finish; copy or write it again",
    )


@contextmanager
def laid_out(name: str, trainer: str) -> Iterator[None]:
    """Turn an unexpected error while reading a file's content into one that names the file."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RcdiagError(
            f"{name}: not laid out as {trainer} writes it ({type(error).__name__}: {error})",
            hint="the file is damaged or of a version of the trainer that rcdiag does not know",
        ) from error
