"""The canonical columns of the trajectory table, their types and their metadata.

Files and batches of one dump may hold other columns and types: `common_schema` unites two schemas,
and `conformed` brings rows to one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct

from rcdiag.errors import RcdiagError, mapping_setting, nearest
from rcdiag.table.arrow import lengths_of, ragged
from rcdiag.table.trajectories import POLICY_NAME

METADATA_KEY = b"rcdiag"
FORMAT_VERSION = 1
# What the metadata of a file holds of the recorder that wrote it. Files that have it may differ in
# their columns and are one table all the same.
RECORDER = "recorder"

# Objects inside objects of metadata; what rcdiag writes has eight at most.
DEEPEST = 64

LOG_PROBS = re.compile(rf"(?P<policy>{POLICY_NAME.pattern})_log_probs")
ENTROPY = re.compile(rf"(?P<policy>{POLICY_NAME.pattern})_entropy")
KEPT_IDS = re.compile(rf"(?P<policy>{POLICY_NAME.pattern})_kept_ids")
ROUTED_EXPERTS = re.compile(rf"(?P<policy>{POLICY_NAME.pattern})_routed_experts")


class ColumnType(Struct, frozen=True):
    """The Arrow types that a canonical column may have, in words and as a test."""

    expected: str
    accepts: Callable[[pa.DataType], bool]


def is_list(kind: pa.DataType) -> bool:
    """Tell whether every row of a type is a list."""
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _list_of(element: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: is_list(kind) and element(kind.value_type)


def _is_text(kind: pa.DataType) -> bool:
    if pt.is_dictionary(kind):
        kind = kind.value_type
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


TOKEN_IDS = ColumnType("list<int32>", _list_of(pt.is_integer))
TOKEN_FLOATS = ColumnType("list<float32> or list<float64>", _list_of(pt.is_floating))
NUMBER = ColumnType("a number", lambda kind: pt.is_integer(kind) or pt.is_floating(kind))
KEY = ColumnType(
    "string or int64",
    lambda kind: (
        _is_text(kind) or pt.is_integer(kind.value_type if pt.is_dictionary(kind) else kind)
    ),
)
EXPERTS = ColumnType("list<list<uint16>>", _list_of(_list_of(pt.is_integer)))
LISTS_OF_IDS = ColumnType("list<list<int32>>", _list_of(_list_of(pt.is_integer)))

COLUMNS: dict[str, ColumnType] = {
    "response_ids": TOKEN_IDS,
    "prompt_ids": TOKEN_IDS,
    "response_mask": ColumnType(
        "list<uint8> or list<bool>",
        _list_of(lambda kind: pt.is_boolean(kind) or pt.is_integer(kind)),
    ),
    "sample_id": KEY,
    "group_id": KEY,
    "step": ColumnType("int64", pt.is_integer),
    "policy_version": ColumnType(
        "int64 or list<int32>", lambda kind: pt.is_integer(kind) or _list_of(pt.is_integer)(kind)
    ),
    "engine": KEY,
    "finish_reason": ColumnType("string", _is_text),
    "reward": NUMBER,
    "advantage": NUMBER,
    "advantages": TOKEN_FLOATS,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "top_k": NUMBER,
    "min_p": NUMBER,
}


def column_spec(name: str) -> ColumnType | None:
    """Return the types that a column may have; None for a column that is not canonical."""
    if LOG_PROBS.fullmatch(name) or ENTROPY.fullmatch(name):
        return TOKEN_FLOATS
    if ROUTED_EXPERTS.fullmatch(name):
        return EXPERTS
    if KEPT_IDS.fullmatch(name):
        return LISTS_OF_IDS
    return COLUMNS.get(name)


def column_setting(columns: Mapping[str, str]) -> str:
    """Name the setting that reads columns of a file under the names that rcdiag knows."""
    return mapping_setting("columns", columns, "--column")


def has_token_lists(name: str) -> bool:
    """Tell whether a column has a list for each response token."""
    return bool(KEPT_IDS.fullmatch(name) or ROUTED_EXPERTS.fullmatch(name))


# How to restore a column of lists that a CSV file, or printing, turned into text.
LISTS_AS_TEXT = (
    "read the lists back from their text (pandas: `frame[column].map(json.loads)`, polars: "
    "`pl.col(column).str.json_decode(pl.List(pl.Int32))`)"
)


def _number_in(kind: pa.DataType) -> str:
    """Say which field of a list of objects, as engines return them, looks like the log-prob."""
    inner = kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) else kind
    numbers = (
        [field.name for field in inner if pt.is_floating(field.type)] if pt.is_struct(inner) else []
    )
    return f"write its field `{numbers[0]}` alone, a number for each token" if numbers else ""


def check_types(schema: pa.Schema, file: str) -> None:
    """Refuse a schema with a canonical column of a wrong type."""
    for name, kind in zip(schema.names, schema.types, strict=True):
        column = column_spec(name)
        if column and not column.accepts(kind):
            fitting = [
                other
                for other, spec in COLUMNS.items()
                if spec.accepts(kind) and other not in schema.names
            ]
            meant = nearest(name, fitting, likeness=0.9)
            as_text = (pt.is_string(kind) or pt.is_large_string(kind)) and "list" in column.expected
            raise RcdiagError(
                f"{file}: column `{name}` is {kind}, wanted {column.expected}",
                hint=(
                    f"if it is `{meant}`: {column_setting({meant: name})}; else " if meant else ""
                )
                + (LISTS_AS_TEXT if as_text else _number_in(kind) or "cast the column")
                + ", or, if it means something else, give the right one by "
                f"{column_setting({name: 'OTHER_COLUMN'})}",
            )


def policies_in(names: list[str]) -> list[str]:
    """Return the policies with a `{policy}_log_probs` column, in the order of the columns."""
    return [match["policy"] for name in names if (match := LOG_PROBS.fullmatch(name))]


def metadata_of(schema: pa.Schema) -> dict[str, Any]:
    """Return the JSON object under file metadata key `rcdiag`; ValueError where there is none."""
    try:
        metadata: dict[str, Any] = json.loads((schema.metadata or {}).get(METADATA_KEY, b"{}"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    check_metadata(metadata)
    return metadata


def check_metadata(metadata: Any) -> None:
    """Raise ValueError where metadata have another shape than rcdiag writes.

    What is known of a policy may have any further keys. The text says which part is wrong.
    """
    _check_shape(metadata, Mapping, "it")
    _check_depth(metadata)
    for key in ("policies", "given", "conversion", "tokens_per_second"):
        _check_shape(metadata.get(key, {}), Mapping, f"`{key}`")
    for key in ("changes", "dropped"):
        _check_shape(metadata.get("conversion", {}).get(key, {}), Mapping, f"`conversion.{key}`")
    for name, facts in metadata.get("policies", {}).items():
        _check_shape(facts, Mapping, f"`policies.{name}`")
        for key in ("options", "engine_options", "versions"):
            if facts.get(key) is not None:
                _check_shape(facts[key], Mapping, f"`policies.{name}.{key}`")
        for key in ("name", "backend", "dtype", "model"):
            if facts.get(key) is not None:
                _check_shape(facts[key], str, f"`policies.{name}.{key}`")


def _check_shape(value: Any, shape: type, name: str) -> None:
    if not isinstance(value, shape):
        raise ValueError(f"{name} is no {'text' if shape is str else 'object'}")


def _check_depth(value: Any, depth: int = 0) -> None:
    if depth > DEEPEST:
        raise ValueError("it is nested too deeply")
    inner = value.values() if isinstance(value, Mapping) else value
    for part in inner if isinstance(value, (Mapping, list)) else ():
        _check_depth(part, depth + 1)


def with_metadata(schema: pa.Schema, metadata: Mapping[str, object]) -> pa.Schema:
    """Return a schema with an object under rcdiag's key, beside other metadata."""
    raw = {**(schema.metadata or {}), METADATA_KEY: json.dumps(metadata).encode()}
    return schema.with_metadata(raw)


