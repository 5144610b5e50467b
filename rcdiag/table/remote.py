"""Finding and reading files behind a URL (s3://, gs://, hf://, https://) with fsspec.

A parquet file is read in place if its storage can return ranges of it: then only the bytes that a
reader asks for are fetched. Every other file is copied to a local folder first.
"""

from __future__ import annotations

import functools
import io
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

from rcdiag.errors import RcdiagError
from rcdiag.files import inside
from rcdiag.url_secrets import has_credentials, without_own_secrets

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# Bytes per write while a file is copied.
BLOCK = 1 << 22
# A local copy keeps the names of at most this many parent folders.
FOLDERS = 4
# Timeout in seconds: a web server that sends no byte for this long is given up.
SILENCE = 15.0
# Schemes of URLs that are opened, with the package that fsspec needs beside itself ("": none).
# Left out are file systems of fsspec that are no storage (dir, reference, caches), and ftp, whose
# connection reports an error of its own when it is cleaned up.
SCHEMES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "oss": "ossfs",
    "tos": "tosfs",
    "oci": "ocifs",
    "http": "aiohttp",
    "https": "aiohttp",
    "sftp": "paramiko",
    "ssh": "paramiko",
    "smb": "smbprotocol",
    "hdfs": "",
    "webhdfs": "requests",
    "dbfs": "requests",
    "github": "requests",
    "zip": "",
    "tar": "",
    "memory": "",
    "file": "",
}

