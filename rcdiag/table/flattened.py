"""A parquet file whose tokens stand in fields of structs is written again with flat columns.

A field of a struct becomes the column `struct.field`, as it does in JSON lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.types as pt

from rcdiag.errors import RcdiagError
from rcdiag.table.naming import TOKENS, candidates
from rcdiag.table.readers.parquet import open_parquet, read_rows_of
from rcdiag.table.remote_file import AnyFile
from rcdiag.table.schema import metadata_of
from rcdiag.table.writer import TableWriter

# Structs further inside of each other stay what they are.
DEEPEST = 4


def is_nested(schema: pa.Schema, renames: Mapping[str, str]) -> bool:
    """Tell whether a struct holds the tokens, or a column that the user named by its path."""
    structs = {field.name for field in schema if pt.is_struct(field.type)}
    if not structs:
        return False
    paths = [own for own in renames.values() if own not in schema.names]
    if any(own.partition(".")[0] in structs for own in paths):
        return True
    lacks = renames.get(TOKENS, TOKENS) not in schema.names
    return lacks and TOKENS not in candidates(schema, renames)


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


def _flat(table: pa.Table) -> pa.Table:
    for _ in range(DEEPEST):
        if any(pt.is_struct(field.type) for field in table.schema):
            table = table.flatten()
    return table
