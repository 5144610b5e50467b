"""Files behind a URL (s3://, gs://, hf://, https://) are found, and copied, through fsspec.

Parquet stays where it is where ranges of it can be fetched.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from rcdiag.errors import RcdiagError
from rcdiag.files import inside
from rcdiag.table.remote_file import RemoteFile, gives_ranges, not_readable, reason, remote_file

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# Bytes that are copied at a time.
BLOCK = 1 << 22
# Folders above a file or folder whose names a copy keeps.
FOLDERS = 4
# Seconds without a byte after which a web server is given up.
SILENCE = 15.0
# Packages that fsspec needs for a protocol and does not bring.
PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "abfs": "adlfs",
    "az": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "sftp": "paramiko",
    "ssh": "paramiko",
    "oss": "ossfs",
}

# Whether files behind a URL stay where they are, as a dry run leaves them.
_STAY = ContextVar("_STAY", default=False)


class NotFetchedError(Exception):
    """A dry run has come to files behind a URL; the message says what a run would fetch."""


def is_url(source: str) -> bool:
    """Tell whether a source is a URL of another file system than the machine's own."""
    return URL.match(source) is not None and not source.startswith("file://")


def local_path(source: str) -> str:
    """Return the path that a file:// URL names; any other source as it is."""
    return unquote(urlsplit(source).path) if source.startswith("file://") else source


@contextmanager
def without_fetching() -> Iterator[None]:
    """Let files behind a URL be listed and not copied: NotFetchedError takes the copy's place."""
    before = _STAY.set(True)
    try:
        yield
    finally:
        _STAY.reset(before)


def check_fetching(sources: Sequence[str], wanted: Callable[[str], bool]) -> None:
    """Raise NotFetchedError in a dry run with a URL among its sources, all of which it lists.

    `wanted` picks the files of a folder by name.
    """
    urls = [source for source in sources if is_url(source)]
    if not urls or not _STAY.get():
        return
    lines = [_what_is_there(url, wanted) for url in urls]
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


def _what_is_there(url: str, wanted: Callable[[str], bool]) -> str:
    """Return a line with the number and size of the files that a URL names."""
    system, paths, _ = _found(url, wanted)
    with _named_errors(url):
        sizes = [system.size(path) for path in paths]
    size = "of unknown size" if None in sizes else f"{sum(sizes) / 1e6:,.1f} MB"
    return f"{url}: {len(paths):,} file{'' if len(paths) == 1 else 's'}, {size}"


def files_in_place(url: str, wanted: Callable[[str], bool]) -> tuple[list[RemoteFile], bool] | None:
    """Return the parquet files that a URL names and whether it names a folder.

    None where there is another file among them, or where no ranges of them can be fetched: then
    they are copied. `wanted` picks the files of a folder by name.
    """
    system, paths, root = _found(url, wanted)
    if not paths or not all(path.endswith(".parquet") for path in paths):
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
    """Copy the file, the files of a folder, or those of a glob that a URL names, into `target`.

    `wanted` picks the files of a folder by name. The copies keep their names and those of the
    folders that they lie in, because both tell formats steps. `beside` gives the names of files
    that are copied along with one of a name where they are there, and are none of the source's.
    Returns the copies with their own URLs, and whether the URL names a folder.
    """
    system, paths, root = _found(url, wanted)
    with _named_errors(url):
        above = root
        if above is None:
            above = posixpath.commonpath([posixpath.dirname(path) for path in paths])
        kept = PurePosixPath(*PurePosixPath(above).parts[1:][-FOLDERS:])
        # All paths are checked before the first byte is written.
        copies = {
            name: inside(target, str(kept / PurePosixPath(name).relative_to(above)), url)
            for name in paths
        }
        for name, copy in copies.items():
            _copy(system, name, copy)
        if root is None:
            for name, copy in copies.items():
                for other in beside(name):
                    more = posixpath.join(posixpath.dirname(name), other)
                    own = inside(copy.parent, other, url)
                    if not own.exists() and system.exists(more):
                        _copy(system, more, own)
        urls = [(copy, system.unstrip_protocol(name)) for name, copy in copies.items()]
    return urls, root is not None


def _copy(system: Any, name: str, copy: Path) -> None:
    """Write a file that is not there yet: two names of one path would hide one of the files."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    with system.open(name, "rb") as source, copy.open("xb") as sink:
        shutil.copyfileobj(source, sink, BLOCK)


def _found(url: str, wanted: Callable[[str], bool]) -> tuple[Any, list[str], str | None]:
    """Return a URL's file system, the paths that it names there, and the folder if it names one."""
    system, path = system_of(url)
    with _named_errors(url):
        paths, is_folder = _listed(system, path, wanted)
    if not paths and not is_folder:
        silent = f"; a web server that is silent for {SILENCE:.0f} s counts as without it"
        raise RcdiagError(
            f"{url}: no such file",
            hint=f"give a file, a folder or a glob{silent if url.startswith('http') else ''}",
        )
    return system, paths, path if is_folder else None


def system_of(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path that it names there."""
    protocol = url.partition("://")[0]
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url, **_patience(url))
    except (ImportError, ValueError) as error:
        package = PACKAGES.get(protocol)
        raise RcdiagError(
            f"{url}: no file system for {protocol}:// ({reason(url, error)})",
            hint=f"pip install {package}"
            if package
            else "protocols that fsspec knows: s3, gs, hf, az, https, ...",
        ) from error
    except Exception as error:  # a server that refuses, or an address that lacks a part
        raise not_readable(url, error) from error
    return system, path


def _patience(url: str) -> dict[str, Any]:
    """Return the options of fsspec by which a web server may be slow, and not silent.

    aiohttp itself ends a whole download after five minutes, and waits as long for the first byte.
    """
    web = {part.partition("://")[0] for part in url.split("::")} & {"http", "https"}
    if not web:
        return {}
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
    return {protocol: {"client_kwargs": {"timeout": timeout}} for protocol in web}


@contextmanager
def _named_errors(url: str) -> Iterator[None]:
    """Turn errors of a file system into one that names the URL."""
    try:
        yield
    except RcdiagError:
        raise
    except Exception as error:  # every file system has errors of its own
        raise not_readable(url, error) from error


def _listed(system: Any, path: str, wanted: Callable[[str], bool]) -> tuple[list[str], bool]:
    """Return the paths of the files that are meant, and whether they are those of a folder."""
    if any(character in path for character in "*?[") and not system.exists(path):
        return [name for name in sorted(system.glob(path)) if system.isfile(name)], False
    if not system.isdir(path):
        return ([path] if system.exists(path) else []), False
    below = sorted(system.find(path))
    return [name for name in below if _visible(name, path) and wanted(name)], True


def _visible(name: str, root: str) -> bool:
    """Tell whether no folder of a file, and not the file itself, is hidden or of a scoring run."""
    parts = PurePosixPath(name).relative_to(root).parts
    return not any(part.startswith(".") or part.endswith(".parts") for part in parts)
