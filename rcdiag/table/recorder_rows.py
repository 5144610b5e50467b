"""Check a batch from a training loop and turn it into rows of the trajectory table.

Values may be torch tensors, arrays, lists, or one value for the whole batch. Padded matrices are
cut to the length of each row (given by lengths, an attention mask or the response mask); nothing
is stored padded.

Values that a column cannot hold are refused. Log-probs are the exception: NaN, infinite and
positive ones are stored as they are, because the diagnosis reports them and needs their rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, first_line, nearest
from rcdiag.table.arrow import (
    ARROW_ERRORS,
    as_numpy,
    column_on_cpu,
    experts,
    first_unlike,
    lengths_and_nulls,
    lengths_of,
    ragged,
)
from rcdiag.table.column_names import LOOKS_LIKE_LOG_PROBS, known_names
from rcdiag.table.kept_ids import kept_ids_of, unpadded
from rcdiag.table.padding import ATTENTION, OF_PROMPTS, Cut
from rcdiag.table.recorder_padding import (
    CUTTING,
    IDS,
    LENGTHS,
    MASK,
    PROMPT,
    are_lists,
    as_matrix,
    find_cuts,
    is_list,
    kind_of,
    wrong,
)
from rcdiag.table.schema import (
    COLUMNS,
    ENTROPY,
    EXPERTS,
    LISTS_OF_IDS,
    NUMBER,
    TOKEN_FLOATS,
    column_spec,
    with_versions_as_numbers,
)
from rcdiag.table.token_columns import check_ids, check_lengths, check_mask, refuse_first
from rcdiag.table.trajectories import Ragged, segment_sum

# Similarity (difflib ratio) from which on an unknown name is treated as a misspelt column name.
SLIP = 0.85
WHOLE_NUMBERS = ("step", "top_k")

TO_CUT = f"give {LENGTHS}=, {ATTENTION}= or {MASK}=, or a list of rows without padding"

INT32, INT64 = np.iinfo(np.int32), np.iinfo(np.int64)
# Rounding in bfloat16 can take an entropy of about 0 slightly below 0; log-probs are usually lower.
BELOW_ZERO = -0.05
# If one row has a value here, all need one: the others could not be grouped or sorted.
NEVER_NULL = ("group_id", "sample_id", "step")


class Range(Struct, frozen=True):
    """The values that a row's number may take: in words, and as a predicate."""

    expected: str
    accepts: Callable[[float], bool]
    whole: bool = False


_FINITE = Range("a number, or NaN or None where it is unknown", lambda value: not math.isinf(value))
RANGES = {
    "temperature": Range(
        "a number above 0, by which logits are divided; None for greedy samples",
        lambda value: 0.0 < value < math.inf,
    ),
    "top_p": Range("a number above 0, at most 1", lambda value: 0.0 < value <= 1.0),
    "min_p": Range("a number from 0 to 1", lambda value: 0.0 <= value <= 1.0),
    "top_k": Range("a whole number; 0 and -1 mean off", lambda value: value >= -1, whole=True),
    "step": Range("a whole number, 0 or more", lambda value: 0 <= value <= INT64.max, whole=True),
    "reward": _FINITE,
    "advantage": _FINITE,
}


