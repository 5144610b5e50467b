"""`rcdiag.convert`: a dump in any format that rcdiag knows becomes a parquet table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rcdiag.api.usecase import Steps, usecase
from rcdiag.errors import RcdiagError
from rcdiag.files import check_outputs
from rcdiag.results import ConvertResult
from rcdiag.table.given import read_given
from rcdiag.table.sources import SourceFiles
from rcdiag.usecases.convert import convert as run
from rcdiag.usecases.progress import SILENT, Progress
from rcdiag.usecases.tables import located


@usecase
def convert(
    source: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    format: str | None = None,
    given: Mapping[str, Any] | None = None,
    tokenizer: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Steps[ConvertResult]:
    """Write a trainer's dump as a trajectory table, and say what was changed and what is lacking.

    Args:
        source: a file, a directory, a glob or a URL that fsspec knows (s3://, gs://, hf://), or a
            list of them. Sources of one format are one table; dumps of one run in two formats, or
            with other policies, are joined by `sample_id` or else by equal tokens.
        output: the parquet file to write.
        format: the dump's format, where it cannot be told from its files.
        given: what the dump lacks and you know, for all rows: `{"temperature": 0.7}`; the table's
            metadata says that it was given.
        tokenizer: folder of a checkpoint whose tokenizer encodes dumps that hold text alone.
        columns: name that rcdiag knows -> name in the files.
        force: overwrite `output`.
        progress: listener for how far the conversion is.
    """
    target = Path(output)
    check_outputs([target], force=force, into_streams=False)
    read_given(given)
    parts = located(source, format)
    _check_target(target, parts)
    kinds = " + ".join(dict.fromkeys(part.reader.name for part in parts))
    files = sum(len(part.files) for part in parts)
    size = sum(file.path.stat().st_size for part in parts for file in part.files)
    yield (
        f"{parts[0].source}: {files:,} file{'s' if files > 1 else ''} of format {kinds}, "
        f"{size / 1e6:,.1f} MB\nwould write {target}"
    )
    return run(
        parts,
        target,
        columns=columns,
        given=given,
        tokenizer=tokenizer,
        progress=progress or SILENT,
    )


def _check_target(target: Path, parts: Sequence[SourceFiles]) -> None:
    """Refuse to write over a file of the dump itself."""
    for file in (file for part in parts for file in part.files):
        if isinstance(file.path, Path) and target.exists() and target.samefile(file.path):
            raise RcdiagError(
                f"{target}: a file of the dump that is to be converted", hint="another path"
            )
