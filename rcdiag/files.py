"""Atomic writes of small files, and checks of output paths before any work starts.

A reader sees either the old file or the complete new one, never half of it.
"""

from __future__ import annotations

import glob
import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from rcdiag.errors import RcdiagError, setting

# A URL. Making a path of a URL removes one slash, so one is enough.
LIKE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

# Characters that HTML and XML do not allow (control characters, lone surrogates), and those that
# change the direction of the text that follows. Text in a dump may contain any of them.
CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (
        *range(0x20),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
        0xFFFE,
        0xFFFF,
    )
    if chr(code) not in "\t\n"
}
# A result under such a name would be opened as a table.
TABLE_SUFFIXES = (".parquet", ".arrow", ".feather", ".csv")
# Spreadsheets read a cell that begins with one of these as a formula.
FORMULA = ("=", "+", "-", "@")


def write_bytes(path: Path, content: bytes) -> None:
    """Write to a temporary file in the same folder, then rename it; a pipe is written directly."""
    temporary = None
    try:
        if is_stream(path):
            with open(os.open(path, os.O_WRONLY), "wb") as stream:
                stream.write(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_beside(path) as stream:
            temporary = Path(stream.name)
            stream.write(content)
        os.replace(temporary, path)
    except OSError as error:
        raise not_writable(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def new_beside(path: Path) -> BinaryIO:
    """Open a new file beside an output, to be written first and renamed to the output at last.

    Nobody who shares the folder can guess its name and lay a link there before, nor can one that
    is laid there later lead the writer elsewhere: the file is written as it was opened.
    """
    return name_beside(path).open("xb")


def name_beside(path: Path) -> Path:
    """Return a hidden file name beside an output that nobody can guess."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def make_own_folder(folder: Path) -> None:
    """Make a folder for temporary files, or go on in the one that an earlier run left.

    A link is refused, and a folder of another user: it may hold links to files of this one.
    """
    try:
        folder.mkdir(parents=True)
        return
    except FileExistsError:
        found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RcdiagError(
            f"{folder}: not a folder of yours (a link, a file, or another user's), but rcdiag "
            "keeps there what is finished while it makes an output",
            hint="remove it, or choose another output path",
        )


def is_stream(path: Path) -> bool:
    """Tell whether an output is a pipe or a device such as /dev/stdout, which is written directly.

    Anything else that is neither a file nor a folder is refused. A link to a file is refused too:
    anyone who may write to the output's folder could create one to a file of the user.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    if mode is not None and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return True
    is_folder = mode is not None and stat.S_ISDIR(mode)
    if path.is_symlink() and not is_folder:
        raise RcdiagError(
            f"{path}: a link to {os.readlink(path)}, which is not written through",
            hint="give the path of the file itself, or remove the link",
        )
    if mode is not None and not is_folder and not stat.S_ISREG(mode):
        raise RcdiagError(f"{path}: neither a file nor a pipe", hint="choose another output path")
    return False


def write_text(path: Path, content: str) -> None:
    """Write UTF-8; lone surrogates, which UTF-8 cannot encode, become question marks."""
    write_bytes(path, content.encode(errors="replace"))


def inside(folder: Path, name: str, source: str) -> Path:
    """Return the path below `folder` for a file that `source` names; refuse one outside of it.

    A server, an archive or a dump can name a file `../../.bashrc`. Every path that is written under
    a name from such a source must be made by this function.
    """
    # A local path keeps `%2e%2e` as it is, but a server reads it as `..`.
    climbs = ".." in re.split(r"[/\\]", unquote(name))
    path = folder / name
    if climbs or path == folder or "\0" in name or os.path.isabs(name):
        raise RcdiagError(
            f"{source}: names a file that would be written outside of its folder: {name}",
            hint="do not trust this source; no file was written outside",
        )
    # Where the path or a folder on the way is a link, it resolves to another one.
    if os.path.realpath(path) != os.path.join(os.path.realpath(folder), os.path.normpath(name)):
        raise RcdiagError(
            f"{path}: a link, or behind one, and links are not written through",
            hint="remove the link, or choose another folder",
        )
    return path


def not_writable(path: Path, error: OSError) -> RcdiagError:
    """Return the error for an output that the operating system refuses to write."""
    return RcdiagError(
        f"{path}: cannot be written ({error.strerror or error})",
        hint="choose another output path, or free space and permissions there",
    )


def check_outputs(
    files: Iterable[Path | None],
    *,
    folder: Path | None = None,
    force: bool,
    into_streams: bool = True,
) -> None:
    """Refuse to overwrite a file or a folder with something in it, or to write where none can.

    A file is not written where a folder is, nor a folder where a file is. Pipes and devices are
    written into, which takes no `force`, unless `into_streams` is false.
    """
    for path in filter(None, [*files, folder]):
        try:
            if path.exists() and path.is_dir() != (path is folder):
                wanted, found = ("folder", "file") if path is folder else ("file", "folder")
                raise RcdiagError(
                    f"{path}: a {found}, not a {wanted}", hint=f"give the path of a {wanted}"
                )
            _check_output(path, force=force, into_streams=into_streams)
        except OSError as error:  # a name that is too long for the file system
            raise not_writable(path, error) from error


def check_document(path: Path) -> None:
    """Refuse the name of a table for a result, which is a JSON document."""
    if path.suffix.lower() not in TABLE_SUFFIXES:
        return
    own = "rcdiag score ... -o FILE.parquet writes the table with scored log-probs"
    raise RcdiagError(
        f"{path}: the result is a JSON document, not a table",
        hint=f"call it {path.stem}.json; "
        f"{'--csv FILE.csv writes its numbers' if path.suffix.lower() == '.csv' else own}",
    )


def _check_output(path: Path, *, force: bool, into_streams: bool) -> None:
    if LIKE_URL.match(str(path)):
        raise RcdiagError(
            f"{path}: only the table of rcdiag score -o can be written to a URL",
            hint="write to a local path, then copy the file",
        )
    if is_stream(path):
        if not into_streams:
            raise RcdiagError(
                f"{path}: a table cannot be written to a pipe or a device",
                hint="choose the path of a file",
            )
        return
    empty_folder = path.is_dir() and not any(path.iterdir())
    if path.exists() and not empty_folder and not force:
        raise RcdiagError(f"{path}: already there", hint=f"another path, or {setting('force')}")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise RcdiagError(
            f"{path}: cannot be written ({parent} is not a folder that you may write to)",
            hint="choose another output path",
        )


def check_apart(outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Refuse two outputs with the same path, and an output that would overwrite an input.

    Inputs are files, folders, globs and URLs. No file inside an input folder is overwritten.
    """
    read: list[str] = []  # real paths of the inputs, without URLs
    for given in inputs:
        source = "" if given is None else os.fspath(given)
        if source and "://" not in source:
            names = [source] if os.path.exists(source) else glob.glob(source, recursive=True)
            read += map(os.path.realpath, names)
    places: set[str] = set()
    for path in [os.fspath(path) for path in outputs if path is not None]:
        place = os.path.realpath(path)
        if place in places:
            raise RcdiagError(f"{path}: two outputs on one path", hint="give each its own path")
        places.add(place)
        # The same file may have another name: by a bind mount, or by a hard link.
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


def without_controls(text: str) -> str:
    """Return the text with each control character replaced by U+FFFD."""
    return text if text.isascii() and text.isprintable() else text.translate(CONTROLS)


def csv_cell(value: Any) -> Any:
    """Return a cell of a CSV file; text that a spreadsheet would read as a formula gets a `'`."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = without_controls(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text
