"""The parts of a scoring run: parquet files beside its output, which survive a killed run.

The folder `OUTPUT.parts` holds a lock, and a folder for each policy with one file for each part.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rcdiag.engines.backend import Say
from rcdiag.engines.schedule import ScoredPart
from rcdiag.engines.scored_by import TOKENS
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.files import make_own_folder, not_writable
from rcdiag.table.arrow import ragged
from rcdiag.table.readers.parquet import open_parquet, read_whole
from rcdiag.table.schema import metadata_of, score_columns
from rcdiag.table.trajectories import POLICY_NAME, Trajectories
from rcdiag.table.writer import TableWriter

LOCK = ".lock"
# Names of the folders and files that scoring writes beside its output.
PART_FOLDER = re.compile(rf"{POLICY_NAME.pattern}-[0-9a-f]{{12}}")
PART_FILE = re.compile(
    r"\d{6}\.parquet|(job|provenance)\.json|engine\d*\.log|\..+\.tmp"
    r"|(input|output)\.parquet(\.tmp)?"  # exchanged with the program of a `command` policy
)
# Metadata key of a part: the facts that its engine reports about itself.
SCORED_BY = "scored_by"


@contextlib.contextmanager
def only_run(parts: Path, output: Path) -> Iterator[None]:
    """Lock the folder of parts for the `with` block; a second run on the same output is refused.

    The operating system releases the lock when this process ends, even by a kill.
    """
    try:
        make_own_folder(parts)
        lock = os.open(parts / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise not_writable(output, error) from error
    try:
        if not _locked(lock, parts / LOCK):
            raise RcdiagError(
                f"{output}: another run is writing it",
                hint="wait for that run, or choose another output path",
            )
        yield
    finally:
        os.close(lock)


def _locked(lock: int, path: Path) -> bool:
    """Lock an open file; False if another process holds it, or held it and removed the file."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def remove_parts(parts: Path, say: Say) -> None:
    """Remove the files that scoring left in the folder of parts, and no others."""
    if parts.is_symlink() or not parts.is_dir():
        return
    for folder in parts.iterdir():
        if PART_FOLDER.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            for file in folder.iterdir():
                if PART_FILE.fullmatch(file.name):
                    file.unlink()
            with contextlib.suppress(OSError):  # it holds something else
                folder.rmdir()
    (parts / LOCK).unlink(missing_ok=True)
    try:
        parts.rmdir()
    except OSError:
        say(f"{parts} stays: it holds files that rcdiag did not write")


def write_part(path: Path, spec: PolicySpec, rows: Trajectories, scored: ScoredPart) -> None:
    """Write the scores of some rows as list columns, with what their engine reports.

    A score whose length is not the number of response tokens is refused, for every engine.
    """
    tokens = len(rows.response_ids.values)
    columns = {}
    for field, column in zip(fields(scored.scores), score_columns(spec.name), strict=True):
        values: Any = getattr(scored.scores, field.name)
        if values is None:
            continue
        if values.shape[:1] != (tokens,) or values.dtype.kind not in "fiu":
            raise RcdiagError(
                f"policy `{spec.name}`: {spec.backend} returned {values.size} values of "
                f"{field.name} ({values.dtype}) for the {tokens} response tokens of rows "
                f"{rows.row[0]} to {rows.row[-1]}",
                hint=f"a bug of backend `{spec.backend}`, which owes a number for each token",
            )
        if values.ndim > 1:  # a list of equally many values per token
            values = ragged(values.ravel(), np.full(tokens, values.shape[1]))
        columns[column] = ragged(values, rows.response_ids.lengths)
    prompts = rows.prompt_ids
    read = tokens + (0 if prompts is None else len(prompts.values))
    table = pa.table(columns)
    with TableWriter(path, table.schema, {SCORED_BY: {**scored.about, TOKENS: read}}) as writer:
        writer.write(table)


def read_part(path: Path) -> pa.Table:
    """Return the score columns of a part."""
    return read_whole(path).replace_schema_metadata(None)


def about_part(path: Path, rows: int) -> dict[str, Any] | None:
    """Return the facts that the engine reports in a part; None if the part is not complete.

    Only the part's footer is read.
    """
    try:
        if not path.is_file() or (part := open_parquet(path)).metadata.num_rows != rows:
            return None
        about = metadata_of(part.schema_arrow, str(path)).get(SCORED_BY)
    except RcdiagError:
        return None
    return about if isinstance(about, dict) else None
