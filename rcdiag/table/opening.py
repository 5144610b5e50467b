"""Open whatever a user names as one trajectory table; several dumps of one run are joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from rcdiag.errors import RcdiagError
from rcdiag.progress import SILENT, Progress
from rcdiag.table import given as given_values
from rcdiag.table import missing
from rcdiag.table.column_names import names_for, spelled
from rcdiag.table.in_memory import InMemory, write_rows
from rcdiag.table.join import join_tables
from rcdiag.table.naming import POLICIES, Naming
from rcdiag.table.parquet_files import open_parquet_files, open_written, without_absent_policies
from rcdiag.table.readers.parquet import open_parquet
from rcdiag.table.rewritten import Copies
from rcdiag.table.schema import policies_in, with_metadata
from rcdiag.table.scratch import Scratch
from rcdiag.table.sources import FileSource, SourceFiles, check_remote, find_sources
from rcdiag.table.table import Table, named_by_url

# A dump in any format that rcdiag knows: a file, a directory, a glob, a URL; a list of these; an
# open table; or data in memory: a data frame, an Arrow table, a mapping of columns, a list of rows.
Source = FileSource | Table | InMemory
# At most this many changes of a conversion are reported while a command runs.
CHANGES = 6


def open_table(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    needed: Sequence[str] = (),
    format: str | None = None,
    given: Mapping[str, Any] | None = None,
    tokenizer: str | Path | None = None,
    progress: Progress | None = None,
) -> Table:
    """Open a dump of any format that rcdiag knows as a trajectory table.

    Of parquet only the footers are read, and a few rows if columns have other names; other formats
    and tables in memory are converted once, into a temporary folder that is deleted with the table.
    A table without tokens is refused, and the error also names the columns of `needed` that are
    missing.

    Args:
        source: a file, a directory, a glob or a URL that fsspec knows (s3://, gs://, hf://), or a
            list of these. Sources of one format are concatenated in that order; sources of two
            formats, or with different policies, are taken for dumps of one run and joined by
            `sample_id`, or without it by equal tokens. Or a table in memory: a pandas or polars
            frame, an Arrow table or stream, a mapping of columns (each a list, an array or a
            tensor), or a list of rows (each a mapping).
        columns: name that rcdiag knows -> name in the files: `{"old_log_probs": "my_trainer"}`.
            Names that trainers and engines use are recognised without it, unless the values
            contradict; an empty name leaves the column out.
        needed: columns that the error for a table without tokens also names.
        format: the format of the files, if it cannot be recognised.
        given: values that the dump lacks, for all rows: `{"temperature": 0.7}`. Values that the
            dump has must be equal to them.
        tokenizer: folder of a checkpoint whose tokenizer encodes dumps that hold only text.
        progress: listener for the progress of a conversion.
    """
    if isinstance(source, Table):
        if columns or given or format:
            raise RcdiagError(
                "columns of an open table cannot be mapped or given",
                hint="give them to open_table(source, columns=..., given=..., format=...)",
            )
        return source
    named = isinstance(source, (str, Path)) or (
        isinstance(source, Sequence) and all(isinstance(one, (str, Path)) for one in source)
    )
    parts = find_sources(cast(FileSource, source), format) if named else [write_rows(source)]
    progress = progress or SILENT
    table = open_files(parts, columns, given, needed=needed, tokenizer=tokenizer, progress=progress)
    cut = any(file.converted is not None for file in table.files)
    # Without changes if only structs were flattened.
    done = table.metadata.get("conversion", {"changes": {}})
    if table.conversion is not None or table.joined is not None or cut:
        texts = list(done["changes"])
        if len(texts) > CHANGES + 1:
            more = f"and {len(texts) - CHANGES} more changes: rcdiag convert ... -v names them"
            texts = [*texts[:CHANGES], more]
        for text in texts:
            progress.say(f"{done['format']}: {text}")
    return table


def open_joined(
    sources: Sequence[Source],
    *,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    given: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Table:
    """Open one table, or several joined on `sample_id`, of which `made_from` has all files."""
    check_remote([str(source) for source in sources if isinstance(source, (str, Path))], format)
    tables = [
        open_table(source, columns=columns, format=format, given=given, progress=progress)
        for source in sources
    ]
    if not tables:
        raise RcdiagError("no table to open", hint="give at least one parquet file")
    if len(tables) == 1:
        return tables[0]
    files = tuple(file for one in tables for file in one.files)
    kept = Scratch.together([one.scratch for one in tables])
    return replace(
        join_tables(tables),
        made_from=replace(tables[0], files=files, scratch=kept),
        given_as=tuple(name for one in tables for name in one.given_as or (one.name,)),
    )


def open_files(
    parts: Sequence[SourceFiles],
    columns: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    *,
    needed: Sequence[str] = (),
    tokenizer: str | Path | None = None,
    progress: Progress = SILENT,
    beside: Path | None = None,
) -> Table:
    """Open sources as one table; dumps of one run with different policies are joined.

    Converted files go to a temporary folder, next to the file `beside` if that is given.
    """
    values = given_values.read_given(given)

    def opened(some: Sequence[SourceFiles]) -> Table:
        """Open the files of several sources of one format as one table."""
        if some[0].reader.any_names:
            table = _in_place(some, columns or {}, values, needed, progress, beside)
        else:
            table = _converted(some, columns or {}, values, tokenizer, progress, beside)
        # Copies of remote files are kept as long as the table.
        scratch = Scratch.together([table.scratch, *(part.scratch for part in some)])
        return replace(table, scratch=scratch)

    by_format: dict[str, list[SourceFiles]] = {}  # in the order in which formats first appear
    for part in parts:
        by_format.setdefault(part.reader.name, []).append(part)
    tables: list[Table] = []
    for kind in by_format.values():
        # Files that are not parquet are converted first, to find out which policies they hold.
        whole = None if kind[0].reader.read is None and len(kind) > 1 else opened(kind)
        groups = _by_policies(kind, whole, columns or {})
        tables += [whole or opened(kind)] if len(groups) == 1 else map(opened, groups)
    table = tables[0]
    if len(tables) > 1:
        names = {name: own for table in tables for name, own in table.naming.taken.items()}
        table = replace(join_tables(tables, of_one_run=True, beside=beside), naming=Naming(names))
    return replace(table, given_as=tuple(part.source for part in parts))


def _in_place(
    parts: Sequence[SourceFiles],
    renames: Mapping[str, str],
    given: Mapping[str, Any],
    needed: Sequence[str],
    progress: Progress,
    beside: Path | None,
) -> Table:
    """Open files whose columns may have any names: parquet, which is read in place, or JSON lines.

    Given values are filled in when rows are read; recorded ones must not contradict them.
    """
    files = [file for part in parts for file in part.files]
    with named_by_url(files):
        copies = Copies(parts[0].reader, files, beside, progress.converted)
        table = open_parquet_files(parts[0].source, copies, renames, needed)
    table = without_absent_policies(table)
    if not given:
        return table
    given_values.check_choices(given, (), table.name)
    schema, of_rows = table.schema, given_values.of_all_rows(given)
    if recorded := [name for name in of_rows if name in schema.names]:
        for batch in table.batches(recorded):
            given_values.check_agreement(batch.table, of_rows, batch.where)
    size = given.get(given_values.GROUP_SIZE)
    if size is not None and "group_id" in schema.names:
        counts: Counter[Any] = Counter()
        for batch in table.batches(["group_id"]):
            counts.update(batch.table["group_id"].to_pylist())
        given_values.check_group_sizes(np.array(list(counts.values())), size, table.name)
    elif size is not None:
        given_values.check_divisible(table.num_rows, size, table.name)
    for name, value in given.items():
        column = given_values.column_of(name)
        if column not in schema.names:
            schema = schema.append(pa.field(column, given_values.type_of(name, value)))
    metadata = {**table.metadata, "given": {**table.metadata.get("given", {}), **given}}
    return replace(table, schema=with_metadata(schema, metadata), given=given)


def _converted(
    parts: Sequence[SourceFiles],
    renames: Mapping[str, str],
    given: Mapping[str, Any],
    tokenizer: str | Path | None,
    progress: Progress,
    beside: Path | None,
) -> Table:
    """Convert the files of sources of one format to one parquet file, and open it."""
    from rcdiag.table.conversion import convert_files  # not needed for parquet

    missing.check_names(renames)
    files = [file for part in parts for file in part.files]
    scratch = Scratch(beside)
    target = scratch.path / "converted.parquet"
    try:
        made = convert_files(
            parts[0].reader,
            files,
            target,
            given=given,
            renames={name: own for name, own in renames.items() if own},
            tokenizer=None if tokenizer is None else str(tokenizer),
            on_progress=progress.converted,
            left=[name for part in parts for name in part.left],
        )
    except BaseException:
        scratch.remove()
        raise
    return replace(open_written(target, made.origin), scratch=scratch, conversion=made)


def _by_policies(
    parts: Sequence[SourceFiles], whole: Table | None, columns: Mapping[str, str]
) -> list[list[SourceFiles]]:
    """Group sources of one format into tables: one, or several if their policies are disjoint.

    `whole` is the table of all of them if they had to be converted; `columns` is the user's
    mapping. Files of a format whose columns the user names form one table.
    """
    if len(parts) == 1 or (parts[0].reader.any_names and parts[0].reader.read is not None):
        return [list(parts)]
    if whole is None:
        policies = [_policies_of_parquet(part, columns) for part in parts]
    else:
        assert whole.conversion is not None
        of_file = whole.conversion.policies_of
        policies = [
            set().union(*(of_file.get(cast(Path, file.path), set()) for file in part.files))
            for part in parts
        ]
    kinds = list(dict.fromkeys(frozenset(names) for names in policies if names))
    if len(kinds) < 2 or sum(map(len, kinds)) > len(frozenset().union(*kinds)):
        return [list(parts)]
    # Sources without any log-probs are opened together with the first group of policies.
    owner = [next((n for n, kind in enumerate(kinds) if names & kind), 0) for names in policies]
    return [
        [part for part, own in zip(parts, owner, strict=True) if own == number]
        for number in range(len(kinds))
    ]


def _policies_of_parquet(part: SourceFiles, columns: Mapping[str, str]) -> set[str]:
    """Return the policies that the first file of a source has, read from its footer."""
    names = set(open_parquet(part.files[0].path).schema_arrow.names)
    mapped = {name for name, in_file in columns.items() if in_file in names}
    known = {
        column
        for column in POLICIES
        if any(own in names_for(column) or spelled(own) == column for own in names)
    }
    return set(policies_in([*(names - set(columns.values())), *mapped, *known]))
