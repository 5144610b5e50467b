"""Open parquet files as one table: the user's, or one that rcdiag wrote."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.types as pt

from rcdiag.errors import RcdiagError
from rcdiag.table import missing
from rcdiag.table import schema as columns
from rcdiag.table.naming import Naming, naming_of
from rcdiag.table.readers.parquet import open_parquet
from rcdiag.table.remote import AnyFile
from rcdiag.table.rewritten import Copies
from rcdiag.table.schema import common_schema
from rcdiag.table.sources import SourceFile
from rcdiag.table.table import Origin, RowsOfTable, Table, TableFile


def open_written(path: Path, origin: Origin | RowsOfTable | None = None) -> Table:
    """Open a parquet file that rcdiag wrote, whose columns have canonical names.

    `origin` knows the rows of the user's files from which the rows were made; messages then name
    those, otherwise the file itself.
    """
    parquet = open_parquet(path)
    rows, schema = parquet.metadata.num_rows, columns.versions_are_numbers(parquet.schema_arrow)
    if origin is None:
        file = TableFile(SourceFile(path), rows, 0)
    else:
        file = TableFile(origin.files[0], rows, 0, converted=path, origin=origin)
    return without_absent_policies(Table((file,), schema, {}))


def without_absent_policies(table: Table) -> Table:
    """Return the table without log-prob columns that are null in every row: nothing is recorded."""
    absent = {f"{policy}_log_probs" for policy in table.policies}
    absent = {name for name in absent if table.is_null(name)}
    if not absent:
        return table
    schema = _without(table.schema, absent)
    return replace(table, schema=schema, absent=table.absent | absent)


def open_parquet_files(
    source: str, copies: Copies, renames: Mapping[str, str], needed: Sequence[str]
) -> Table:
    """Open parquet files, or parquet copies of them, that all have the same columns.

    Of files only the footers are read, and the first rows of a file whose columns have other names.
    `renames` is the user's mapping; renames that rcdiag chooses itself are decided by the first
    file. A table without `response_ids` or without a mapped column is refused; the error also names
    the missing columns of `needed`, and calls an empty table `source`.
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
            raise _unlike(path, in_file, opened[0].source.name, first, differ)
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
        opened.append(TableFile(source_file, rows, first_row, written, origin))
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


def _without(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    fields = [field for field in schema if field.name not in names]
    return pa.schema(fields, metadata=schema.metadata)


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
    raise _unlike(path, file_schema, files[0].source.name, table_schema, differ)


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
