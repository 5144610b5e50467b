"""A parquet file of a trainer's padded tensors is written again, without the padding.

Its lists have the widths of the tensors, and a mask over prompts and responses says where the
tokens stand. Files of lists that are as long as the responses stay as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import as_numpy, lengths_of, values_of
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
from rcdiag.table.remote_file import AnyFile
from rcdiag.table.schema import metadata_of
from rcdiag.table.writer import TableWriter


def write_unpadded(path: AnyFile, tokens: str, target: Path) -> None:
    """Write a file's rows to `target` without padding; `tokens` is its column of responses."""
    schema = open_parquet(path).schema_arrow
    records = _numbered(read_rows_of(path, schema.names, tokens))
    parts = (_unpadded(record, path, row) for record, row in records)
    first = next(parts)
    with TableWriter(target, first.schema, _with_change(schema, first.schema)) as writer:
        for part in itertools.chain([first], parts):
            writer.write(part)


def _with_change(before: pa.Schema, after: pa.Schema) -> dict[str, Any]:
    """Return the metadata of a file with a note of the columns that were cut."""
    masks = [name for name in (COMPLETION, ATTENTION) if name not in after.names]
    mask = next(name for name in masks if name in before.names)
    metadata = metadata_of(before)
    conversion = metadata.get("conversion", {})
    changes = {**conversion.get("changes", {}), CUT.format(mask=mask): 0}
    return {**metadata, "conversion": {"format": "parquet", **conversion, "changes": changes}}


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
    is_list = pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
    return is_list and pt.is_primitive(kind.value_type)


def _numbered(records: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield records with the number of their first row."""
    row = 0
    for record in records:
        yield record, row
        row += record.num_rows


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


def _unpadded(record: pa.RecordBatch, path: AnyFile, first: int) -> pa.Table:
    """Return rows of a file without padding, and in the metadata what was cut."""
    table = pa.Table.from_batches([record])
    matrices = _matrices(table)
    cuts = cuts_of(matrices, lambda row: f"{path}, row {first + row}")
    tokens = one_of("response_ids", matrices)
    if tokens is None or tokens not in cuts:
        raise RcdiagError(
            f"{path}, rows {first} to {first + record.num_rows - 1}: lists have other lengths than "
            "in the rows before, where they are padded to one width",
            hint="write padded rows and rows of their own length to different files",
        )
    for name, column in cuts.items():
        place = table.column_names.index(name)
        table = table.remove_column(place)
        if column is not None:
            table = table.add_column(place, name, column)
    return table