def is_recorded(schema: pa.Schema) -> bool:
    """Tell whether a file was written by a recorder."""
    try:
        return RECORDER in metadata_of(schema)
    except ValueError:
        return False


VERSION = "policy_version"
WHOLE_NUMBER = r"^\s*[+-]?\d{1,18}\s*$"


STEP = "step"
# A number, or a number behind the word for a step: `12`, `12.0`, `step_12`, `global_step_12`.
STEP_TEXT = (
    r"(?i)^\s*(?:(?:global|train|training)?[ _-]?(?:step|iter|iteration)[ _:=-]?)?"
    r"(\d{1,18})(?:\.0*)?\s*$"
)


def versions_are_numbers(schema: pa.Schema) -> pa.Schema:
    """Return a table's schema with versions of weights as numbers where files hold text, and steps
    where they hold text or floats.
    """
    for name, others in ((VERSION, _is_text), (STEP, _is_step_of_other_type)):
        index = schema.get_field_index(name)
        if index >= 0 and others(schema.field(index).type):
            schema = schema.set(index, pa.field(name, pa.int64()))
    return schema


def _is_step_of_other_type(kind: pa.DataType) -> bool:
    return _is_text(kind) or pt.is_floating(kind)


def with_steps_as_numbers(table: pa.Table, where: Callable[[int], str]) -> pa.Table:
    """Return training steps as int64, from whole floats or text with one number; others are
    refused, `where` the row is.

    Columns of whole numbers with nulls are floats in pandas; folders of checkpoints are names.
    """
    index = table.column_names.index(STEP) if STEP in table.column_names else -1
    if index < 0 or not _is_step_of_other_type(table.schema.field(index).type):
        return table
    import pyarrow.compute as pc

    own = table.column(index).combine_chunks()
    if pt.is_floating(own.type):
        numbers = own.cast(pa.float64())
        fits = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), 2.0**53))
        steps = pc.if_else(fits, numbers, None)
    else:
        text = own.cast(pa.string())
        fits = pc.match_substring_regex(text, STEP_TEXT)
        steps = pc.if_else(fits, pc.replace_substring_regex(text, STEP_TEXT, r"\1"), None)
    others = pc.indices_nonzero(pc.invert(pc.fill_null(fits, True)))
    if len(others):
        row = others[0].as_py()
        value = own[row].as_py()
        raise RcdiagError(
            f"{where(row)}: column `{STEP}` holds {value!r}, which is no training step",
            hint="steps are whole numbers, or text with one (`step_12`); is it another column? "
            f"{column_setting({STEP: 'OTHER_COLUMN'})}",
        )
    return table.set_column(index, STEP, steps.cast(pa.int64()))


