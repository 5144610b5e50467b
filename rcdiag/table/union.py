"""Files of one recorder, or of several, are one table though some have columns that others lack."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.columns import ragged
from rcdiag.table.schema import ENTROPY

# What a file's metadata holds of the recorder that wrote it. Files that have it may differ in
# their columns and are one table all the same.
RECORDER = "recorder"


def united(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return a schema with the columns of both, and of two widths of a number the wider one."""
    try:
        return pa.unify_schemas([one, other], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        name = next(
            name
            for name in other.names
            if name in one.names and not _unite(one.field(name), other.field(name))
        )
        raise RcdiagError(
            f"column `{name}` was {one.field(name).type} before and is {other.field(name).type} "
            "now",
            hint="values of one column are of one kind; give the others another name",
        ) from error


def _unite(one: pa.Field, other: pa.Field) -> bool:
    try:
        pa.unify_schemas([pa.schema([one]), pa.schema([other])], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns and types of a schema; those that they lack are null.

    A mask that rows lack is all ones, and advantages and entropies that they lack are NaN.
    """
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.chunked_array([_absent(rows, field)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(list(schema)))


def _absent(rows: pa.Table, field: pa.Field) -> pa.Array:
    """Return what a column holds for rows that were stored without it."""
    if field.name == "response_mask":
        value: float = 1
    elif field.name == "advantages" or ENTROPY.fullmatch(field.name):
        value = float("nan")
    else:
        return pa.nulls(rows.num_rows, field.type)
    ids = rows.column("response_ids").combine_chunks()
    lengths = pc.list_value_length(ids).to_numpy()
    values = np.full(int(lengths.sum()), value)
    return ragged(values, lengths).cast(field.type)