def rows_of(arguments: Mapping[str, Any]) -> pa.Table:
    """Return the rows of one batch as a table, with the column types of a recorder's part files.

    If `response_ids` holds the tokens of a single response, the batch has one row and every other
    value belongs to that response. A column whose values are all None is left out. Raises an
    RcdiagError that names the argument and the row in the batch (counted from 0) that are wrong.
    """
    given = {
        name: column_on_cpu(value, f"`{name}`")
        for name, value in arguments.items()
        if value is not None
    }
    _check_names(given)
    ids_of_rows = given[IDS]
    if isinstance(ids_of_rows, np.ndarray):
        one_response = ids_of_rows.ndim == 1 and ids_of_rows.dtype != object
    else:
        one_response = isinstance(ids_of_rows, list) and all(
            isinstance(one, (int, np.integer)) for one in ids_of_rows
        )
    if one_response and len(ids_of_rows):
        given = {name: [value] if _is_rows(value) else value for name, value in given.items()}
        ids_of_rows = given[IDS]
    if not _is_matrix(ids_of_rows) and not are_lists(ids_of_rows):
        raise RcdiagError(
            f"Recorder.add: `{IDS}` is {kind_of(ids_of_rows)}, but rows of tokens are needed",
            hint="a batch is a list of rows or a matrix [rows, width]; for one response: [ids]",
        )
    rows = len(ids_of_rows)
    response, prompt = find_cuts(given, rows)
    ids = _token_column(IDS, given[IDS], rows, response)
    lengths = lengths_of(ids)
    columns: dict[str, pa.Array] = {IDS: ids}
    for name, value in given.items():
        if name == IDS or name in CUTTING:
            continue
        if name == PROMPT:
            column = _token_column(name, value, rows, prompt)
        elif _is_per_token(name, value):
            column = _token_column(name, value, rows, response, lengths)
        elif column_spec(name) is not None:
            column = _row_column(name, value, rows)
        else:
            column = _own_column(name, value, rows, response, lengths)
        if column.null_count < rows or rows == 0:
            columns[name] = column
    _check_entropies(columns, lengths)
    return with_versions_as_numbers(pa.table(columns))


def _check_entropies(columns: Mapping[str, pa.Array], lengths: NDArray[np.int64]) -> None:
    """Refuse entropies below 0 at tokens with response_mask 1."""
    mask = columns.get(MASK)
    tokens = int(lengths.sum())
    counted = np.ones(tokens, np.bool_) if mask is None else as_numpy(mask.flatten()) != 0
    for name, column in columns.items():
        if not ENTROPY.fullmatch(name) or column.null_count:
            continue
        flat = as_numpy(column.flatten())
        hint = "an entropy is 0 or more; is it a log-prob?"
        refuse_first(name, flat, (flat < BELOW_ZERO) & counted, lengths, wrong, hint)


def _check_names(given: Mapping[str, Any]) -> None:
    """Refuse a batch without tokens, and argument names that misspell a known column."""
    if IDS not in given:
        meant = next((known.name for known in known_names()[IDS] if known.name in given), None)
        raise RcdiagError(
            f"Recorder.add: `{IDS}` is missing",
            hint=f"{IDS}=... takes the tokens after the prompt"
            + (f": is it what you call `{meant}`?" if meant else ", a list or tensor of each row"),
        )
    known = [*COLUMNS, *CUTTING, "rollout_log_probs", "old_log_probs"]
    for name in given:
        if name in CUTTING or column_spec(name) is not None:
            continue
        meant = nearest(name, [other for other in known if other not in given], SLIP)
        if meant:
            raise RcdiagError(
                f"Recorder.add: `{name}` is no column that rcdiag reads",
                hint=f"did you mean {meant}? A column of your own needs another name",
            )


def _is_per_token(name: str, value: Any) -> bool:
    """Tell whether a column holds one value per response token."""
    spec = column_spec(name)
    if name == "policy_version":
        return _is_matrix(value) or (_is_rows(value) and any(map(is_list, value)))
    return spec in (TOKEN_FLOATS, EXPERTS, LISTS_OF_IDS) or name == MASK


def _row_column(name: str, value: Any, rows: int) -> pa.Array:
    """Return a known column with one value per row; a single value is repeated for all rows."""
    values = _values(name, value, rows)
    _check_row_values(name, values)
    spec = COLUMNS[name]
    if spec is NUMBER:
        values = [float(value) if isinstance(value, bool) else value for value in values]
    try:
        column = pa.array(values)
        if pt.is_floating(column.type) and name in WHOLE_NUMBERS:
            column = column.cast(pa.int64())  # a step of 12.0 is accepted, 12.5 is refused
    except ARROW_ERRORS as error:
        row = first_unlike(values)
        raise wrong(name, row, first_line(error), f"it is {spec.expected}") from error
    if pt.is_null(column.type):
        return column
    is_version_as_text = name == "policy_version" and pt.is_string(column.type)
    if not spec.accepts(column.type) and not is_version_as_text:
        raise wrong(name, None, f"it holds {column.type}", f"it is {spec.expected}")
    return column.cast(pa.float64()) if spec is NUMBER and name != "top_k" else column


