"""Files of one dump may hold other columns and types; the table has one schema for all of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from rcdiag.table.arrow import lengths_of, ragged
from rcdiag.table.schema import ENTROPY, KEY, NUMBER, TOKEN_FLOATS, column_spec, is_list

# Columns that have one type in every table, whatever a file has.
TYPES: dict[str, pa.DataType] = {
    "response_ids": pa.list_(pa.int32()),
    "prompt_ids": pa.list_(pa.int32()),
    "response_mask": pa.list_(pa.uint8()),
    "step": pa.int64(),
    "finish_reason": pa.string(),
}


def table_type(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the type that a column of a converted table has, given that of a reader's column."""
    if pt.is_null(kind):
        return kind
    if name in TYPES:
        return TYPES[name]
    column = column_spec(name)
    if column is TOKEN_FLOATS:
        return pa.list_(pa.float64() if pt.is_float64(kind.value_type) else pa.float32())
    if column is KEY or name == "policy_version":
        if is_list(kind):
            return pa.list_(pa.int64())
        value = kind.value_type if pt.is_dictionary(kind) else kind
        return pa.int64() if pt.is_integer(value) else pa.string()
    if column is NUMBER:
        return pa.int64() if name == "top_k" and pt.is_integer(kind) else pa.float64()
    return kind


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both; None where there is none."""
    if one.equals(other) or pt.is_null(other):
        return one
    if pt.is_null(one):
        return other
    if is_list(one) and is_list(other):
        value = common_type(one.value_type, other.value_type)
        return None if value is None else pa.list_(value)
    if {True, False} == {pt.is_string(one), pt.is_string(other)}:
        number = one if pt.is_string(other) else other
        return pa.string() if pt.is_integer(number) else None
    try:
        schemas = [pa.schema([("value", kind)]) for kind in (one, other)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def common_schema(one: pa.Schema, other: pa.Schema) -> tuple[pa.Schema, list[str]]:
    """Return the columns of both with their common types, and the columns that have none."""
    fields, without = [], []
    for name in dict.fromkeys([*one.names, *other.names]):
        kinds = [schema.field(name).type for schema in (one, other) if name in schema.names]
        kind = common_type(kinds[0], kinds[-1])
        if kind is None:
            without.append(name)
        else:
            fields.append(pa.field(name, kind))
    return pa.schema(fields), without


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema, in its types; those that they lack are null.

    A mask that they lack counts every response token as sampled, as that of a table without masks.
    Advantages and entropies of tokens that they lack are NaN. Without `response_ids`, in rows under
    other names, they are null too.
    """
    columns = []
    tokens = "response_ids" in table.column_names
    for field in schema:
        if field.name in table.column_names:
            columns.append(cast(table[field.name], field.type))
        elif field.name == "response_mask" and tokens:
            columns.append(_everywhere(1, table["response_ids"], field.type))
        elif tokens and (field.name == "advantages" or ENTROPY.fullmatch(field.name)):
            columns.append(_everywhere(float("nan"), table["response_ids"], field.type))
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
    return pa.table(columns, schema=schema)


def cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column in another type; one that has the type is returned as it is.

    Arrow's own cast of lists of nulls to their own type makes lists longer than their values.
    """
    return column if column.type.equals(kind) else column.cast(kind)


def _everywhere(value: float, response_ids: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return a column with one value at every response token."""
    lengths = lengths_of(response_ids)
    return ragged(np.full(lengths.sum(), value), lengths).cast(kind)
