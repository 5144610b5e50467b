"""Write a table that is in memory to a parquet file once, and read it from there.

Accepted are pandas and polars frames, Arrow tables and streams, mappings of columns (lists, arrays
and tensors), and lists of rows, each a mapping. The kind is recognised by the name of the object's
class, so that none of these packages has to be imported.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, first_line
from rcdiag.table.arrow import ARROW_ERRORS, column_on_cpu, first_unlike, lengths_of
from rcdiag.table.padding import (
    ATTENTION,
    COMPLETION,
    CUT,
    OF_PROMPTS,
    PADDED_ROWS,
    cuts_of,
    find_padding,
    mask_as_bits,
    one_of,
)
from rcdiag.table.readers.parquet import PARQUET
from rcdiag.table.schema import METADATA_KEY, metadata_of
from rcdiag.table.scratch import Scratch
from rcdiag.table.sources import SourceFile, SourceFiles
from rcdiag.table.writer import write_tables

# Rows that are written at a time.
ROWS_AT_A_TIME = 8192


@runtime_checkable
class ArrowStream(Protocol):
    """An object that exports its rows as a stream of Arrow record batches, as data frames do.

    https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html
    """

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the stream."""
        ...


@runtime_checkable
class ArrowBatch(Protocol):
    """An object that exports its rows as one Arrow record batch."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        """Return the batch."""
        ...


# In-memory tables, as precisely as a type can express it; polars' LazyFrame is accepted too.
InMemory = ArrowStream | ArrowBatch | Mapping[str, Any] | Sequence[Mapping[str, Any]]


def name_in_memory(rows: object) -> str | None:
    """Return how messages call an in-memory table; None if it is not a table."""
    package = type(rows).__module__.partition(".")[0]
    kind = type(rows).__name__
    known = package in ("pandas", "polars", "pyarrow") or isinstance(
        rows, (ArrowStream, ArrowBatch)
    )
    if isinstance(rows, Mapping):
        return "a mapping of columns in memory"
    if _are_rows(rows):
        return "a list of rows in memory"
    if not known or kind == "Series":
        return None
    return f"{'an' if package == 'arrow' else 'a'} {package} {kind} in memory"


def _are_rows(rows: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Tell whether an object is a list of rows, each a mapping from column names to values."""
    return isinstance(rows, (list, tuple)) and bool(rows) and isinstance(rows[0], Mapping)


def write_rows(rows: Any) -> SourceFiles:
    """Write an in-memory table to a parquet file, which is deleted with the table of it."""
    name = name_in_memory(rows)
    if name is None:
        raise RcdiagError(
            f"a {type(rows).__name__} is not a table",
            hint="give a path, a data frame, an Arrow table, or a mapping of columns; a list holds "
            "paths, or rows that are mappings: concatenate several frames first",
        )
    scratch = Scratch()
    target = scratch.path / "000000.parquet"
    written = SourceFiles(name, PARQUET, (SourceFile(target, name),), scratch)
    if type(rows).__module__.startswith("polars") and hasattr(rows, "sink_parquet"):
        try:  # polars evaluates a lazy frame directly into the file, in streaming mode
            rows.sink_parquet(target, compression="lz4")
        except Exception as error:  # anything that the user's query raises
            raise RcdiagError(
                f"{name}: polars cannot evaluate it ({first_line(error)})",
                hint="call collect() on the frame, and give the result",
            ) from error
        return written
    try:
        tables = (pa.Table.from_batches([batch]) for batch in _batches(rows, name))
        first = next(tables)
        write_tables(target, itertools.chain([first], tables), metadata_of(first.schema, name))
    except ARROW_ERRORS as error:
        raise RcdiagError(
            f"{name}: it cannot be written as parquet ({first_line(error)})",
            hint="columns hold numbers or text, or a list of numbers per row",
        ) from error
    return written