# Bytes at the end of a file that are fetched in one request and cached: most parquet footers fit.
TAIL = 1 << 16
# Number of file ends kept in memory, because a footer is read several times.
MOST_ENDS = 1024
# Keys under which storages report the version of a file, the most reliable first.
VERSIONS = (
    *("ETag", "etag", "md5Hash", "Content-MD5", "Digest", "generation", "content_md5"),
    *("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "created"),
)
WEB = re.compile(r"https?://", re.IGNORECASE)

# True in a dry run: files behind a URL are listed, and none is fetched.
_STAY = ContextVar("_STAY", default=False)


class RemoteFile:
    """A file behind a URL, with the part of the interface of `Path` that the readers use."""

    def __init__(self, system: Any, path: str, size: int, version: str) -> None:
        """Set the fsspec file system and the file's path in it.

        `system` may hold credentials; they are never printed. `version` is what the storage
        reports, such as an ETag.
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
        return without_own_secrets(self.url)

    def __repr__(self) -> str:
        return f"RemoteFile({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFile) and self.mark == other.mark and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def mark(self) -> tuple[int, str]:
        """Return (size, version), which change when the file behind the URL is overwritten."""
        return self.size, self.version

    def stat(self) -> Any:
        """Return the size in bytes as `st_size`."""
        return SimpleNamespace(st_size=self.size)

    def now(self) -> RemoteFile:
        """Ask the storage again for size and version."""
        self._system.invalidate_cache()
        return remote_file(self._system, self._path)

    def check_unchanged(self) -> None:
        """Raise an error if the file was overwritten while it was read: rows may mix versions."""
        if self.now().mark != self.mark:
            raise RcdiagError(
                f"{self}: the file was overwritten while it was read",
                hint="run again when its writer is done, or copy it here first",
            )

    def open(self, mode: str = "rb") -> io.RawIOBase:
        """Return a stream that fetches each range of bytes when it is read."""
        assert mode == "rb"
        return _Ranges(self)

    def read(self, start: int, end: int) -> bytes:
        """Return bytes `start` to `end`; raise an error if the storage sends another length."""
        end = min(end, self.size)
        if start >= end:
            return b""
        first = max(self.size - TAIL, 0)
        return _end(self)[start - first : end - first] if start >= first else self.fetch(start, end)

    def fetch(self, start: int, end: int) -> bytes:
        """Request a range of bytes from the storage."""
        try:
            content = bytes(self._system.cat_file(self._path, start=start, end=end))
        except Exception as error:  # every file system has errors of its own
            raise not_readable(self.url, error) from error
        if len(content) != end - start:
            raise RcdiagError(
                f"{self}: the storage sent {len(content):,} bytes where {end - start:,} were "
                f"requested (from byte {start:,})",
                hint="the file was changed while it was read, or its server does not support "
                "ranges: run again, or copy the file here",
            )
        return content


class _Ranges(io.RawIOBase):
    """A seekable stream over a remote file, so that Arrow reads it like a local file."""

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


@functools.lru_cache(maxsize=MOST_ENDS)
def _end(file: RemoteFile) -> bytes:
    """Return the last bytes of a file [at most TAIL]; the cache key includes the file's version."""
    return file.fetch(max(file.size - TAIL, 0), file.size)


AnyFile = Path | RemoteFile


def remote_file(system: Any, path: str) -> RemoteFile:
    """Return the `RemoteFile` at a path of an fsspec file system, with its size and version."""
    about = _about(system, path)
    version = next((str(about[name]) for name in VERSIONS if about.get(name)), "")
    return RemoteFile(system, path, int(about.get("size") or 0), version)


def gives_ranges(system: Any, path: str) -> bool:
    """Tell whether parts of a file can be fetched; some web servers only send whole files."""
    about = _about(system, path)
    on_the_web = WEB.match(system.unstrip_protocol(path)) is not None
    return bool(about.get("size")) and (not on_the_web or bool(about.get("partial")))


def _about(system: Any, path: str) -> dict[str, Any]:
    try:
        return dict(system.info(path))
    except Exception as error:
        raise not_readable(system.unstrip_protocol(path), error) from error


def not_readable(url: str, error: Exception) -> RcdiagError:
    """Return the error for a URL that cannot be read."""
    return RcdiagError(
        f"{url}: cannot be read ({reason(url, error)})",
        hint="check the address, and the credentials that fsspec takes from the environment",
    )


def reason(url: str, error: Exception) -> str:
    """Describe an error of a file system; only by its type if the URL holds a password.

    The system's words on a local file, such as a copy, leave out its path.
    """
    kind = type(error).__name__
    says = (error.strerror if isinstance(error, OSError) else "") or str(error)
    if isinstance(error, TimeoutError) and not says:
        says = "the server did not answer in time"
    return kind if has_credentials(url) or not says else f"{kind}: {says}"


class NotFetchedError(Exception):
    """A dry run reached files behind a URL; the message says what a real run would fetch."""


def is_url(source: str) -> bool:
    """Tell whether a source is a URL that is not on the local file system."""
    return URL.match(source) is not None and not source.startswith("file://")


def local_path(source: str) -> str:
    """Return the path in a file:// URL; return any other source unchanged."""
    return unquote(urlsplit(source).path) if source.startswith("file://") else source


@contextmanager
def without_fetching() -> Iterator[None]:
    """List files behind a URL but do not copy them: a copy raises NotFetchedError instead."""
    before = _STAY.set(True)
    try:
        yield
    finally:
        _STAY.reset(before)


def check_fetching(sources: Sequence[str], wanted: Callable[[str], bool]) -> None:
    """In a dry run, list all sources that are URLs and raise NotFetchedError if there are any.

    `wanted` selects the files of a folder by name.
    """
    urls = [source for source in sources if is_url(source)]
    if not urls or not _STAY.get():
        return
    lines = []
    for url in urls:
        system, paths, _ = _found(url, wanted)
        with _named_errors(url):
            sizes = [system.size(path) for path in paths]
        size = "of unknown size" if None in sizes else f"{sum(sizes) / 1e6:,.1f} MB"
        lines.append(f"{url}: {len(paths):,} file{'' if len(paths) == 1 else 's'}, {size}")
    raise NotFetchedError(
        "\n".join(
            [
                *lines,
                "would read parquet where it is, by row groups, and fetch other files to a "
                "temporary folder; a dry run fetches nothing, so the columns, and options that "
                "depend on them, are not checked",
            ]
        )
    )


def files_in_place(url: str, wanted: Callable[[str], bool]) -> tuple[list[RemoteFile], bool] | None:
    """Return the parquet files that a URL names, and whether the URL is a folder.

    Return None if the files have to be copied: one of them is not parquet, or the storage cannot
    return ranges. `wanted` selects the files of a folder by name.
    """
    system, paths, root = _found(url, wanted)
    if not paths or not all(_name(system, path).endswith(".parquet") for path in paths):
        return None
    if not gives_ranges(system, paths[0]):
        return None
    return [remote_file(system, path) for path in paths], root is not None


def copy_files(
    url: str,
    wanted: Callable[[str], bool],
    target: Path,
    beside: Callable[[str], Sequence[str]],
) -> tuple[list[tuple[Path, str]], bool]:
    """Copy the files that a URL names (a file, a folder or a glob) into the folder `target`.

    `wanted` selects the files of a folder by name. Copies keep their own names, without a query,
    and those of their parent folders, because some formats read the step from either. `beside`
    returns, for a file name, the names of companion files: they are copied too if they exist, but
    they are not part of the source. Returns (copy, its URL) for every copy, and whether the URL is
    a folder.
    """
    system, paths, root = _found(url, wanted)
    names = {path: _name(system, path) for path in paths}
    with _named_errors(url):
        above = None if root is None else _name(system, root)
        if above is None:
            above = posixpath.commonpath([posixpath.dirname(name) for name in names.values()])
        kept = PurePosixPath(*PurePosixPath(above).parts[1:][-FOLDERS:])
        # All paths are checked before the first byte is written.
        copies = {
            path: inside(target, str(kept / PurePosixPath(name).relative_to(above)), url)
            for path, name in names.items()
        }
        for path, copy in copies.items():
            _copy(system, path, copy)
        if root is None:
            for path, copy in copies.items():
                for other in beside(names[path]):
                    more = posixpath.join(posixpath.dirname(path.partition("?")[0]), other)
                    own = inside(copy.parent, other, url)
                    if not own.exists() and system.exists(more):
                        _copy(system, more, own)
        urls = [(copy, system.unstrip_protocol(path)) for path, copy in copies.items()]
    return urls, root is not None


def _copy(system: Any, name: str, copy: Path) -> None:
    """Copy one file; fail if the copy exists, as two remote names may map to one local path."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    with system.open(name, "rb") as source, copy.open("xb") as sink:
        shutil.copyfileobj(source, sink, BLOCK)


def _name(system: Any, path: str) -> str:
    """Return a path without what is secret in its URL, such as the signature of a web address."""
    return without_own_secrets(system.unstrip_protocol(path)).partition("://")[2]


def _found(url: str, wanted: Callable[[str], bool]) -> tuple[Any, list[str], str | None]:
    """Return the file system of a URL, its matching paths, and the folder (None if not one)."""
    system, path = system_of(url)
    with _named_errors(url):
        paths, is_folder = _listed(system, path, wanted)
    if not paths and not is_folder:
        silent = f"; a web server that does not answer for {SILENCE:.0f} s is given up"
        raise RcdiagError(
            f"{url}: no such file",
            hint=f"give a file, a folder or a glob{silent if url.startswith('http') else ''}",
        )
    return system, paths, path if is_folder else None


def system_of(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path within it."""
    chain = [part.partition("://")[0] for part in url.split("::") if URL.match(part)]
    # A package can bring a scheme of its own, such as the file system of a cluster.
    known = [*SCHEMES, *entry_points(group="fsspec.specs").names]
    if other := next((scheme for scheme in chain if scheme not in known), None):
        raise RcdiagError(
            f"{url}: rcdiag does not read {other}:// URLs",
            hint="copy the file to this machine; rcdiag reads "
            f"{', '.join(scheme for scheme in dict.fromkeys(known) if scheme != 'memory')}",
        )
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url, **_patience(url))
    except Exception as error:  # a server that refuses, or an address that lacks a part
        packages = " ".join(filter(None, map(SCHEMES.get, chain)))
        if not isinstance(error, ImportError) or not packages:
            raise not_readable(url, error) from error
        raise RcdiagError(
            f"{url}: a package for {chain[0]}:// is missing ({reason(url, error)})",
            hint=f"pip install {packages}",
        ) from error
    return system, path


