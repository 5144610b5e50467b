"""Parquet files whose rows cannot be read as they lie are written again.

Tokens may stand in fields of structs. A field of a struct becomes the column `struct.field`, as it
does in JSON lines; of a list of structs, such as one of each token, it becomes a list.

Lists may have the width of a trainer's padded tensors, with a mask over prompts and responses that
says where the tokens stand: they lose the padding. Files of lists that are as long as the responses
stay as they are.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import as_numpy, lengths_of, values_of
from rcdiag.table.naming import TOKENS, candidates
from rcdiag.table.padding import (
    ATTENTION,
    COMPLETION,
    CUT,
    OF_PROMPTS,
    PADDED_ROWS,
    cuts_of,
    one_of,
)
from rcdiag.table.readers.parquet import (
    first_rows_of,
    open_parquet,
    read_rows_of,
    row_groups_of,
    width_of_first_rows,
)
from rcdiag.table.remote import AnyFile
from rcdiag.table.schema import is_list, metadata_of
from rcdiag.table.writer import write_tables

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
    has_tokens = renames.get(TOKENS, TOKENS) in schema.names
    if has_tokens or TOKENS in candidates(schema, renames):
        return False
    # Lists of structs without whole numbers are such as chat messages.
    return any(
        pt.is_struct(kind)
        or (_lists(kind) and any(pt.is_integer(part.type) for part in kind.value_type))
        for kind in schema.types
    )


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
    records = read_rows_of(path, schema.names, schema.names[0])
    rows = (_flat(pa.Table.from_batches([record])) for record in records)
    write_tables(target, itertools.chain([empty], rows), metadata_of(schema))


def _lists(kind: pa.DataType) -> bool:
    """Tell whether a type is a list of structs."""
    return (pt.is_list(kind) or pt.is_large_list(kind)) and pt.is_struct(kind.value_type)


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


def write_unpadded(path: AnyFile, tokens: str, target: Path) -> None:
    """Write a file's rows to `target` without padding; `tokens` is its column of responses."""
    schema = open_parquet(path).schema_arrow
    rows = _unpadded_rows(path, schema.names, tokens)
    first = next(rows)
    # The mask that said where to cut is left out.
    gone = [name for name in (COMPLETION, ATTENTION) if name not in first.schema.names]
    mask = next(name for name in gone if name in schema.names)
    metadata = metadata_of(schema)
    conversion = metadata.get("conversion", {})
    changes = {**conversion.get("changes", {}), CUT.format(mask=mask): 0}
    noted = {**metadata, "conversion": {"format": "parquet", **conversion, "changes": changes}}
    write_tables(target, itertools.chain([first], rows), noted)


def padded_tokens(path: AnyFile, schema: pa.Schema, renames: Mapping[str, str]) -> str | None:
    """Return the column of responses that are padded to one width; None where none can be cut.

    `schema` is that of the file. A mask among `renames`, rcdiag's names to those of the file that
    the user gave, is read as the user said.
    """
    lists = [field.name for field in schema if _is_list_of_numbers(field.type)]
    if not ({ATTENTION} <= set(lists) or {COMPLETION, OF_PROMPTS} <= set(lists)):
        return None
    if set(renames.values()) & {ATTENTION, COMPLETION, OF_PROMPTS} or not _has_metadata(schema):
        return None
    groups = row_groups_of(path)
    widths = {name: width_of_first_rows(groups, name, PADDED_ROWS) for name in lists}
    padded = [name for name, width in widths.items() if width]
    first = first_rows_of(path, padded, PADDED_ROWS)
    matrices = _matrices(first)
    tokens = one_of("response_ids", matrices)
    prompts = one_of("prompt_ids", matrices)
    if tokens is None or tokens not in cuts_of(matrices, lambda row: f"{path}, row {row}"):
        return None
    # A mask as wide as the response alone is read as its response_mask, which leaves padding out.
    by_prompts = prompts is not None and OF_PROMPTS in matrices and COMPLETION in matrices
    by_attention = ATTENTION in matrices and (
        matrices[ATTENTION].shape[1] > matrices[tokens].shape[1]
    )
    return tokens if by_attention or by_prompts else None


def _has_metadata(schema: pa.Schema) -> bool:
    """Tell whether a file's metadata can be read; a file where they cannot is refused elsewhere."""
    try:
        return metadata_of(schema) is not None
    except ValueError:
        return False


def _is_list_of_numbers(kind: pa.DataType) -> bool:
    return is_list(kind) and pt.is_primitive(kind.value_type)


def _matrices(table: pa.Table) -> dict[str, NDArray[Any]]:
    """Return the columns whose lists have one length in all rows, each [rows, length]."""
    matrices = {}
    for name in table.column_names:
        if _is_list_of_numbers(table.schema.field(name).type) and table.num_rows:
            column = table[name].combine_chunks()
            lengths = lengths_of(column, of_null=-1)
            if lengths[0] > 0 and (lengths == lengths[0]).all():
                matrices[name] = as_numpy(values_of(column)).reshape(len(lengths), -1)
    return matrices


def _unpadded_rows(path: AnyFile, names: Sequence[str], tokens: str) -> Iterator[pa.Table]:
    """Yield the rows of a file without padding."""
    first = 0
    for record in read_rows_of(path, names, tokens):
        yield _unpadded(pa.Table.from_batches([record]), path, first)
        first += record.num_rows


def _unpadded(table: pa.Table, path: AnyFile, first: int) -> pa.Table:
    """Return rows of a file, of which `first` is the number of the first, without padding."""
    matrices = _matrices(table)
    cuts = cuts_of(matrices, lambda row: f"{path}, row {first + row}")
    tokens = one_of("response_ids", matrices)
    if tokens is None or tokens not in cuts:
        raise RcdiagError(
            f"{path}, rows {first} to {first + table.num_rows - 1}: lists have other lengths than "
            "in the rows before, where they are padded to one width",
            hint="write padded rows and rows of their own length to different files",
        )
    for name, column in cuts.items():
        place = table.column_names.index(name)
        table = table.remove_column(place)
        if column is not None:
            table = table.add_column(place, name, column)
    return table
