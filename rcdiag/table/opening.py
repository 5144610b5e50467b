"""Opening a trajectory table: files of one format, rows in memory, or what rcdiag wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from rcdiag.errors import RcdiagError
from rcdiag.table import given as given_values
from rcdiag.table import missing
from rcdiag.table import schema as columns
from rcdiag.table.in_memory import name_in_memory, write_rows
from rcdiag.table.naming import Naming, naming_of
from rcdiag.table.readers.parquet import PARQUET, open_parquet
from rcdiag.table.remote import AnyFile
from rcdiag.table.rewritten import Copies
from rcdiag.table.schema import common_schema
from rcdiag.table.scratch import Scratch
from rcdiag.table.sources import SourceFile, SourceFiles
from rcdiag.table.table import Origin, RowsOfTable, Table, TableFile, named_by_url

if TYPE_CHECKING:
    from rcdiag.table.conversion import OnProgress


def open_parts(
    parts: Sequence[SourceFiles],
    renames: Mapping[str, str] | None = None,
    needed: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    on_progress: OnProgress | None = None,
    beside: Path | None = None,
) -> Table:
    """Open the files of several sources as one table; all sources must have one format.

    `renames` maps canonical column names to the names in the files; an empty name means that no
    column is read as that one. Unmapped columns of parquet files are renamed if they have a name
    that other programs use and pass all checks. `given` holds values for all rows that the files
    lack. A table without `response_ids` or without a mapped column is refused; the error also names
    the missing columns of `needed`. Parquet is read in place: only its footers, and the first rows
    of a file whose columns have other names. Files of another format are converted to parquet here,
    once.

    `tokenizer` is a folder with a tokenizer that encodes text-only dumps; `on_progress` is called
    during conversion. Converted files are written to a temporary folder: next to the file `beside`
    if it is given, else in the system's temporary folder.
    """
    reader = parts[0].reader
    files = [file for part in parts for file in part.files]
    values = given_values.read_given(given)
    if reader.any_names:
        with named_by_url(files):
            copies = Copies(reader, files, beside, on_progress)
            table = _table(parts[0].source, copies, renames or {}, needed)
    else:
        table = _converted(parts, renames or {}, values, tokenizer, on_progress, beside)
    # Copies of remote files are kept as long as the table.
    scratch = Scratch.together([table.scratch, *(part.scratch for part in parts)])
    table = _with_absent_policies(replace(table, scratch=scratch))
    return _with_given(table, values) if reader.any_names else table


def _converted(
    parts: Sequence[SourceFiles],
    renames: Mapping[str, str],
    given: Mapping[str, Any],
    tokenizer: str | None,
    on_progress: OnProgress | None,
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
            tokenizer=tokenizer,
            on_progress=on_progress,
            left=[name for part in parts for name in part.left],
        )
    except BaseException:
        scratch.remove()
        raise
    return replace(open_written(target, made.origin), scratch=scratch, conversion=made)


def open_written(path: Path, origin: Origin | RowsOfTable | None = None) -> Table:
    """Open a parquet file that rcdiag wrote, whose columns have canonical names.

    `origin` knows the rows of the user's files from which the rows were made; messages then name
    those, otherwise the file itself.
    """
    parquet = open_parquet(path)
    rows, schema = parquet.metadata.num_rows, columns.versions_are_numbers(parquet.schema_arrow)
    file = TableFile(path, rows, 0)
    if origin is not None:
        first = origin.files[0]
        file = TableFile(first.path, rows, 0, converted=path, url=first.url, origin=origin)
    return _with_absent_policies(Table((file,), schema, {}))


def _with_absent_policies(table: Table) -> Table:
    """Return the table without log-prob columns that are null in every row: nothing is recorded."""
    absent = {f"{policy}_log_probs" for policy in table.policies}
    absent = {name for name in absent if table.is_null(name)}
    if not absent:
        return table
    schema = _without(table.schema, absent)
    return replace(table, schema=schema, absent=table.absent | absent)


def open_rows(
    rows: object,
    renames: Mapping[str, str] | None = None,
    needed: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
) -> Table:
    """Open an in-memory table as `open_parts` opens files.

    It is written to a parquet file once, which is deleted with the table.
    """
    name = name_in_memory(rows)
    if name is None:
        raise RcdiagError(
            f"a {type(rows).__name__} is not a table",
            hint="give a path, a data frame, an Arrow table, or a mapping of columns; a list holds "
            "paths, or rows that are mappings: concatenate several frames first",
        )
    scratch = Scratch()
    path = scratch.path / "000000.parquet"
    write_rows(rows, name, path)
    part = SourceFiles(name, PARQUET, (SourceFile(path, name),), scratch)
    return open_parts([part], renames, needed, given)


def _without(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    fields = [field for field in schema if field.name not in names]
    return pa.schema(fields, metadata=schema.metadata)


def _with_given(table: Table, given: Mapping[str, Any]) -> Table:
    """Return a table of parquet files with the values that the user gives for all rows.

    Recorded values must not contradict them. Nothing is written: the values are filled in when rows
    are read.
    """
    if not given:
        return table
    given_values.check_choices(given, (), table.name)
    schema, values = table.schema, given_values.of_all_rows(given)
    if recorded := [name for name in values if name in schema.names]:
        for batch in table.batches(recorded):
            given_values.check_agreement(batch.table, values, batch.where)
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
    return replace(table, schema=columns.with_metadata(schema, metadata), given=given)


def _table(source: str, copies: Copies, renames: Mapping[str, str], needed: Sequence[str]) -> Table:
    """Make one table of parquet files that all have the same columns.

    Renames that rcdiag chooses itself are decided by the first file.
    """
    mapped = {name: own for name, own in renames.items() if own}
    off = frozenset(renames) - set(mapped)
    naming = Naming(off=off)
    opened: list[TableFile] = []
    absent: set[str] = set()
    schemas: list[pa.Schema] = []
    schema: pa.Schema | None = None
    first_row = 0
    for number, source_file in enumerate(copies.files):
        path = source_file.path
        written, origin = copies.of(number, mapped)
        parquet = open_parquet(written or path)
        in_file = parquet.schema_arrow
        if schema is None:
            missing.check_names(renames, in_file, str(path))
            naming = naming_of(written or path, path, mapped, off)
            mapped = {**mapped, **naming.taken}
        if opened and _tokens_in(mapped) not in in_file.names:
            first = open_parquet(opened[0].parquet).schema_arrow
            differ = sorted(set(in_file.names) ^ set(first.names))
            raise _unlike(path, in_file, opened[0].name, first, differ)
        if not {_tokens_in(mapped), *mapped.values()} <= set(in_file.names):
            missing.check_columns(["response_ids", *needed], in_file, mapped, str(path), naming)
        file_schema = _canonical(in_file, mapped, path)
        absent |= {field.name for field in file_schema if pt.is_null(field.type)}
        if "response_ids" in absent:
            raise RcdiagError(
                f"{path}: column `{_tokens_in(mapped)}` holds no tokens, it is null in all rows",
                hint="an empty response is an empty list; drop rows that were never sampled",
            )
        file_schema = _without(file_schema, absent)
        columns.check_types(file_schema, str(path))
        schema = file_schema if schema is None else _of_both(schema, file_schema, path, opened)
        schemas.append(file_schema)
        rows = parquet.metadata.num_rows
        opened.append(TableFile(path, rows, first_row, written, source_file.url, origin))
        first_row += rows
    if first_row == 0:
        raise RcdiagError(f"{source}: the table has zero rows", hint="was the dump finished?")
    assert schema is not None
    kinds = {field.name: field.type for field in schema}
    own_kinds = [{field.name: field.type for field in own} for own in schemas]
    opened = [
        replace(file, differs=own != kinds) for file, own in zip(opened, own_kinds, strict=True)
    ]
    return Table(
        tuple(opened), schema, mapped, copies.scratch, naming=naming, absent=frozenset(absent)
    )


def _tokens_in(renames: Mapping[str, str]) -> str:
    """Return the name of the response token column in the files."""
    return renames.get("response_ids", "response_ids")


def _canonical(file_schema: pa.Schema, renames: Mapping[str, str], path: AnyFile) -> pa.Schema:
    """Return the file's schema with mapped columns under their canonical names."""
    back: dict[str, str] = {}
    for name, in_file in renames.items():
        if name in file_schema.names and name != in_file and name not in renames.values():
            raise RcdiagError(
                f"{path}: {columns.column_setting({name: in_file})}, but a column `{name}` is "
                "there as well",
                hint=f"drop or rename `{name}` in the file",
            )
        if in_file in back:
            raise RcdiagError(
                f"{columns.column_setting({name: in_file})}: `{in_file}` is already read as "
                f"`{back[in_file]}`",
                hint="map each column of the file once: leave out one of the two",
            )
        back[in_file] = name
    if back.get("response_ids", "response_ids") != "response_ids" and "response_ids" not in renames:
        raise RcdiagError(
            f"{path}: {columns.column_setting({back['response_ids']: 'response_ids'})}, so that no "
            "column is left for the tokens of responses",
            hint=f"{columns.column_setting({'response_ids': 'NAME'})} as well, or leave it out",
        )
    fields = [field.with_name(back.get(field.name, field.name)) for field in file_schema]
    return columns.versions_are_numbers(pa.schema(fields, metadata=file_schema.metadata))


