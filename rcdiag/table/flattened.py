"""A parquet file whose tokens stand in fields of structs is written again with flat columns.

A field of a struct becomes the column `struct.field`, as it does in JSON lines. Of a list of
structs, such as one of each token, it becomes a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import lengths_of, values_of
from rcdiag.table.naming import TOKENS, candidates
from rcdiag.table.readers.parquet import open_parquet, read_rows_of
from rcdiag.table.remote_file import AnyFile
from rcdiag.table.schema import metadata_of
from rcdiag.table.writer import TableWriter

# Structs further inside of each other stay what they are.
DEEPEST = 4


def is_nested(schema: pa.Schema, renames: Mapping[str, str]) -> bool:
    """Tell whether a struct holds the tokens, or a column that the user named by its path."""
    structs = {field.name for field in schema if pt.is_struct(field.type) or _lists(field.type)}
    if not structs:
        return False
    paths = [own for own in renames.values() if own not in schema.names]
    if any(own.partition(".")[0] in structs for own in paths):
        return True
    lacks = renames.get(TOKENS, TOKENS) not in schema.names
    if not lacks or TOKENS in candidates(schema, renames):
        return False
    return any(pt.is_struct(field.type) or _of_numbers(field.type) for field in schema)


def write_flat(path: AnyFile, target: Path) -> None:
    """Write a file's rows to `target` with the fields of structs as columns."""
    schema = open_parquet(path).schema_arrow
    empty = _flat(schema.empty_table())
    twice = [name for name, times in Counter(empty.schema.names).items() if times > 1]
    if twice:
        raise RcdiagError(
            f"{path}: `{twice[0]}` is a column, and a field of a struct",
            hint="give one of them another name",
        )
    with TableWriter(target, empty.schema, metadata_of(schema)) as writer:
        for record in read_rows_of(path, schema.names, schema.names[0]):
            writer.write(_flat(pa.Table.from_batches([record])))


def _lists(kind: pa.DataType) -> bool:
    """Tell whether a type is a list of structs."""
    return (pt.is_list(kind) or pt.is_large_list(kind)) and pt.is_struct(kind.value_type)


def _of_numbers(kind: pa.DataType) -> bool:
    """Tell whether a type is a list of structs with whole numbers, as chat messages are not."""
    return _lists(kind) and any(pt.is_integer(part.type) for part in kind.value_type)


def _flat(table: pa.Table) -> pa.Table:
    for _ in range(DEEPEST):
        if any(pt.is_struct(field.type) or _lists(field.type) for field in table.schema):
            table = _by_field(table.flatten())
    return table


def _by_field(table: pa.Table) -> pa.Table:
    """Return a table with a column of lists for each field of its lists of structs."""
    if not any(_lists(field.type) for field in table.schema):
        return table
    columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if not _lists(field.type):
            columns[field.name] = column
            continue
        rows = column.combine_chunks()
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths_of(rows))]))
        for part, values in zip(field.type.value_type, values_of(rows).flatten(), strict=True):
            columns[f"{field.name}.{part.name}"] = pa.LargeListArray.from_arrays(
                offsets, values, mask=rows.is_null() if rows.null_count else None
            )
    return pa.table(columns)