def _batches(rows: Any, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches, at least one (it may be empty), which has the table's schema."""
    if isinstance(rows, Mapping):
        rows = _of_columns(dict(rows), name)
    elif _are_rows(rows):
        rows = _of_columns(_columns_of_rows(rows, name), name)
    elif type(rows).__module__.startswith("pandas"):
        rows = _of_columns(_pandas_columns(rows, name), name)
    elif not isinstance(rows, ArrowStream):
        rows = pa.table(rows)
    with pa.RecordBatchReader.from_stream(rows) as reader:
        empty = True
        for batch in reader:
            empty = False
            for start in range(0, max(batch.num_rows, 1), ROWS_AT_A_TIME):
                yield _readable(batch.slice(start, ROWS_AT_A_TIME))
        if empty:
            yield _readable(pa.RecordBatch.from_pylist([], schema=reader.schema))


def _columns_of_rows(rows: Sequence[Any], name: str) -> dict[str, Any]:
    """Return the columns of a list of rows; a value that a row lacks becomes null."""
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RcdiagError(
                f"{name}, row {number}: it is {type(row).__name__}, but row 0 is a mapping",
                hint="every row maps column names to values",
            )
    columns = dict.fromkeys(str(column) for row in rows for column in row)
    return {column: [row.get(column) for row in rows] for column in columns}


def _pandas_columns(rows: Any, name: str) -> dict[str, Any]:
    """Return the columns of a pandas frame, and the named levels of its index."""
    named = [level for level in rows.index.names if level is not None]
    if named:
        unnamed = [place for place, level in enumerate(rows.index.names) if level is None]
        twice = [level for level in named if level in rows.columns]
        rows = rows.droplevel(unnamed) if unnamed else rows
        rows = rows.droplevel(twice) if len(twice) < len(named) else rows
        rows = rows.reset_index(drop=len(twice) == len(named))
    if not rows.columns.is_unique:
        raise RcdiagError(f"{name}: two columns have the same name", hint="rename one of them")
    columns: dict[str, Any] = {}
    for column, values in rows.items():
        if values.dtype != object:
            columns[str(column)] = pa.array(values, from_pandas=True)
            continue
        held = values.tolist()
        # Among other objects NaN is pandas' missing value; among numbers it stays.
        if not all(value is None or isinstance(value, (int, float)) for value in held):
            held = [None if isinstance(one, float) and one != one else one for one in held]
        columns[str(column)] = held
    return columns


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose column types can be stored in parquet."""
    arrays = [_stored(column) for column in batch.columns]
    fields = [
        field.with_type(array.type) for field, array in zip(batch.schema, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, batch.schema.metadata))


def _stored(array: pa.Array) -> pa.Array:
    """Convert categories to text, and views of text and lists to plain text and lists."""
    kind = array.type
    if pt.is_dictionary(kind):
        categories = _stored(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, categories).dictionary_decode()
    if pt.is_string_view(kind):
        return array.cast(pa.large_string())
    if pt.is_list_view(kind) or pt.is_large_list_view(kind):
        # Arrow 26 casts a view that has a null to an invalid list.
        lengths = lengths_of(array)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]))
        return pa.LargeListArray.from_arrays(
            offsets, _stored(array.flatten()), mask=array.is_null()
        )
    return array


def _of_columns(columns: dict[str, Any], name: str) -> pa.Table:
    """Return columns (lists, arrays or tensors) as an Arrow table."""
    if not columns:
        raise RcdiagError(f"{name}: it has no columns", hint="at least `response_ids` is needed")
    plain = {
        column: _plain(values, f"{name}: column `{column}`") for column, values in columns.items()
    }
    for column, values in plain.items():
        if not hasattr(values, "__len__") or isinstance(values, (str, bytes, Mapping)):
            raise RcdiagError(
                f"{name}: column `{column}` is {type(values).__name__}, not one value per row",
                hint="a list, an array or a tensor has one entry per row",
            )
    counts = {column: len(values) for column, values in plain.items()}
    first = next(iter(counts), "")
    for column, count in counts.items():
        if count != counts[first]:
            raise RcdiagError(
                f"{name}: column `{column}` has {count} rows, `{first}` has {counts[first]}",
                hint="every column has one entry per row",
            )
    matrices = {
        column: values
        for column, values in plain.items()
        if isinstance(values, np.ndarray) and values.ndim == 2
    }
    cuts = cuts_of(matrices, lambda row: f"{name}, row {row}")
    _check_padding(matrices, cuts, name)
    arrays = {
        column: cuts[column] if column in cuts else _array(values, column, name)
        for column, values in plain.items()
    }
    table = pa.table({column: array for column, array in arrays.items() if array is not None})
    if not cuts:
        return table
    mask = next((each for each in (COMPLETION, ATTENTION) if each in matrices), OF_PROMPTS)
    done = {"conversion": {"format": "parquet", "changes": {CUT.format(mask=mask): 0}}}
    return table.replace_schema_metadata({METADATA_KEY: json.dumps(done)})


def _plain(values: Any, where: str) -> Any:
    """Return values as numpy array, Arrow array or list; tensors are copied to the CPU."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if isinstance(values, ArrowStream):
        return pa.chunked_array(values)
    plain = column_on_cpu(values, where)
    if isinstance(plain, list) and any(isinstance(row, np.ndarray) for row in plain):
        scalars = all(row is None or np.ndim(row) == 0 for row in plain)
        return [row.item() if hasattr(row, "item") else row for row in plain] if scalars else plain
    return plain


def _array(values: Any, column: str, name: str) -> pa.Array:
    """Return one column as an Arrow array; an error names the first row of another type."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return _lists(mask_as_bits(column, values))
    try:
        return values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
    except ARROW_ERRORS as error:
        raise RcdiagError(
            f"{name}, row {first_unlike(values)}: column `{column}` ({first_line(error)})",
            hint="all rows of a column have one type, for example a list of numbers",
        ) from error


def _lists(values: NDArray[Any]) -> pa.Array:
    """Return an array of two or more dimensions as nested lists."""
    inner = values.reshape(-1) if values.ndim == 2 else values.reshape(-1, *values.shape[2:])
    offsets = np.arange(len(values) + 1, dtype=np.int64) * values.shape[1]
    flat = pa.array(inner) if values.ndim == 2 else _lists(inner)
    return pa.LargeListArray.from_arrays(pa.array(offsets), flat)


def _check_padding(
    matrices: Mapping[str, NDArray[Any]], cuts: Mapping[str, pa.ListArray | None], name: str
) -> None:
    """Refuse a matrix of tokens that looks padded although no mask cuts or masks the padding."""
    column = one_of("response_ids", matrices)
    if column is None or column in cuts:
        return
    values = matrices[column]
    alike = (other for other, matrix in matrices.items() if matrix.shape[1] == values.shape[1])
    if any("mask" in other for other in alike):
        return
    found = find_padding(list(values[:PADDED_ROWS]), [list(np.zeros(values[:PADDED_ROWS].shape))])
    if found is None:
        return
    padding, _ = found
    raise RcdiagError(
        f"{name}: column `{column}` is padded to {padding.width} tokens with token "
        f"{padding.token}, and there is no mask",
        hint="give `attention_mask` or `completion_mask` as well, or lists of each row's tokens",
    )
