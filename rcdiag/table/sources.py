"""Turn a source that a user names (file, folder, glob, URL) into files of one format.

JSON lines compressed with gzip or zstd are decompressed while they are read, block by block.
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

from rcdiag.errors import RcdiagError, setting
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
from rcdiag.url_secrets import remember_secrets, without_own_secrets

FileSource = str | Path | Sequence[str | Path]
# Bytes that are decompressed at a time.
BLOCK = 1 << 20


# File extension -> magic bytes, and Arrow's name of the compression.
PACKINGS = {".gz": (b"\x1f\x8b", "gzip"), ".zst": (b"\x28\xb5\x2f\xfd", "zstd")}


class PackedFile(type(Path())):  # type: ignore[misc]
    """The path of a compressed file that behaves like the file inside.

    `name` lacks the extension of the compression, and reading decompresses. `str` is the path that
    the user gave.
    """

    @property
    def name(self) -> str:
        """Return the name of the file inside."""
        return unpacked_name(super().name)

    def open(self, mode: str = "r", buffering: int = -1, *text: Any, **of_text: Any) -> Any:
        """Open the file inside for reading, as bytes or text."""
        import pyarrow as pa

        _, packing = PACKINGS[_packing_suffix(str(self))]
        unpacked = pa.input_stream(str(self), compression=packing)
        stream = io.BufferedReader(_Unpacked(str(self), unpacked), BLOCK)
        return stream if "b" in mode else io.TextIOWrapper(stream, *text, **of_text)

    def read_bytes(self) -> bytes:
        """Return the decompressed bytes."""
        with self.open("rb") as stream:
            return bytes(stream.read())


class _Unpacked(io.RawIOBase):
    """The decompressed bytes of a file; if it is damaged, the error names the file."""

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
                f"{self._name}: the compressed file is truncated or damaged ({error})",
                hint="its writer or a copy did not finish; copy or write it again",
            ) from error
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._stream.close()
        super().close()


def unpacked_name(name: str) -> str:
    """Return a file name without the extension of the compression."""
    return name.removesuffix(_packing_suffix(name))


def _packing_suffix(name: str) -> str:
    return next((end for end in PACKINGS if name.endswith(end)), "")


def unpacked(path: Path) -> Path:
    """Return a compressed file as a `PackedFile`, any other path unchanged."""
    end = _packing_suffix(str(path))
    if not end:
        return path
    magic, _ = PACKINGS[end]
    try:
        with path.open("rb") as stream:
            return PackedFile(path) if stream.read(len(magic)) == magic else path
    except OSError:
        return path


def seen_through(path: AnyFile) -> AnyFile:
    """Return a compressed JSON file as a `PackedFile`, any other path unchanged.

    Compressed files of tensors are not supported: the user has to decompress them first.
    """
    packed = unpacked(path) if isinstance(path, Path) else path
    if not isinstance(packed, PackedFile):
        return path
    with packed.open("rb") as inside:
        head = inside.read(1 << 10)
    is_json = head.removeprefix(BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"[")
    return packed if is_json else path


class SourceFile(Struct, frozen=True):
    """A file that the user gave: its local path or remote file, and its URL if `path` is a copy."""

    path: AnyFile
    url: str = ""

    @property
    def name(self) -> str:
        """Return the file's name as the user knows it."""
        return without_own_secrets(self.url) or str(self.path)


class SourceFiles(Struct, frozen=True):
    """The files of one source in row order, and their common format."""

    source: str  # as the user wrote it, without secrets
    reader: Reader
    files: tuple[SourceFile, ...]
    scratch: Scratch | None = None  # holds copies of remote files
    left: tuple[str, ...] = ()  # files that match the format's names but have another content


def find_sources(sources: FileSource, format: str | None = None) -> list[SourceFiles]:
    """Find the files of sources, each of one format; no file may belong to two of them."""
    named = [str(one) for one in ([sources] if isinstance(sources, (str, Path)) else sources)]
    if not named:
        raise RcdiagError("no table to open", hint="give at least one file")
    remember_secrets(named)
    check_remote(named, format)
    parts = [find_files(source, format) for source in named]
    owners: dict[str, str] = {}
    for part in parts:
        for file in part.files:
            name = file.url or str(file.path.resolve() if isinstance(file.path, Path) else file)
            if name in owners:
                raise RcdiagError(
                    f"{file.name} is given twice, by {owners[name]} and by {part.source}",
                    hint="give every file once: its rows would count twice",
                )
            owners[name] = part.source
    return parts


