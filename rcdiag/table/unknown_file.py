"""The error for a file that no reader recognises: what it is, and how to make a table of it."""

from __future__ import annotations

import codecs
import contextlib
import zipfile

from rcdiag.errors import RcdiagError, setting
from rcdiag.table.readers import READERS
from rcdiag.table.readers.peek import TOO_LONG, Peek, line_too_long
from rcdiag.table.remote import AnyFile

# Magic bytes of compressed files, and the command that decompresses them.
_PACKED = {
    b"\x1f\x8b": "gunzip -k",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"\xfd7zXZ\x00": "unxz -k",
    b"BZh": "bunzip2 -k",
    b"\x04\x22\x4d\x18": "unlz4 -k",
}
_ZIP = b"PK\x03\x04"
# Members of a log of Inspect, which is also a zip archive.
_OF_INSPECT = frozenset({"header.json", "_journal/start.json"})
_AS_COLUMNS = (
    "load it where it was written, if you trust it, and give its columns: "
    "rcdiag.open_table({'response_ids': ..., 'rollout_log_probs': ...}), or write them as parquet"
)
# Magic bytes of files that are not dumps: what they are, and what to do.
_OF_OTHERS = {
    _ZIP: ("a zip archive, such as numpy's .npz", _AS_COLUMNS),
    b"\x93NUMPY": ("a numpy array", _AS_COLUMNS),
    b"\x80\x02\x8a\x0al\xfc\x9cF\xf9": (
        "a torch file in the format of torch before 1.6",
        "load it where it was written, if you trust it, and save it again with torch.save",
    ),
    b"\x80": ("a pickle, which was not loaded", _AS_COLUMNS),
    b"SQLite format 3\0": (
        "an SQLite database that is damaged, or lacks the table `wire_rows` of tinker's captures",
        "copy it again, together with the files beside it that end with -wal and -shm",
    ),
    b"ARROW1": (
        "an Arrow or Feather file",
        "give the table: rcdiag.open_table(pyarrow.feather.read_table(FILE)), or write it as "
        "parquet",
    ),
}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class UnknownFormatError(RcdiagError):
    """No reader recognises the file."""


def is_packed_or_cut(path: AnyFile) -> bool:
    """Tell whether a file may be a compressed or truncated part of a dump."""
    peek = Peek(path)
    try:
        head = peek.head
    except OSError:
        return False
    if head.startswith(_ZIP):
        return not _is_whole_zip(path)
    return bool(_unpacker(head)) or _is_blank(head) or bool(peek.json_problem)


def _is_blank(head: bytes) -> bool:
    """Tell whether a file begins with zero bytes only, as if its content never reached the disk."""
    return not head.strip(b"\0")


def _unpacker(head: bytes) -> str:
    """Return the command that decompresses a file; empty if it is not compressed."""
    return next((command for magic, command in _PACKED.items() if head.startswith(magic)), "")


def unknown_file(path: AnyFile, url: str) -> RcdiagError:
    """Return the error for a file that no reader recognises, with how to make it readable."""
    name, head = url or str(path), Peek(path).head
    if command := _unpacker(head):
        return RcdiagError(
            f"{name}: a compressed file", hint=f"decompress it: {command} {path.name}"
        )
    if _is_blank(head):
        return RcdiagError(
            f"{name}: only zero bytes where a dump would begin",
            hint="its writer or a copy did not finish; write or copy it again, or remove it",
        )
    if head.startswith(_UTF_16):
        return RcdiagError(
            f"{name}: text in UTF-16",
            hint=f"write it as UTF-8: iconv -f UTF-16 -t UTF-8 {path.name} > utf8-{path.name}",
        )
    if head.startswith(_ZIP) and not _is_whole_zip(path):
        return RcdiagError(
            f"{name}: a torch file or another zip archive that is truncated or damaged",
            hint="its writer was stopped, or is still running; copy it again, or leave it out",
        )
    problem = Peek(path).json_problem
    if problem == TOO_LONG:
        return line_too_long(name, 1)
    if problem:
        return RcdiagError(
            f"{name}, line 1: it begins like JSON but is not valid ({problem})",
            hint="its writer was stopped, or is still running: repair the file, or remove it",
        )
    if head.startswith(_ZIP) and _is_of_inspect(path):
        return RcdiagError(
            f"{name}: a log of Inspect, which holds the text of tokens but not their ids",
            hint="keep the responses of the server itself, with token ids (see rcdiag explain "
            "vllm), or the rows: rcdiag.Recorder",
        )
    kinds = [kind for magic, kind in _OF_OTHERS.items() if head.startswith(magic)]
    if kinds and not Peek(path).is_torch_file:
        what, way_out = kinds[0]
        return RcdiagError(f"{name}: {what}; not a dump format that rcdiag knows", hint=way_out)
    return _unknown(path, name)


def _is_whole_zip(path: AnyFile) -> bool:
    try:
        with path.open("rb") as stream:
            return zipfile.is_zipfile(stream)
    except (OSError, zipfile.BadZipFile):  # e.g. its last bytes look like a multi-disk archive
        return False


def _is_of_inspect(path: AnyFile) -> bool:
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            return not _OF_INSPECT.isdisjoint(archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


def _unknown(path: AnyFile, name: str) -> RcdiagError:
    keys, head = Peek(path).record, Peek(path).head
    found = f" (JSON with the keys {', '.join(keys)})" if keys else ""
    if not keys and b"\0" not in head:
        with contextlib.suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder("utf-8")().decode(head)  # its last character may be cut
            found = " (text)"
    known = f"{setting('format', 'NAME', '--from')} sets one of {', '.join(READERS)}"
    if keys and not any(isinstance(value, list) for value in keys.values()):
        known += "; a dump has lists of token ids and log-probs, text alone is not enough"
    elif keys:
        from rcdiag.table.readers.json_lines import JSON_LINES

        known += (
            f"; {setting('format', JSON_LINES.name, '--from')} reads JSON lines under names of "
            "your own"
        )
    elif found:
        known = (
            "write a dump as parquet or JSON lines, a response in each row with lists of token ids "
            "and log-probs; a log of a trainer's metrics is for rcdiag diagnose FILE, or beside a "
            f"dump: rcdiag score DUMP --logged FILE; {known}"
        )
    else:
        known += "; or write the dump as parquet or JSON lines, under any column names"
    return UnknownFormatError(f"{name}: not a format that rcdiag knows{found}", hint=known)
