"""A quick look into a file, for format detection: magic bytes, JSON keys, names in a pickle."""

from __future__ import annotations

import json
import zipfile
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.footer import MAGIC
from rcdiag.table.schema import METADATA_KEY

if TYPE_CHECKING:
    import pyarrow as pa

# Bytes at the beginning of a file that are inspected; a JSON record may be longer.
HEAD = 1 << 16
LONGEST_RECORD = 1 << 28
TOO_LONG = f"longer than {LONGEST_RECORD >> 20} MB"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Peek(Struct, frozen=True, dict=True):
    """A look into a file that reads little of it and executes nothing."""

    path: Any  # a Path, or a RemoteFile if the file begins like parquet

    @property
    def name(self) -> str:
        return str(self.path.name)

    @cached_property
    def head(self) -> bytes:
        """Return the first bytes of the file, [at most HEAD]."""
        with self.path.open("rb") as stream:
            return bytes(stream.read(HEAD))

    @cached_property
    def columns(self) -> frozenset[str]:
        """Return the column names of a parquet file; empty for other files."""
        return frozenset() if self._schema is None else frozenset(self._schema.names)

    @property
    def is_own_table(self) -> bool:
        """Tell whether rcdiag wrote the file, according to its metadata."""
        metadata = None if self._schema is None else self._schema.metadata
        return METADATA_KEY in (metadata or {})

    @cached_property
    def _schema(self) -> pa.Schema | None:
        """Return the schema of a parquet file; None for other files."""
        if not self.head.startswith(MAGIC):
            return None
        from rcdiag.table.readers.parquet import open_parquet  # whose reader is detected by a peek

        try:
            return open_parquet(self.path).schema_arrow
        except RcdiagError:
            return None

    @cached_property
    def record(self) -> dict[str, Any]:
        """Return the first JSON object of JSON lines, or of a file that is one JSON value.

        If the first line or the whole file is a list of objects, this is the first of them.
        """
        record, _ = self._json
        record = record[0] if isinstance(record, list) and record else record
        return record if isinstance(record, dict) else {}

    @property
    def json_problem(self) -> str:
        """Return why a file that begins like JSON is not valid; empty if it is, or is not JSON."""
        return self._json[1]

    @cached_property
    def _json(self) -> tuple[Any, str]:
        """Return the JSON value of the first line or of the whole file, or why neither is valid."""
        start = self.head.removeprefix(BYTE_ORDER_MARK).lstrip()
        # A dict with quotes of Python is one that a console shows.
        if not start.startswith((b"{", b"[")) or start.startswith(b"{'"):
            return None, ""
        with self.path.open("rb") as stream:
            lines = iter(lambda: stream.readline(LONGEST_RECORD), b"")
            line = next((line for line in lines if line.strip()), b"")
        if beyond_record(line):
            return None, TOO_LONG
        whole = b""
        if self.path.stat().st_size <= LONGEST_RECORD:
            with self.path.open("rb") as stream:  # a compressed file may hold more than its size
                whole = stream.read(LONGEST_RECORD + 1)
        problem = ""
        for text in (line, whole if len(whole) <= LONGEST_RECORD else b""):
            try:
                return json.loads(text.removeprefix(BYTE_ORDER_MARK)), ""
            except RecursionError:
                problem = problem or "it is nested too deeply"
            except ValueError as error:
                problem = problem or str(error)
        return None, problem

    @cached_property
    def keys(self) -> frozenset[str]:
        """Return the keys of the first JSON object; empty if there is none."""
        return frozenset(self.record)

    @cached_property
    def pickle_calls(self) -> frozenset[str]:
        """Return the globals named at the start of a pickle, or of the pickle in a torch file.

        A global is written as `module.name`. The pickle is scanned, not loaded.
        """
        return frozenset(text for kind, text in self._scanned if kind == "name")

    @cached_property
    def pickle_words(self) -> frozenset[str]:
        """Return the short texts, such as keys, of a pickle or of a torch file's pickle."""
        return frozenset(self.pickle_texts)

    @cached_property
    def pickle_texts(self) -> tuple[str, ...]:
        """Return the texts of `pickle_words` in their order in the pickle."""
        return tuple(text for kind, text in self._scanned if kind == "text")

    def pickle_number(self, key: str) -> int | None:
        """Return the integer that follows a key near the start of a pickle."""
        from rcdiag.table.readers.safe.instructions import number_behind

        return number_behind(self._pickle, key)

    @property
    def is_torch_file(self) -> bool:
        """Tell whether the file is a zip archive as torch.save writes it."""
        return self.head.startswith(b"PK\x03\x04") and bool(self._pickle)

    @cached_property
    def _pickle(self) -> bytes:
        if self.head.startswith(b"\x80"):
            return self.head
        if not self.head.startswith(b"PK\x03\x04"):
            return b""
        try:
            if not zipfile.is_zipfile(self.path):
                return b""  # truncated before the archive's directory
        except (OSError, zipfile.BadZipFile):  # its last bytes look like a multi-disk archive
            return b""
        from rcdiag.table.readers.safe.torch_file import LOCAL_HEADER

        # torch.save writes its pickle first; this avoids reading the directory of all tensors.
        name, extra = (int.from_bytes(self.head[at : at + 2], "little") for at in (26, 28))
        end = LOCAL_HEADER + name
        if not self.head[LOCAL_HEADER:end].endswith(b"/data.pkl"):
            return b""
        return self.head[end + extra :]

    @cached_property
    def _scanned(self) -> tuple[tuple[str, str], ...]:
        from rcdiag.table.readers.safe.instructions import scanned

        return tuple(scanned(self._pickle))


def beyond_record(line: bytes) -> bool:
    """Tell whether a line, read up to LONGEST_RECORD bytes, continues beyond them."""
    return len(line) == LONGEST_RECORD and not line.endswith(b"\n")


def line_too_long(name: object, number: int) -> RcdiagError:
    """Return the error for a line that is longer than LONGEST_RECORD."""
    return RcdiagError(
        f"{name}, line {number}: {TOO_LONG}",
        hint="one line is one record; is this a file of JSON lines?",
    )
