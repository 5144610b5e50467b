"""Write small files so that a reader sees the old one or the new one, never half of it.

Outputs are checked before the work that they are made from.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from rcdiag.errors import RcdiagError, setting

# A URL, also where a path was made of it, which loses a slash.
LIKE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def write_bytes(path: Path, content: bytes) -> None:
    """Write under a temporary name in the same folder, then rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        temporary_is_there = path.parent.is_dir() and temporary.exists()
        if temporary_is_there:
            temporary.unlink()
        raise not_writable(path, error) from error


def write_text(path: Path, content: str) -> None:
    """Write UTF-8; halves of surrogate pairs, which UTF-8 has not, become question marks."""
    write_bytes(path, content.encode(errors="replace"))


def inside(folder: Path, name: str, source: str) -> Path:
    """Return the path below `folder` for a file that `source` names; refuse one that leaves it.

    A server, an archive or a dump can name a file `../../.bashrc`. Every path that is written and
    whose name comes from one of them is made here.
    """
    # `%2e%2e` stays as it is in a local path, but a server takes it for `..`.
    climbs = ".." in re.split(r"[/\\]", unquote(name))
    path = folder / name
    no_file = path == folder or "\0" in name or os.path.isabs(name)
    # Where the path or a folder on the way is a link, it resolves to another one.
    resolved = os.path.join(os.path.realpath(folder), os.path.normpath(name))
    if climbs or no_file or os.path.realpath(path) != resolved:
        raise RcdiagError(
            f"{source}: names a file that would be written outside of its folder: {name}",
            hint="do not trust this source; no file was written outside",
        )
    return path


def not_writable(path: Path, error: OSError) -> RcdiagError:
    """Return the error for an output that the system refuses."""
    return RcdiagError(
        f"{path}: cannot be written ({error.strerror or error})",
        hint="choose another output path, or free space and permissions there",
    )


def check_outputs(paths: Iterable[Path | None], *, force: bool) -> None:
    """Refuse to overwrite a file or a folder with something in it, or to write where none can."""
    for path in filter(None, paths):
        if LIKE_URL.match(str(path)):
            raise RcdiagError(
                f"{path}: only the table of rcdiag score -o is written to a URL",
                hint="write to a path of this machine, and copy it from there",
            )
        empty_folder = path.is_dir() and not any(path.iterdir())
        if path.exists() and not empty_folder and not force:
            raise RcdiagError(f"{path}: already there", hint=f"another path, or {setting('force')}")
        parent = next(folder for folder in path.absolute().parents if folder.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise RcdiagError(
                f"{path}: cannot be written ({parent} is no folder that you may write to)",
                hint="choose another output path",
            )


def check_apart(outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Refuse two outputs on one path, and an output that would overwrite what is read.

    Inputs are files, folders, globs and URLs. No file in a folder that is read is overwritten.
    """
    places: set[str] = set()
    wanted = [os.fspath(path) for path in outputs if path is not None]
    read = [place for source in inputs if source is not None for place in _places(source)]
    for path in wanted:
        place = os.path.realpath(path)
        if place in places:
            raise RcdiagError(f"{path}: two outputs on one path", hint="give each its own path")
        places.add(place)
        # A name of another file system, or a hard link, may be the same file.
        is_read = any(
            place == source
            or (
                os.path.exists(source) and os.path.exists(place) and os.path.samefile(source, place)
            )
            or (os.path.isfile(place) and place.startswith(os.path.join(source, "")))
            for source in read
        )
        if is_read:
            raise RcdiagError(
                f"{path}: this command reads it, and would overwrite it",
                hint="choose another output path",
            )


def _places(source: str | Path) -> list[str]:
    """Return the real paths that an input names; a URL names none."""
    text = os.fspath(source)
    if "://" in text:
        return []
    names = [text] if os.path.exists(text) else glob.glob(text, recursive=True)
    return [os.path.realpath(name) for name in names]
