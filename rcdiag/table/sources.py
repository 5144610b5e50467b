"""A source that a user names (file, folder, glob, URL) becomes the files of one format.

JSON lines that are packed by gzip or zstd are read as they are unpacked, a block at a time.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from rcdiag.errors import RcdiagError, setting, without_secrets
from rcdiag.table.readers import READERS
from rcdiag.table.readers.footer import MAGIC
from rcdiag.table.readers.parquet import PARQUET
from rcdiag.table.readers.peek import BYTE_ORDER_MARK, Peek
from rcdiag.table.readers.reader import Reader
from rcdiag.table.remote import (
    AnyFile,
    check_fetching,
    copy_files,
    files_in_place,
    is_url,
    local_path,
)
from rcdiag.table.scratch import Scratch
from rcdiag.table.unknown_file import is_packed_or_cut, unknown_file

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

        _, packing = PACKINGS[_packing_suffix(str(self))]
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
    return name.removesuffix(_packing_suffix(name))


def _packing_suffix(name: str) -> str:
    return next((end for end in PACKINGS if name.endswith(end)), "")


def seen_through(path: AnyFile) -> AnyFile:
    """Return a packed file of JSON as the file inside, any other as it is.

    Files of tensors are read where they lie on disk, so that they have to be unpacked first.
    """
    end = _packing_suffix(str(path))
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


class SourceFile(Struct, frozen=True):
    """A file that a user gave: where its bytes are, and its URL where they are a copy."""

    path: AnyFile
    url: str = ""

    @property
    def name(self) -> str:
        """Return the file's name as the user knows it."""
        return without_secrets(self.url) or str(self.path)


class SourceFiles(Struct, frozen=True):
    """The files of one source, in the order of their rows, and the format that all of them have."""

    source: str
    reader: Reader
    files: tuple[SourceFile, ...]
    scratch: Scratch | None = None  # where copies of remote files lie
    left: tuple[str, ...] = ()  # names of a folder's files that are named as the format's are only


def find_files(source: str, format: str | None = None) -> SourceFiles:
    """Find the files of a source, and the reader that knows them.

    A table that rcdiag wrote says so; every other file is asked of the readers in turn. Of a folder
    the files that none knows are left out.
    `format` names the reader, and then a folder's files are those with the reader's patterns.
    """
    chosen = None if format is None else READERS.find(format, "format")
    if not is_url(source):
        named, folder = _named(local_path(source))
        return _known(source, dict.fromkeys(named, ""), folder, chosen)
    readers = _asked(chosen)
    in_place = files_in_place(source, lambda name: _fits(name, readers))
    if in_place is not None and all(Peek(file).head.startswith(MAGIC) for file in in_place[0]):
        remote, folder = in_place
        found = _known(source, {file: str(file) for file in remote}, folder, chosen)
        if found.reader.read is None:  # files of another format are copied here
            return found
    scratch = Scratch()
    more = {name for reader in readers for name in reader.beside}
    copies, folder = copy_files(
        source,
        lambda name: _fits(unpacked_name(name), readers) or name.rpartition("/")[2] in more,
        scratch.path,
        lambda name: [other for each in readers if _fits(name, [each]) for other in each.beside],
    )
    return _known(source, dict(copies), folder, chosen, scratch)


def _known(
    source: str,
    found: Mapping[Any, str],
    folder: bool,
    chosen: Reader | None,
    scratch: Scratch | None = None,
) -> SourceFiles:
    """Return the files of one format among those that were `found`, each with its URL.

    `folder` says that they are all those below a folder, of which some may be none of the dump.
    """
    urls: dict[AnyFile, str] = {seen_through(path): url for path, url in found.items()}
    pick = _of_folder if folder else _of_names
    reader, paths = pick(source, list(urls), chosen, urls)
    files = tuple(SourceFile(path, urls[path]) for path in sorted(paths, key=reader.order))
    known = set(paths)
    left = [path.name for path in urls if path not in known and _fits(path.name, [reader])]
    return SourceFiles(source, reader, files, scratch, tuple(left) if folder else ())


def check_remote(sources: Sequence[str], format: str | None = None) -> None:
    """End a dry run that has come to a URL: NotFetchedError says what a run would fetch."""
    chosen = None if format is None else READERS.find(format, "format")
    check_fetching(sources, lambda name: _fits(name, _asked(chosen)))


def _asked(chosen: Reader | None) -> list[Reader]:
    """Return the readers as a file is asked of them: formats under any names come last."""
    if chosen is not None:
        return [chosen]
    return sorted(READERS.values(), key=lambda reader: reader.any_names)


