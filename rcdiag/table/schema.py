"""The canonical columns of the trajectory table, their types and their metadata.

Files and batches of one dump may differ in columns and types: `common_schema` merges two schemas,
and `conformed` casts rows to a schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
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
# Metadata key of files that a recorder wrote. Such files form one table even if their columns
# differ.
RECORDER = "recorder"

# Deepest nesting of metadata that is accepted; rcdiag itself writes at most eight levels.
DEEPEST = 64

LOG_PROBS = re.compile(rf"(?P<policy>{POLICY_NAME.pattern})_log_probs")
ENTROPY = re.compile(rf"(?P<policy>{POLICY_NAME.pattern})_entropy")
KEPT_IDS = re.compile(rf"(?P<policy>{POLICY_NAME.pattern})_kept_ids")
ROUTED_EXPERTS = re.compile(rf"(?P<policy>{POLICY_NAME.pattern})_routed_experts")


class ColumnType(Struct, frozen=True):
    """The Arrow types that a canonical column may have: in words, and as a predicate."""

    expected: str
    accepts: Callable[[pa.DataType], bool]


def is_list(kind: pa.DataType) -> bool:
    """Tell whether an Arrow type is a list."""
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
    """Return the types that a canonical column may have; None if the column is not canonical."""
    if LOG_PROBS.fullmatch(name) or ENTROPY.fullmatch(name):
        return TOKEN_FLOATS
    if ROUTED_EXPERTS.fullmatch(name):
        return EXPERTS
    if KEPT_IDS.fullmatch(name):
        return LISTS_OF_IDS
    return COLUMNS.get(name)


def column_setting(columns: Mapping[str, str]) -> str:
    """Return the option that maps columns of a file to canonical names, as the user writes it."""
    return mapping_setting("columns", columns, "--column")


def has_token_lists(name: str) -> bool:
    """Tell whether a column holds a list per response token."""
    return bool(KEPT_IDS.fullmatch(name) or ROUTED_EXPERTS.fullmatch(name))


# How to restore a column of lists that was written as text, as in CSV files.
LISTS_AS_TEXT = (
    "read the lists back from their text (pandas: `frame[column].map(json.loads)`, polars: "
    "`pl.col(column).str.json_decode(pl.List(pl.Int32))`)"
)


def _number_in(kind: pa.DataType) -> str:
    """Say which field of a list of objects (as engines return them) looks like the log-prob."""
    inner = kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) else kind
    numbers = (
        [field.name for field in inner if pt.is_floating(field.type)] if pt.is_struct(inner) else []
    )
    return f"write only its field `{numbers[0]}`, one number per token" if numbers else ""


def check_types(schema: pa.Schema, file: str, where: Callable[[str], str] | None = None) -> None:
    """Raise an error if a canonical column has a wrong type.

    The error names the file, or the file and row that `where` returns for the column.
    """
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
            place = where(name) if where else file
            raise RcdiagError(
                f"{place}: column `{name}` is {kind}, wanted {column.expected}",
                hint=(
                    f"if it is `{meant}`: {column_setting({meant: name})}; else " if meant else ""
                )
                + (LISTS_AS_TEXT if as_text else _number_in(kind) or "cast the column")
                + ", or, if it means something else, give the right one by "
                f"{column_setting({name: 'OTHER_COLUMN'})}",
            )


def first_of_wrong_type(name: str, values: pa.ChunkedArray) -> int:
    """Return the first row whose value a canonical column cannot hold, in a column that is refused.

    Among fractions, whole numbers are stored as floats, and values of several types as JSON text.
    If each row would do alone, it is the first row that has a value.
    """
    column = column_spec(name)
    rows = [(row, value) for row, value in enumerate(values.to_pylist()) if value is not None]
    for row, value in rows:
        with suppress(ValueError):  # text that is not JSON
            value = json.loads(value) if isinstance(value, str) else value
        own = pa.array([value])
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):  # fractions, or no numbers
            own = own.cast(pa.list_(pa.int64())) if column is not TOKEN_FLOATS else own
        if column is not None and not column.accepts(own.type):
            return row
    return rows[0][0]


def policies_in(names: list[str]) -> list[str]:
    """Return the policies with a `{policy}_log_probs` column, in the order of the columns."""
    return [match["policy"] for name in names if (match := LOG_PROBS.fullmatch(name))]


def score_columns(policy: str) -> list[str]:
    """Return the columns that scoring a policy writes, in the order of the fields of `Scores`."""
    names = ("log_probs", "entropy", "top_ids", "top_logprobs", "routed_experts")
    return [f"{policy}_{name}" for name in names]


def metadata_of(schema: pa.Schema, file: str) -> dict[str, Any]:
    """Return the JSON object under file metadata key `rcdiag`; an error if it is malformed."""
    try:
        metadata: dict[str, Any] = json.loads((schema.metadata or {}).get(METADATA_KEY, b"{}"))
        check_metadata(metadata)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise RcdiagError(
            f"{file}: the file metadata `rcdiag` cannot be read ({reason})",
            hint="remove that key from the file's metadata, or score the original table again",
        ) from error
    return metadata


def check_metadata(metadata: Any) -> None:
    """Raise ValueError if metadata do not have the structure that rcdiag writes.

    Facts about a policy may have any further keys. The message says which part is wrong.
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
        raise ValueError(f"{name} is not {'text' if shape is str else 'an object'}")