def _of_both(
    table_schema: pa.Schema, file_schema: pa.Schema, path: AnyFile, files: list[TableFile]
) -> pa.Schema:
    """Return the schema of a table after a file is added.

    Files of recorders may differ in their columns; all other files must have the same columns.
    """
    if file_schema.equals(table_schema):
        return table_schema
    file_types = {field.name: field.type for field in file_schema}
    table_types = {field.name: field.type for field in table_schema}
    differ = sorted(
        name
        for name in file_types.keys() | table_types.keys()
        if file_types.get(name) != table_types.get(name)
    )
    if not differ:  # only the order of the columns differs
        return table_schema
    if columns.is_recorded(table_schema) and columns.is_recorded(file_schema):
        schema, differ = common_schema(table_schema, file_schema)
        if not differ:
            return schema.with_metadata(table_schema.metadata)
    raise _unlike(path, file_schema, files[0].name, table_schema, differ)


def _unlike(
    path: AnyFile, own: pa.Schema, first: str, of_first: pa.Schema, differ: Sequence[str]
) -> RcdiagError:
    """Return the error for files that do not form one table, with the columns that differ."""
    lacks = [f"`{name}`" for name in differ if name not in own.names]
    more = [f"`{name}`" for name in differ if name not in of_first.names]
    kinds = [
        f"`{name}` is {own.field(name).type}, not {of_first.field(name).type}"
        for name in differ
        if name in own.names and name in of_first.names
    ]
    parts = [f"it has no {', '.join(lacks)}"] if lacks else []
    parts += [f"it also has {', '.join(more)}"] if more else []
    return RcdiagError(
        f"{path}: not part of one table with {first}: {'; '.join([*parts, *kinds])}",
        hint="files that are given together are read as one table, with the same columns in each: "
        "give those of one dump, by name or by a glob such as 'step_*.parquet', or each file alone",
    )
