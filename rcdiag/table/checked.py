"""Rows of a reader are checked and get the types of the table; an error names file and record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table import schema as columns
from rcdiag.table.arrow import as_numpy, lengths_of
from rcdiag.table.readers.reader import Rows
from rcdiag.table.unify import table_type

# Column -> what its values are called, the largest of them (None: any), and what they mean.
_IDS = ("token id", None, "token ids are 0 or more; padding does not belong into the table")
VALUES: dict[str, tuple[str, int | None, str]] = {
    "response_ids": _IDS,
    "prompt_ids": _IDS,
    "response_mask": (
        "the value",
        1,
        "a mask is 1 for tokens that the policy sampled and 0 for all others",
    ),
}


def typed(table: pa.Table, rows: Rows) -> pa.Table:
    """Return rows with the types of the table."""
    if "response_ids" not in table.column_names:
        raise RcdiagError(
            f"{rows.file}: no column `response_ids`; there are {', '.join(table.column_names)}",
            hint=columns.column_setting({"response_ids": "NAME"}),
        )
    table = columns.with_steps_as_numbers(table, rows.where)
    known = [field for field in table.schema if not pt.is_null(field.type)]
    columns.check_types(pa.schema(known), str(rows.file))
    schema = pa.schema([(f.name, table_type(f.name, f.type)) for f in table.schema])
    try:
        return table.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _bad_cast(table, schema, rows, error) from error


def _bad_cast(table: pa.Table, schema: pa.Schema, rows: Rows, error: Exception) -> RcdiagError:
    """Return the error for a value that its column's type cannot hold, with its row."""
    for wanted in schema:
        column = table[wanted.name]
        for row in range(table.num_rows):
            try:
                column.take([row]).cast(wanted.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                return RcdiagError(
                    f"{rows.where(row)}: column `{wanted.name}` does not fit {wanted.type} "
                    f"({str(error).splitlines()[0]})",
                    hint="is it another column? See --column",
                )
    return RcdiagError(f"{rows.file}: {str(error).splitlines()[0]}")


def checked_lengths(table: pa.Table, rows: Rows) -> NDArray[np.int64]:
    """Return the length of every response; a token column of another length is refused."""
    ids = table["response_ids"]
    if ids.null_count:
        row = int(np.argmax(as_numpy(ids.is_null())))
        raise RcdiagError(
            f"{rows.where(row)}: no response tokens (null)",
            hint="an empty response is an empty list; drop rows that were never sampled",
        )
    lengths = lengths_of(ids)
    for name in table.column_names:
        column = table[name]
        spec = columns.column_spec(name)
        by_token = spec in (columns.TOKEN_FLOATS, columns.EXPERTS)
        if not (by_token or name in ("response_mask", "policy_version")):
            continue
        if not columns.is_list(column.type):  # null in all rows, or a version of each row
            continue
        own = lengths_of(column, of_null=-1)
        differ = (own != lengths) & (own >= 0)
        if differ.any():
            row = int(np.argmax(differ))
            raise RcdiagError(
                f"{rows.where(row)}: {lengths[row]} response tokens, but {own[row]} values of "
                f"`{name}`",
                hint="the file is damaged, or of a version of its writer that rcdiag does not know",
            )
    return lengths


def check_values(table: pa.Table, rows: Rows) -> None:
    """Refuse token ids below 0, and masks of other values than 0 and 1."""
    import pyarrow.compute as pc

    for name, (what, most, hint) in VALUES.items():
        if name not in table.column_names or pt.is_null(table[name].type):
            continue
        column = table[name].combine_chunks()
        flat = column.flatten()
        low, high = pc.min_max(flat).values()
        fine = low.as_py() is None or (low.as_py() >= 0 and (most is None or high.as_py() <= most))
        if fine and not flat.null_count:
            continue
        values = as_numpy(flat.cast(pa.int64()).fill_null(-1))
        bad = values < 0 if most is None else (values < 0) | (values > most)
        at = int(np.argmax(bad))
        owner = np.repeat(np.arange(len(column)), lengths_of(column))
        raise RcdiagError(
            f"{rows.where(int(owner[at]))}: column `{name}` holds {what} {flat[at].as_py()}",
            hint=hint,
        )
