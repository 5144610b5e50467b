"""`rcdiag.convert`: turn a dump in any format that rcdiag knows into a parquet table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rcdiag.api.usecase import Steps, usecase
from rcdiag.errors import RcdiagError
from rcdiag.files import check_outputs
from rcdiag.formats import plural
from rcdiag.progress import SILENT, Progress
from rcdiag.results import ConvertResult
from rcdiag.table.given import read_given
from rcdiag.table.sources import find_sources
from rcdiag.usecases.convert import convert as run


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
    """Turn a trainer's dump into a trajectory table; list what was changed and what is missing.

    Args:
        source: a trainer's dump or a parquet table: file, folder, glob or URL; several of one run
            are joined. In Python also an open `Table`, a data frame, an Arrow table, or a mapping
            of columns.
        output: parquet table to write.
        format: format of the dump, where its files do not show it.
        given: facts that the dump lacks, for all rows. `{"temperature": 0.7, "group_size": 8}`
        tokenizer: checkpoint folder with the tokenizer for dumps that hold only text. Prompts of
            dumps with messages beside token ids (rLLM) are compared with its chat template.
        columns: names of columns in the files, by the names that rcdiag knows; an empty one reads
            none.
        force: overwrite the output.
        progress: listener for progress.
    """
    target = Path(output)
    check_outputs([target], force=force, into_streams=False)
    read_given(given)
    parts = find_sources(source, format)
    paths = [file.path for part in parts for file in part.files]
    if target.exists() and any(isinstance(path, Path) and target.samefile(path) for path in paths):
        raise RcdiagError(
            f"{target}: a file of the dump that is to be converted", hint="give another path"
        )
    kinds = " + ".join(dict.fromkeys(part.reader.name for part in parts))
    size = sum(path.stat().st_size for path in paths)
    yield (
        f"{parts[0].source}: {plural(len(paths), 'file')} of format {kinds}, "
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