def _named(source: str) -> tuple[list[Path], bool]:
    """Return the files of a path or a glob, and whether they are all files below one folder."""
    if not source.strip():  # as a path it would be the folder that the command runs in
        raise RcdiagError("a source without a name", hint="give a file, a folder or a glob")
    path = Path(source)
    try:
        os.stat(source)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # pathlib would raise it as it is
            raise RcdiagError(
                f"{source}: no such file ({error.strerror})",
                hint="give a file, a folder or a glob",
            ) from error
    if path.is_dir():
        return list(_below(path)), True
    if path.is_symlink() and not path.exists():
        raise RcdiagError(
            f"{source}: a link to {os.readlink(path)}, which is not there",
            hint="give the file itself",
        )
    files = [path] if path.exists() else list(map(Path, glob.glob(source, recursive=True)))
    if not files:
        raise RcdiagError(f"{source}: no such file", hint="give a file, a folder or a glob")
    for file in files:
        if file.is_dir():
            raise RcdiagError(
                f"{file}: a directory, not a file", hint="give it alone, not in a glob"
            )
        if not file.is_file():  # opening a pipe would wait for its writer
            raise RcdiagError(
                f"{file}: a pipe or a device, not a file",
                hint="a dump is read more than once: write it to a file first",
            )
    return files, False


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, none hidden, nor parts of an interrupted scoring run."""
    visited: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in visited:  # a link to a folder that holds it
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not name.endswith(".parts")
        )
        for name in sorted(names):
            path = Path(place, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _of_names(
    source: str,
    paths: Sequence[AnyFile],
    chosen: Reader | None,
    urls: dict[AnyFile, str],
) -> tuple[Reader, list[AnyFile]]:
    """Return the reader of files that were named, all of which must be known to it."""
    for path in paths:
        _check_file(path, urls[path])
    if chosen is not None:
        return chosen, list(paths)
    by_format: dict[str, tuple[Reader, AnyFile]] = {}
    for path in paths:
        reader = _reader_of(path)
        if reader is None:
            raise unknown_file(path, urls[path])
        by_format.setdefault(reader.name, (reader, path))
    if len(by_format) > 1:
        raise _mixed(source, {name: path for name, (_, path) in by_format.items()})
    ((reader, _),) = by_format.values()
    return reader, list(paths)


def _of_folder(
    source: str,
    paths: Sequence[AnyFile],
    chosen: Reader | None,
    urls: dict[AnyFile, str],
) -> tuple[Reader, list[AnyFile]]:
    """Return the one format that files of a folder have, and those files."""
    readers = _asked(chosen)
    if chosen is not None:
        files = [path for path in paths if _fits(path.name, readers)] or list(paths)
        for path in files:
            _check_file(path, urls[path])
        _check_lost(paths, chosen)
        if not files:
            raise _nothing(source, len(paths))
        return chosen, files
    by_format: dict[str, list[AnyFile]] = {}
    bad: set[AnyFile] = set()  # empty and unreadable files
    for path in paths:
        try:
            _check_file(path, "")
        except RcdiagError:
            bad.add(path)
        else:
            if (known := _reader_of(path)) is not None:
                by_format.setdefault(known.name, []).append(path)
    if len(by_format) > 1:
        raise _mixed(source, {name: files[0] for name, files in by_format.items()})
    own = [reader for reader in readers if reader.name in by_format or not by_format]
    taken = {path for files in by_format.values() for path in files}
    for path in paths:  # a part of the dump that is empty, packed or cut off is not left out
        named_so = _fits(path.name, own)
        if path in bad and named_so:
            _check_file(path, urls[path])
        of_dump = named_so or _fits(Path(path.name).stem, own)
        if of_dump and path not in taken and is_packed_or_cut(path):
            raise unknown_file(path, urls[path])
    for reader in own:
        _check_lost(paths, reader)
    if not by_format:
        raise _nothing(source, len(paths))
    ((name, files),) = by_format.items()
    return READERS[name], files


def _check_lost(paths: Sequence[AnyFile], reader: Reader) -> None:
    """Refuse a folder that lacks a file of which its writer says there that it was written."""
    lost = reader.lost([path for path in paths if isinstance(path, Path)])
    if lost is not None:
        raise RcdiagError(
            f"{lost}: no such file, although {reader.name} finished the folder that it belongs in",
            hint="copy it, or take its folder away to read the other ones alone",
        )


def _reader_of(path: AnyFile) -> Reader | None:
    peek = Peek(path)
    if peek.is_own_table:
        return PARQUET
    return next((reader for reader in _asked(None) if reader.detect(peek)), None)


def _fits(name: str, readers: Sequence[Reader]) -> bool:
    """Tell whether a file is named as files of one of the formats are."""
    base = name.rpartition("/")[2]
    return any(fnmatch.fnmatch(base, pattern) for reader in readers for pattern in reader.patterns)


def _check_file(path: AnyFile, url: str) -> None:
    """Refuse a file that is empty or that cannot be opened."""
    name = url or str(path)
    try:
        with path.open("rb") as stream:
            empty = not stream.read(1)
    except OSError as error:
        raise RcdiagError(
            f"{name}: cannot be read ({error.strerror})", hint="check its permissions"
        ) from error
    if empty:
        raise RcdiagError(f"{name}: the file is empty (0 bytes)", hint="copy it again")


def _mixed(source: str, by_format: dict[str, AnyFile]) -> RcdiagError:
    """Return the error for files of several formats in one source."""
    examples = ", ".join(f"{name} ({path.name})" for name, path in by_format.items())
    first = next(iter(by_format))
    return RcdiagError(
        f"{source}: files of several formats: {examples}",
        hint=f"{setting('format', first, '--from')} reads the files of one format only; or "
        "give the files of each format as a source of its own, and they are joined",
    )


def _nothing(source: str, files: int) -> RcdiagError:
    return RcdiagError(
        f"{source}: no file in this directory is of a format that rcdiag knows ({files} files)",
        hint=f"known formats: {', '.join(READERS)}; {setting('format', option='--from')} says "
        "which it is",
    )