def _check_depth(value: Any, depth: int = 0) -> None:
    if depth > DEEPEST:
        raise ValueError("it is nested too deeply")
    inner = value.values() if isinstance(value, Mapping) else value
    for part in inner if isinstance(value, (Mapping, list)) else ():
        _check_depth(part, depth + 1)


def with_metadata(schema: pa.Schema, metadata: Mapping[str, object]) -> pa.Schema:
    """Return a schema with `metadata` as JSON under rcdiag's key; other metadata are kept."""
    raw = {**(schema.metadata or {}), METADATA_KEY: json.dumps(metadata).encode()}
    return schema.with_metadata(raw)


def is_recorded(schema: pa.Schema) -> bool:
    """Tell whether a recorder wrote the file."""
    try:
        return RECORDER in metadata_of(schema, "")
    except RcdiagError:
        return False


VERSION = "policy_version"
WHOLE_NUMBER = r"^\s*[+-]?\d{1,18}\s*$"


STEP = "step"
# A number, also after a word for a step: `12`, `12.0`, `step_12`, `global_step_12`.
STEP_TEXT = (
    r"(?i)^\s*(?:(?:global|train|training)?[ _-]?(?:step|iter|iteration)[ _:=-]?)?"
    r"(\d{1,18})(?:\.0*)?\s*$"
)


def versions_are_numbers(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which `policy_version` (if text) and `step` (if text or float) are
    int64, as they are after conversion.
    """
    for name, others in ((VERSION, _is_text), (STEP, _is_step_of_other_type)):
        index = schema.get_field_index(name)
        if index >= 0 and others(schema.field(index).type):
            schema = schema.set(index, pa.field(name, pa.int64()))
    return schema


def _is_step_of_other_type(kind: pa.DataType) -> bool:
    return _is_text(kind) or pt.is_floating(kind)


def with_steps_as_numbers(table: pa.Table, where: Callable[[int], str]) -> pa.Table:
    """Return rows with `step` as int64, from integral floats or text with one number.

    Any other value is refused, with the place that `where(row)` returns. Floats occur because
    pandas stores integers with nulls as floats, text because checkpoint folders are names.
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
            f"{where(row)}: column `{STEP}` holds {value!r}, which is not a training step",
            hint="steps are whole numbers, or text with one (`step_12`); is it another column? "
            f"{column_setting({STEP: 'OTHER_COLUMN'})}",
        )
    return table.set_column(index, STEP, steps.cast(pa.int64()))


def with_versions_as_numbers(table: pa.Table) -> pa.Table:
    """Return `policy_version` as int64; text that is not an integer becomes null."""
    index = table.column_names.index(VERSION) if VERSION in table.column_names else -1
    if index < 0 or not _is_text(table.schema.field(index).type):
        return table
    import pyarrow.compute as pc

    text = table.column(index).cast(pa.string())
    number = pc.if_else(pc.match_substring_regex(text, WHOLE_NUMBER), text, None)
    trimmed = pc.replace_substring_regex(number, r"^\s*\+?|\s*$", "")
    return table.set_column(index, VERSION, trimmed.cast(pa.int64()))


# Merging the schemas of several files or batches

# Columns whose type is the same in every converted table.
TYPES: dict[str, pa.DataType] = {
    "response_ids": pa.list_(pa.int32()),
    "prompt_ids": pa.list_(pa.int32()),
    "response_mask": pa.list_(pa.uint8()),
    "step": pa.int64(),
    "finish_reason": pa.string(),
}


def table_type(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the column type in a converted table, given that of the reader's column."""
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
    """Return a type that holds the values of both; None if there is none."""
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
    """Return the union of columns with common types, and the columns that have no common type."""
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
    """Return rows with the columns and types of a schema; columns that they lack become null.

    Exceptions: a missing response mask becomes 1 at every response token, as for tables without a
    mask; missing advantages and entropies become NaN. If the rows have no `response_ids`, these are
    null too.
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
    """Cast a column to another type; return it unchanged if it has that type.

    Casting lists of nulls to their own type gives wrong offsets in Arrow.
    """
    return column if column.type.equals(kind) else column.cast(kind)


def _everywhere(value: float, response_ids: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return a column with one value at every response token."""
    lengths = lengths_of(response_ids)
    return ragged(np.full(lengths.sum(), value), lengths).cast(kind)
