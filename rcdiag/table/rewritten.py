"""Rewrite files as parquet whose rows cannot be read in place.

This concerns three cases. JSON lines with unknown column names: the names are kept, and matched to
canonical names afterwards. Tokens inside structs: a field of a struct becomes a column
`struct.field`, as it does in JSON lines; a field of a list of structs (such as one struct per
token) becomes a list. Lists with the width of a trainer's padded tensors and a mask over prompts
and responses: the padding is removed. Files whose lists are as long as the responses are not
rewritten.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import as_numpy, lengths_of, values_of
from rcdiag.table.column_names import meanings_of
from rcdiag.table.naming import has_tokens
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
from rcdiag.table.readers.reader import Dump, Reader, Rows
from rcdiag.table.remote import AnyFile
from rcdiag.table.schema import (
    TOKEN_FLOATS,
    check_types,
    column_spec,
    first_of_wrong_type,
    is_list,
    metadata_of,
    versions_are_numbers,
)
from rcdiag.table.scratch import Scratch
from rcdiag.table.sources import SourceFile
from rcdiag.table.table import Origin, named_by_url
from rcdiag.table.writer import TableWriter, write_tables

if TYPE_CHECKING:
    from rcdiag.table.conversion import OnProgress

# Structs nested deeper than this are not flattened.
DEEPEST = 4


@dataclass
class Copies:
    """Creates parquet copies of the files whose rows cannot be read in place.

    Copies are in a temporary folder, next to the file `beside` if it is given. `on_progress` is
    called while they are written.
    """

    reader: Reader
    files: Sequence[SourceFile]
    beside: Path | None = None
    on_progress: OnProgress | None = None
    scratch: Scratch | None = None
    rows: int = 0
    tokens: int = 0

    def of(self, number: int, mapped: Mapping[str, str]) -> tuple[Path | None, Origin | None]:
        """Return the copy of a file and its row origins; None for each that is not needed."""
        file = self.files[number]
        written, origin = None, None
        if self.reader.read is not None:
            written = self._path(f"{number:06}.as-it-is.parquet")
            origin = self._write_as_it_is(self.reader.read, number, written, mapped)
        schema = open_parquet(written or file.path).schema_arrow
        if _is_nested(schema, mapped):
            flat = self._path(f"{number:06}.flat.parquet")
            _write_flat(written or file.path, flat)
            written, schema = flat, open_parquet(flat).schema_arrow
        tokens = _padded_tokens(written or file.path, schema, mapped)
        if tokens is not None:
            unpadded = self._path(f"{number:06}.parquet")
            with named_by_url([] if written is None else [SourceFile(written, file.name)]):
                _write_unpadded(written or file.path, tokens, unpadded)
            written = unpadded
        return written, origin

    def _path(self, name: str) -> Path:
        self.scratch = self.scratch or Scratch(self.beside)
        return self.scratch.path / name

    def _write_as_it_is(
        self,
        read: Callable[[Dump], Iterator[Rows]],
        number: int,
        target: Path,
        mapped: Mapping[str, str],
    ) -> Origin:
        """Write a file of another format as parquet, with unchanged column names."""
        file = self.files[number]
        path = cast(Path, file.path)  # files of other formats than parquet are always local
        origin = Origin([file])
        of_numbers: set[str] = set()
        with TableWriter(target) as writer:
            for rows in read(Dump(files=(path,))):
                table = _typed(pa.Table.from_batches([rows.batch]), mapped, rows)
                writer.write(table)
                origin.add(path, rows.record, rows.numbers)
                lists = [column for column in table.columns if pt.is_list(column.type)]
                of_numbers |= {
                    field.name
                    for field in table.schema
                    if pt.is_list(field.type) and not pt.is_null(field.type.value_type)
                }
                self.rows += table.num_rows
                # The response column is not known yet: the longest list of each row is counted.
                longest = [np.zeros(table.num_rows, np.int64), *map(lengths_of, lists)]
                self.tokens += int(np.maximum.reduce(longest).sum())
                if self.on_progress is not None:
                    self.on_progress(file.name, number + 1, len(self.files), self.rows, self.tokens)
            if wrong := writer.mixed & of_numbers:
                raise RcdiagError(
                    f"{path}: `{min(wrong)}` is a list of numbers in some {rows.record}s, and none "
                    "in others",
                    hint="a column has one type; write the dump again",
                )
            reason = "dropped, lines hold types that cannot be combined"
            changes = {f"{name}: {reason}": 0 for name in sorted(writer.mixed)}
            noted = {"conversion": {"format": self.reader.name, "changes": changes}}
            if writer.finish(noted, writer.mixed) is None:
                raise RcdiagError(
                    f"{path}: the file has no records",
                    hint="each line is one response, as a JSON object",
                )
        return origin


def _typed(table: pa.Table, mapped: Mapping[str, str], rows: Rows) -> pa.Table:
    """Return rows of JSON with whole numbers as floats where a column may hold log-probs.

    JSON has one type of numbers: `[0, -1, -2]` are log-probs too. `mapped` (canonical name -> name
    in the file) is the user's. A canonical column of a wrong type is an error with its line.
    """
    back = {own: name for name, own in mapped.items()}
    known = []
    for index, field in enumerate(table.schema):
        name = back.get(field.name, field.name)
        kind = field.type.value_type if is_list(field.type) else field.type
        may_be = map(column_spec, (name, *meanings_of(field.name)))
        if is_list(field.type) and pt.is_integer(kind) and TOKEN_FLOATS in may_be:
            floats = table.column(index).cast(pa.list_(pa.float64()))
            table = table.set_column(index, field.name, floats)
        if not pt.is_null(kind):  # nulls and empty lists get their type from other rows
            known.append(table.schema.field(index).with_name(name))
    check_types(
        versions_are_numbers(pa.schema(known)),
        str(rows.file),
        lambda name: rows.where(first_of_wrong_type(name, table[mapped.get(name, name)])),
    )
    return table


def _is_nested(schema: pa.Schema, renames: Mapping[str, str]) -> bool:
    """Tell whether the tokens, or a column that the user named by its path, are inside a struct."""
    structs = {field.name for field in schema if pt.is_struct(field.type) or _lists(field.type)}
    if not structs:
        return False
    paths = [own for own in renames.values() if own not in schema.names]
    if any(own.partition(".")[0] in structs for own in paths):
        return True
    if has_tokens(schema, renames):
        return False
    # Lists of structs without integers are chat messages or the like.
    return any(
        pt.is_struct(kind)
        or (_lists(kind) and any(pt.is_integer(part.type) for part in kind.value_type))
        for kind in schema.types
    )


def _write_flat(path: AnyFile, target: Path) -> None:
    """Write a file's rows to `target` with the fields of structs as columns."""
    schema = open_parquet(path).schema_arrow
    empty = _flat(schema.empty_table())
    twice = [name for name, times in Counter(empty.schema.names).items() if times > 1]
    if twice:
        raise RcdiagError(
            f"{path}: `{twice[0]}` is both a column and a field of a struct",
            hint="give one of them another name",
        )
    rows = (_flat(table) for table, _ in read_rows_of(path, schema.names, schema.names[0]))
    write_tables(target, itertools.chain([empty], rows), metadata_of(schema, str(path)))