def _values(name: str, value: Any, rows: int) -> list[Any]:
    """Return one Python value per row."""
    if not _is_rows(value):
        return [value.item() if isinstance(value, (np.generic, np.ndarray)) else value] * rows
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[1] == 1:
        value = value[:, 0]
    if len(value) != rows:
        raise wrong(
            name, None, f"{len(value)} values for {rows} rows", "give one per row, or one for all"
        )
    if isinstance(value, np.ndarray):
        return list(value.tolist())
    return [
        row.item() if isinstance(row, (np.generic, np.ndarray)) and np.ndim(row) == 0 else row
        for row in value
    ]


def _own_column(
    name: str, value: Any, rows: int, response: Cut | None, lengths: NDArray[np.int64]
) -> pa.Array:
    """Return a user's own column; a matrix as wide as the response is cut like the response."""
    is_matrix = isinstance(value, np.ndarray) and value.ndim == 2
    is_cut = is_matrix and response is not None and value.shape[1] == response.width
    values = _values(name, list(value) if _is_matrix(value) else value, rows)
    try:
        if is_cut and response is not None:
            column = response.column(value)
        else:
            column = pa.array([row.tolist() if hasattr(row, "tolist") else row for row in values])
    except ARROW_ERRORS as error:
        row = first_unlike(values)
        raise wrong(name, row, first_line(error), "rows of one column are of one kind") from error
    _check_no_log_probs(name, column, lengths)
    return column


def _check_no_log_probs(name: str, column: pa.Array, lengths: NDArray[np.int64]) -> None:
    """Refuse response log-probs under a name that rcdiag does not read as log-probs."""
    if not (LOOKS_LIKE_LOG_PROBS.search(name) and TOKEN_FLOATS.accepts(column.type)):
        return
    if np.array_equal(lengths_of(column), lengths):
        stem = LOOKS_LIKE_LOG_PROBS.sub("", name).replace("per_token", "").strip("_") or "rollout"
        raise RcdiagError(
            f"Recorder.add: `{name}` is no column that rcdiag reads",
            hint=f"did you mean {stem.replace('__', '_')}_log_probs? The sampler's are "
            "rollout_log_probs, the trainer's before the update old_log_probs",
        )


def _check_row_values(name: str, values: Sequence[Any]) -> None:
    """Refuse the first row whose value the known column cannot hold."""
    if all(value is None for value in values):
        return
    expected = getattr(column_spec(name), "expected", "")
    for row, value in enumerate(values):
        if value is None:
            if name in NEVER_NULL:
                raise wrong(name, row, "it is None", "give it for every row, or for none")
            continue
        if name in RANGES:
            known = RANGES[name]
            is_number = isinstance(value, (int, float, np.integer, np.floating))
            if isinstance(value, (bool, np.bool_)):
                is_number = name == "reward"  # True and False are rewards of 1 and 0
            fits = is_number and not (known.whole and not float(value).is_integer())
            if not (fits and known.accepts(value)):
                raise wrong(name, row, f"it is {value!r}", f"it is {known.expected}")
        elif isinstance(value, int) and not INT64.min <= value <= INT64.max:
            raise wrong(name, row, f"it is {value}, beyond int64", f"it is {expected}")
        elif name in ("group_id", "sample_id", "engine") and not isinstance(
            value, (str, int, np.integer)
        ):
            raise wrong(name, row, f"it is {value!r}", f"it is {expected}")


# Columns with a value for each token: of padded matrices that are cut, or of lists of rows


def _is_rows(value: Any) -> bool:
    """Tell whether a value is a list or an array with one entry per row."""
    return isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _is_matrix(value: Any) -> bool:
    """Tell whether a value is an array [rows, width], or one with further dimensions."""
    return isinstance(value, np.ndarray) and value.ndim > 1


