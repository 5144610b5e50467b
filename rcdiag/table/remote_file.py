"""A file behind a URL is read in place: only the ranges of bytes that are asked for are fetched."""

from __future__ import annotations

import io
import re
import threading
from collections import OrderedDict
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

from rcdiag.errors import RcdiagError, has_credentials, without_secrets

# Bytes at the end of a file that are fetched and kept together: most footers are shorter.
TAIL = 1 << 16
# The ends of files that are kept in memory, in bytes; those that were not read for long go first.
KEPT = 1 << 26
# What storages call the version of a file, the surest first.
VERSIONS = (
    *("ETag", "etag", "md5Hash", "Content-MD5", "Digest", "generation", "content_md5"),
    *("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "created"),
)
WEB = re.compile(r"https?://")


class RemoteFile:
    """A file behind a URL, as far as readers of tables ask for a path."""

    def __init__(self, system: Any, path: str, size: int, version: str) -> None:
        """`system` is the file system of fsspec that has the file at `path`.

        It may hold credentials, which nothing shows. `version` is the storage's own.
        """
        self._system, self._path = system, path
        self.size, self.version = size, version

    @property
    def url(self) -> str:
        """Return the file's URL, which may hold credentials."""
        return str(self._system.unstrip_protocol(self._path))

    @property
    def name(self) -> str:
        """Return the file's name in its folder."""
        return PurePosixPath(self.as_posix()).name

    @property
    def suffix(self) -> str:
        """Return the end of the name, such as `.parquet`."""
        return PurePosixPath(self.name).suffix

    def as_posix(self) -> str:
        """Return the URL without credentials, by which files are sorted."""
        return str(self)

    def __str__(self) -> str:
        return without_secrets(self.url)

    def __repr__(self) -> str:
        return f"RemoteFile({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFile) and self.mark == other.mark and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def mark(self) -> tuple[int, str]:
        """Return size and version, which tell this file from a later one behind the same URL."""
        return self.size, self.version

    def stat(self) -> Any:
        """Return the size in bytes as `st_size`."""
        return SimpleNamespace(st_size=self.size)

    def now(self) -> RemoteFile:
        """Ask the storage again for size and version."""
        self._system.invalidate_cache()
        return remote_file(self._system, self._path)

    def check_unchanged(self) -> None:
        """Refuse a file that was written again since it was opened: its rows may be of both."""
        if self.now().mark != self.mark:
            raise RcdiagError(
                f"{self}: was written again while it was read",
                hint="run again when its writer is done, or copy it here first",
            )

    def open(self, mode: str = "rb") -> io.RawIOBase:
        """Return a stream that fetches every range when it is read."""
        assert mode == "rb"
        return _Ranges(self)

    def read(self, start: int, end: int) -> bytes:
        """Return a range of bytes; one that the storage gives in another length is refused."""
        end = min(end, self.size)
        if start >= end:
            return b""
        kept = _ends.of(self)
        if kept is None and start >= self.size - TAIL:
            kept = self._fetched(max(self.size - TAIL, 0), self.size)
            _ends.keep(self, kept)
        first = self.size - len(kept or b"")
        if kept is not None and start >= first:
            return kept[start - first : end - first]
        return self._fetched(start, end)

    def _fetched(self, start: int, end: int) -> bytes:
        try:
            content = bytes(self._system.cat_file(self._path, start=start, end=end))
        except Exception as error:  # every file system has errors of its own
            raise not_readable(self.url, error) from error
        if len(content) != end - start:
            raise RcdiagError(
                f"{self}: {len(content):,} bytes came where {end - start:,} were asked for "
                f"(from byte {start:,})",
                hint="the file was changed while it was read, or its server gives no ranges: run "
                "again, or copy the file here",
            )
        return content


class _Ranges(io.RawIOBase):
    """A stream of a remote file, which Arrow reads as it reads a local one."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._place = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        self._place = max(start + offset, 0)
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        end = self._file.size if size is None or size < 0 else self._place + size
        content = self._file.read(self._place, end)
        self._place += len(content)
        return content

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        return self.read()


class _Ends:
    """The ends of remote files, with their footers, which are read again and again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int, str], bytes] = OrderedDict()

    def of(self, file: RemoteFile) -> bytes | None:
        with self._lock:
            key = (file.url, *file.mark)
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, file: RemoteFile, content: bytes) -> None:
        with self._lock:
            self._kept[(file.url, *file.mark)] = content
            while sum(map(len, self._kept.values())) > KEPT:
                self._kept.popitem(last=False)


_ends = _Ends()
AnyFile = Path | RemoteFile


def remote_file(system: Any, path: str) -> RemoteFile:
    """Return a file of a file system of fsspec, with its size and version."""
    about = _about(system, path)
    return RemoteFile(system, path, int(about.get("size") or 0), _version(about))


def gives_ranges(system: Any, path: str) -> bool:
    """Tell whether a part of a file can be fetched, which not every web server allows."""
    about = _about(system, path)
    on_the_web = WEB.match(system.unstrip_protocol(path)) is not None
    return bool(about.get("size")) and (not on_the_web or bool(about.get("partial")))


def _about(system: Any, path: str) -> dict[str, Any]:
    try:
        return dict(system.info(path))
    except Exception as error:
        raise not_readable(system.unstrip_protocol(path), error) from error


def not_readable(url: str, error: Exception) -> RcdiagError:
    """Return the error for a URL that a file system cannot read."""
    return RcdiagError(
        f"{url}: cannot be read ({reason(url, error)})",
        hint="check the address, and the credentials that fsspec takes from the environment",
    )


def reason(url: str, error: Exception) -> str:
    """Return what a file system says of its error; of a URL with a password only the kind."""
    kind = type(error).__name__
    return kind if has_credentials(url) else f"{kind}: {error}"


def _version(about: dict[str, Any]) -> str:
    return next((str(about[name]) for name in VERSIONS if about.get(name)), "")