def find_files(source: str, format: str | None = None) -> SourceFiles:
    """Find the files of a source, and the reader of their format.

    A table that rcdiag wrote is recognised by its metadata; for any other file, each reader is
    tried in turn. Files of a folder that no reader recognises are left out. If `format` names the
    reader, the files of a folder are those that match the reader's name patterns.
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
        if found.reader.read is None:  # parquet is read in place, other formats are copied
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
    """Return the files of one format among those that were `found` (path -> URL).

    `folder` is true if these are all files of a folder, some of which may not belong to the dump.
    """
    urls: dict[AnyFile, str] = {seen_through(path): url for path, url in found.items()}
    pick = _of_folder if folder else _of_names
    reader, paths = pick(source, list(urls), chosen, urls)
    files = tuple(SourceFile(path, urls[path]) for path in sorted(paths, key=reader.order))
    known = set(paths)
    left = [path.name for path in urls if path not in known and _fits(path.name, [reader])]
    named = without_own_secrets(source)
    return SourceFiles(named, reader, files, scratch, tuple(left) if folder else ())


def check_remote(sources: Sequence[str], format: str | None = None) -> None:
    """In a dry run with a URL, raise NotFetchedError, which says what a run would fetch."""
    chosen = None if format is None else READERS.find(format, "format")
    check_fetching(sources, lambda name: _fits(name, _asked(chosen)))


def _asked(chosen: Reader | None) -> list[Reader]:
    """Return the readers in the order in which they are tried: those for any file name last."""
    if chosen is not None:
        return [chosen]
    return sorted(READERS.values(), key=lambda reader: reader.any_names)


def _named(source: str) -> tuple[list[Path], bool]:
    """Return the files of a path or a glob, and whether the path is a folder."""
    if not source.strip():  # Path("") would be the current folder
        raise RcdiagError("the name of the source is empty", hint="give a file, a folder or a glob")
    path = Path(source)
    try:
        os.stat(source)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # pathlib would raise the OSError itself
            raise RcdiagError(
                f"{source}: no such file ({error.strerror})",
                hint="give a file, a folder or a glob",
            ) from error
    if path.is_dir():
        return list(_below(path)), True
    if path.is_symlink() and not path.exists():
        raise RcdiagError(
            f"{source}: a link to {os.readlink(path)}, which does not exist",
            hint="give the file itself",
        )
    files = [path] if path.exists() else list(map(Path, glob.glob(source, recursive=True)))
    if "**" in source:  # it stands for folders too, whose files are among the others
        files = [file for file in files if not file.is_dir()]
    if not files:
        raise RcdiagError(f"{source}: no such file", hint="give a file, a folder or a glob")
    for file in files:
        if file.is_dir():
            raise RcdiagError(
                f"{file}: a directory, not a file", hint="give it alone, not in a glob"
            )
        if not file.is_file():  # opening a pipe would block until something is written
            raise RcdiagError(
                f"{file}: a pipe or a device, not a file",
                hint="a dump is read more than once: write it to a file first",
            )
    return files, False


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, except hidden ones and parts of interrupted scoring runs."""
    visited: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in visited:  # a link to a parent folder
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
    """Return the reader of explicitly named files; every file must be of its format."""
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
    """Return the single format found in a folder, and the files that have it."""
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
    bad: set[AnyFile] = set()  # empty or unreadable files
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
    for path in paths:  # an empty, compressed or truncated part of the dump must not be skipped
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
    """Raise an error if a folder lacks a file that its writer recorded as written."""
    lost = reader.lost([path for path in paths if isinstance(path, Path)])
    if lost is not None:
        raise RcdiagError(
            f"{lost}: no such file, although {reader.name} marked its folder as complete",
            hint="copy it, or move its folder away to read the others",
        )


def _reader_of(path: AnyFile) -> Reader | None:
    peek = Peek(path)
    if peek.is_own_table:
        return PARQUET
    return next((reader for reader in _asked(None) if reader.detect(peek)), None)


def _fits(name: str, readers: Sequence[Reader]) -> bool:
    """Tell whether a file name matches a pattern of one of the formats."""
    base = name.rpartition("/")[2]
    return any(fnmatch.fnmatch(base, pattern) for reader in readers for pattern in reader.patterns)


def _check_file(path: AnyFile, url: str) -> None:
    """Raise an error if a file is empty or cannot be opened."""
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
    """Return the error for a source whose files have several formats."""
    examples = ", ".join(f"{name} ({path.name})" for name, path in by_format.items())
    first = next(iter(by_format))
    return RcdiagError(
        f"{source}: files of several formats: {examples}",
        hint=f"{setting('format', first, '--from')} reads the files of one format only; or "
        "give the files of each format as a separate source, and they are joined",
    )


def _nothing(source: str, files: int) -> RcdiagError:
    return RcdiagError(
        f"{source}: rcdiag knows the format of none of the {files} files in this directory",
        hint=f"known formats: {', '.join(READERS)}; choose one with "
        f"{setting('format', option='--from')}",
    )