def with_versions_as_numbers(table: pa.Table) -> pa.Table:
    """Return `policy_version` as int64; text that is no whole number is left out (null)."""
    index = table.column_names.index(VERSION) if VERSION in table.column_names else -1
    if index < 0 or not _is_text(table.schema.field(index).type):
        return table
    import pyarrow.compute as pc

    text = table.column(index).cast(pa.string())
    number = pc.if_else(pc.match_substring_regex(text, WHOLE_NUMBER), text, None)
    trimmed = pc.replace_substring_regex(number, r"^\s*\+?|\s*$", "")
    return table.set_column(index, VERSION, trimmed.cast(pa.int64()))


# Rows of several files or batches get one schema

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
    Advantages and entropies of tokens that they lack are NaN. Without `response_ids` among the
    columns of the rows, they are null too.
    """
    columns = []
    tokens = "response_ids" in table.column_names
    for field in schema:
        if field.name in table.column_names:
            columns.append(as_type(table[field.name], field.type))
        elif field.name == "response_mask" and tokens:
            columns.append(_everywhere(1, table["response_ids"], field.type))
        elif tokens and (field.name == "advantages" or ENTROPY.fullmatch(field.name)):
            columns.append(_everywhere(float("nan"), table["response_ids"], field.type))
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
    return pa.table(columns, schema=schema)


def as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column in another type; one that has the type is returned as it is.

    Arrow's own cast of lists of nulls to their own type makes lists longer than their values.
    """
    return column if column.type.equals(kind) else column.cast(kind)


def _everywhere(value: float, response_ids: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return a column with one value at every response token."""
    lengths = lengths_of(response_ids)
    return ragged(np.full(lengths.sum(), value), lengths).cast(kind)