def _token_column(
    name: str,
    value: Any,
    rows: int,
    where: Cut | None,
    lengths: NDArray[np.int64] | None = None,
) -> pa.ListArray:
    """Return a list column with one value per token; `lengths` [rows] must match if given."""
    _check_rows(name, value, rows)
    matrix = value if where is None else as_matrix(value)
    if where is not None and isinstance(matrix, np.ndarray) and matrix.shape[1] == where.width:
        value = matrix
    if isinstance(value, np.ndarray):
        column = _of_matrix(name, value, where, lengths)
    else:
        column = _of_lists(name, value)
    if lengths is not None:
        check_lengths(name, lengths_of(column, of_null=-1), lengths, wrong)
    return column


def _check_rows(name: str, value: Any, rows: int) -> None:
    if not _is_matrix(value) and not are_lists(value):
        hint = "a list of rows, or a matrix [rows, width]"
        if name == "advantages":
            hint += "; for one advantage per response use advantage=..."
        raise wrong(name, None, f"it is {kind_of(value)}, not one value per token", hint)
    if len(value) != rows:
        raise wrong(
            name, None, f"it has {len(value)} rows, `{IDS}` has {rows}", "give the same rows in all"
        )


def _of_matrix(
    name: str, matrix: NDArray[Any], where: Cut | None, lengths: NDArray[np.int64] | None
) -> pa.ListArray:
    """Cut the padding off a matrix and return its rows as a list column."""
    width = matrix.shape[1]
    if where is None and lengths is not None and (lengths == width).all():
        where = Cut.from_lengths(lengths, width)
    if where is None:
        hint = TO_CUT
        if name == PROMPT:
            hint = f"give {OF_PROMPTS}=, or {ATTENTION}= of prompt and response, or lists"
        raise wrong(name, None, f"{kind_of(matrix)} is padded: row lengths are unknown", hint)
    if where.width != width:
        raise wrong(
            name,
            None,
            f"it has {width} columns, but the mask or lengths that cut it are for {where.width}",
            f"column j of every matrix belongs to column j of `{IDS}`",
        )
    flat = where.values(matrix)
    if column_spec(name) is LISTS_OF_IDS and flat.ndim == 2:  # filled up with -1
        return _lists_of_ids(name, unpadded(flat), where.lengths)
    if column_spec(name) is EXPERTS:
        return _nested(name, flat.reshape(len(flat), math.prod(flat.shape[1:])), where.lengths)
    _check_flat(name, flat, where.lengths)
    return ragged(_typed(name, flat), where.lengths)


def _of_lists(name: str, value: list[Any]) -> pa.ListArray:
    lengths, null = lengths_and_nulls(value)
    filled = [row for row in value if row is not None]
    if column_spec(name) is LISTS_OF_IDS:
        by_token = [() if ids is None else ids for row in filled for ids in row]
        try:
            kept = kept_ids_of(by_token)
        except (TypeError, ValueError, OverflowError) as error:
            found = f"it is not a list of ids for each token ({error})"
            raise wrong(name, None, found, "give lists of ids") from error
        return _lists_of_ids(name, kept, lengths, null)
    if column_spec(name) is EXPERTS:
        return _nested(name, _flat_experts(name, value), lengths)
    flat = _flat(name, filled)
    _check_flat(name, flat, lengths)
    if null.any() and name in (IDS, MASK, PROMPT):
        raise wrong(name, int(np.argmax(null)), "None", "a response of no tokens is an empty list")
    return ragged(_typed(name, flat), lengths, null)


