"""Readers know the formats that a dump may have on disk; all but parquet are converted to it.

To add a format: a file with a `Reader`, and its name in `READERS`; or `READERS.add(...)` in a
package of your own (entry-point group `rcdiag.plugins`).
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from rcdiag.errors import RcdiagError
from rcdiag.registry import Registry
from rcdiag.table.readers.nemo_rl import NEMO_RL
from rcdiag.table.readers.parquet import PARQUET
from rcdiag.table.readers.reader import Reader
from rcdiag.table.readers.sglang import SGLANG
from rcdiag.table.readers.vllm import VLLM

READERS: Registry[Reader] = Registry("format", (PARQUET, NEMO_RL, VLLM, SGLANG))


def find_files(sources: Sequence[str], format: str | None = None) -> tuple[Reader, list[Path]]:
    """Find the files of paths, folders and globs, each in the order of names, and their reader.

    `format` names the reader. Without it the first reader is taken that finds something in every
    folder and knows all other files.
    """
    readers = list(READERS.values()) if format is None else [READERS.find(format, "format")]
    named = {source: _named(source) for source in sources if not Path(source).is_dir()}
    files = [file for source in named.values() for file in source]
    for reader in readers:
        parts = [named[s] if s in named else _in_folder(Path(s), reader) for s in sources]
        if all(parts) and (not files or format is not None or reader.detect(files)):
            return reader, [file for part in parts for file in part]
    for folder in (source for source in sources if source not in named):
        if not any(_in_folder(Path(folder), reader) for reader in readers):
            names = " or ".join(reader.name for reader in readers)
            raise RcdiagError(
                f"{folder}: no {names} file in this directory",
                hint="give a file, a folder or a glob; names that are looked for: "
                + ", ".join(pattern for reader in readers for pattern in reader.patterns),
            )
    raise RcdiagError(
        f"{_unknown(files, readers) if files else ', '.join(sources)}: not a format that rcdiag "
        "knows, or not the format of the other files",
        hint=f"known formats: {', '.join(READERS)}; or write the dump as parquet, for example "
        "polars.read_ndjson(...).write_parquet(...)",
    )


def _named(source: str) -> list[Path]:
    """Return the files of a path or a glob."""
    path = Path(source)
    files = [path] if path.exists() else sorted(map(Path, glob.glob(source, recursive=True)))
    if not files:
        raise RcdiagError(f"{source}: no such file", hint="give a file, a folder or a glob")
    for file in files:
        _check_file(file)
    return files


def _in_folder(folder: Path, reader: Reader) -> list[Path]:
    """Return files of a format below a folder, without parts of an interrupted scoring run."""
    files = {
        file
        for pattern in reader.patterns
        for file in folder.rglob(pattern)
        if not any(parent.suffix == ".parts" for parent in file.relative_to(folder).parents)
    }
    for file in files:
        _check_file(file)
    return sorted(files)


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise RcdiagError(f"{path}: a directory, not a file", hint="give it alone, not in a glob")
    try:
        with path.open("rb") as stream:
            empty = not stream.read(1)
    except OSError as error:
        raise RcdiagError(
            f"{path}: cannot be read ({error.strerror})", hint="check its permissions"
        ) from error
    if empty:
        raise RcdiagError(f"{path}: the file is empty (0 bytes)", hint="copy it again")


def _unknown(files: Sequence[Path], readers: Sequence[Reader]) -> Path:
    """Return the first file that no reader knows by itself; else the first of mixed formats."""
    alone = (file for file in files if not any(reader.detect([file]) for reader in readers))
    return next(alone, files[0])