def _patience(url: str) -> dict[str, Any]:
    """Return fsspec options that allow a slow web server but not one that stops sending.

    By default aiohttp ends a download after five minutes in total, and waits just as long for the
    first byte.
    """
    web = {part.partition("://")[0] for part in url.split("::")} & {"http", "https"}
    if not web:
        return {}
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
    return {protocol: {"client_kwargs": {"timeout": timeout}} for protocol in web}


@contextmanager
def _named_errors(url: str) -> Iterator[None]:
    """Turn any error of a file system into an RcdiagError that names the URL."""
    try:
        yield
    except RcdiagError:
        raise
    except Exception as error:  # every file system has errors of its own
        raise not_readable(url, error) from error


def _listed(system: Any, path: str, wanted: Callable[[str], bool]) -> tuple[list[str], bool]:
    """Return the matching files below a path, and whether the path is a folder."""
    if any(character in path for character in "*?[") and not system.exists(path):
        return [name for name in sorted(system.glob(path)) if system.isfile(name)], False
    if not system.isdir(path):
        return ([path] if system.exists(path) else []), False

    def visible(name: str) -> bool:
        """Tell whether a file is neither hidden, nor in a hidden folder or one of a scoring run."""
        parts = PurePosixPath(name).relative_to(path).parts
        return not any(part.startswith(".") or part.endswith(".parts") for part in parts)

    found = [name for name in sorted(system.find(path)) if visible(name)]
    return [name for name in found if wanted(_name(system, name))], True