def _lists(kind: pa.DataType) -> bool:
    """Tell whether a type is a list of structs."""
    return bool((pt.is_list(kind) or pt.is_large_list(kind)) and pt.is_struct(kind.value_type))


def _flat(table: pa.Table) -> pa.Table:
    for _ in range(DEEPEST):
        if any(pt.is_struct(field.type) or _lists(field.type) for field in table.schema):
            table = _by_field(table.flatten())
    return table


def _by_field(table: pa.Table) -> pa.Table:
    """Replace each list of structs by one list column per field."""
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


def _write_unpadded(path: AnyFile, tokens: str, target: Path) -> None:
    """Write a file's rows to `target` without padding; `tokens` is its response column."""
    schema = open_parquet(path).schema_arrow
    rows = (
        _unpadded(table, path, int(numbers[0]))
        for table, numbers in read_rows_of(path, schema.names, tokens)
    )
    first = next(rows)
    # The mask by which rows were cut is not needed any more.
    gone = [name for name in (COMPLETION, ATTENTION) if name not in first.schema.names]
    mask = next(name for name in gone if name in schema.names)
    metadata = metadata_of(schema, str(path))
    conversion = metadata.get("conversion", {})
    changes = {**conversion.get("changes", {}), CUT.format(mask=mask): 0}
    noted = {**metadata, "conversion": {"format": "parquet", **conversion, "changes": changes}}
    write_tables(target, itertools.chain([first], rows), noted)


def _padded_tokens(path: AnyFile, schema: pa.Schema, renames: Mapping[str, str]) -> str | None:
    """Return the response column if its rows are padded to one width and can be cut; else None.

    `schema` is that of the file. If the user mapped a mask in `renames` (canonical name -> name in
    the file), it is used as the response mask, and nothing is cut.
    """
    lists = [field.name for field in schema if _is_list_of_numbers(field.type)]
    if not ({ATTENTION} <= set(lists) or {COMPLETION, OF_PROMPTS} <= set(lists)):
        return None
    if set(renames.values()) & {ATTENTION, COMPLETION, OF_PROMPTS}:
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
    # A mask as wide as the response is read as response_mask, which masks the padding already.
    by_prompts = prompts is not None and OF_PROMPTS in matrices and COMPLETION in matrices
    by_attention = ATTENTION in matrices and (
        matrices[ATTENTION].shape[1] > matrices[tokens].shape[1]
    )
    return tokens if by_attention or by_prompts else None


def _is_list_of_numbers(kind: pa.DataType) -> bool:
    return is_list(kind) and pt.is_primitive(kind.value_type)


def _matrices(table: pa.Table) -> dict[str, NDArray[Any]]:
    """Return the columns whose lists have the same length in all rows, each [rows, length]."""
    matrices = {}
    for name in table.column_names:
        if _is_list_of_numbers(table.schema.field(name).type) and table.num_rows:
            column = table[name].combine_chunks()
            lengths = lengths_of(column, of_null=-1)
            if lengths[0] > 0 and (lengths == lengths[0]).all():
                matrices[name] = as_numpy(values_of(column)).reshape(len(lengths), -1)
    return matrices


def _unpadded(table: pa.Table, path: AnyFile, first: int) -> pa.Table:
    """Remove the padding from rows of a file; `first` is the number of the first of them."""
    matrices = _matrices(table)
    cuts = cuts_of(matrices, lambda row: f"{path}, row {first + row}")
    tokens = one_of("response_ids", matrices)
    if tokens is None or tokens not in cuts:
        raise RcdiagError(
            f"{path}, rows {first} to {first + table.num_rows - 1}: lists differ in length from "
            "those of earlier rows, which are padded to one width",
            hint="write padded rows and rows of their own length to different files",
        )
    for name, column in cuts.items():
        place = table.column_names.index(name)
        table = table.remove_column(place)
        if column is not None:
            table = table.add_column(place, name, column)
    return table