def _flat_experts(name: str, rows: Sequence[Any]) -> NDArray[Any]:
    """Return the experts of all rows, concatenated, [tokens, layers x k]; None has no tokens."""
    parts: list[NDArray[Any]] = []
    for number, row in enumerate(rows):
        if row is None or not len(row):
            continue
        try:
            parts.append(np.asarray(row).reshape(len(row), -1))
        except ValueError as error:
            found = "the number of experts differs between tokens"
            raise wrong(name, number, found, "layers x k per token") from error
    widths = list(dict.fromkeys(part.shape[1] for part in parts))
    if len(widths) > 1:
        raise wrong(
            name,
            None,
            f"{widths[0]} experts of a token in one row and {widths[1]} in another",
            "layers x k is the same for all tokens",
        )
    return np.concatenate(parts) if parts else np.zeros((0, 0), np.uint16)


def _lists_of_ids(
    name: str, kept: Ragged, lengths: NDArray[np.int64], null: NDArray[np.bool_] | None = None
) -> pa.ListArray:
    """Return the kept ids per token as a column of lists of lists, one outer list per row."""
    check_ids(name, kept.values, segment_sum(kept.lengths, lengths), wrong)
    return ragged(ragged(kept.values, kept.lengths), lengths, null)


def _flat(name: str, rows: Sequence[Any]) -> NDArray[Any]:
    """Concatenate the values of all rows; None in a column of floats becomes NaN."""
    if all(isinstance(row, np.ndarray) for row in rows):
        return np.concatenate(rows) if rows else np.zeros(0, np.float32)
    of_floats = column_spec(name) is TOKEN_FLOATS
    values = list(chain.from_iterable(rows))
    try:
        flat = np.array(values)
        if flat.dtype == object and of_floats:
            flat = np.array([np.nan if value is None else value for value in values], np.float64)
    except (ValueError, TypeError) as error:
        raise wrong(
            name, None, f"it is not one number for each token ({error})", "give lists of numbers"
        ) from error
    return flat if len(flat) else np.zeros(0, np.float32 if of_floats else np.int32)


def _check_flat(name: str, flat: NDArray[Any], lengths: NDArray[np.int64]) -> None:
    """Refuse values that the column cannot hold; the error names the first row that has one."""
    spec = column_spec(name)
    if flat.ndim != 1:
        raise wrong(name, None, f"{flat.ndim} dimensions", "one number per token is needed")
    if spec is TOKEN_FLOATS:
        if flat.dtype.kind != "f" and len(flat):
            raise wrong(name, None, f"it holds {flat.dtype}", "this column holds floats")
        return
    if name == MASK:
        check_mask(name, flat, lengths, wrong)
        return
    if flat.dtype.kind not in "iu" and len(flat):
        raise wrong(name, None, f"it holds {flat.dtype}", "whole numbers are needed")
    if name in (IDS, PROMPT):
        check_ids(name, flat, lengths, wrong)
        return
    hint = "versions of weights for each token are 32-bit numbers"
    refuse_first(name, flat, (flat < INT32.min) | (flat > INT32.max), lengths, wrong, hint)


def _typed(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of the values in the type in which they are stored.

    float64 is stored as float32 if no value changes by it. Always a copy, so that the caller may
    reuse its memory.
    """
    if name == MASK:
        return values.astype(np.uint8)
    if column_spec(name) is not TOKEN_FLOATS:
        return values.astype(np.int32)
    if values.dtype == np.float64:
        with np.errstate(over="ignore"):
            short = values.astype(np.float32)
        same = short == values
        is_same = same.all() or np.isnan(values[~same]).all()
        return short if is_same else values.copy()
    return values.astype(np.float32)


def _nested(name: str, flat: NDArray[Any], lengths: NDArray[np.int64]) -> pa.ListArray:
    """Return experts [tokens, layers x k] as a column of lists of lists, one outer list per row."""
    if flat.dtype.kind not in "iu" and flat.size:
        raise wrong(name, None, f"it holds {flat.dtype}", "expert numbers are integers")
    if flat.size and (flat.min() < 0 or flat.max() > np.iinfo(np.uint16).max):
        raise wrong(
            name,
            None,
            f"it holds values from {flat.min()} to {flat.max()}",
            f"experts are numbered from 0 to {np.iinfo(np.uint16).max}",
        )
    return experts(flat[:, None].astype(np.uint16), lengths)
