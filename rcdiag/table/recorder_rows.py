"""What a training loop hands to a recorder becomes checked rows of the trajectory table.

Values come as tensors of torch, as arrays, as lists, or as one value for the whole batch. Matrices
are padded and are cut by what says how long their rows are; nothing is stored padded.

Values that a column cannot mean are refused. Log-probs are taken as they are, NaN, infinite and
positive ones too: a diagnosis names those, and their rows must not be missing from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, nearest
from rcdiag.table.arrow import as_numpy, column_on_cpu, lengths_of
from rcdiag.table.column_names import LOOKS_LIKE_LOG_PROBS, known_names
from rcdiag.table.padding import Cut
from rcdiag.table.recorder_padding import (
    CUTTING,
    IDS,
    MASK,
    PROMPT,
    find_cuts,
    kind_of,
    wrong,
)
from rcdiag.table.schema import (
    COLUMNS,
    ENTROPY,
    EXPERTS,
    NUMBER,
    TOKEN_FLOATS,
    column_spec,
    with_versions_as_numbers,
)
from rcdiag.table.token_columns import is_rows, token_column

# A name that is this like one of rcdiag's is a slip of the pen, and no column of the user's own.
SLIP = 0.85
WHOLE_NUMBERS = ("step", "top_k")
ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)


INT64 = np.iinfo(np.int64)
# bfloat16 rounds an entropy of almost 0 to a little below it; a log-prob is further away.
BELOW_ZERO = -0.05
# Where one row has a value, all have: rows without one cannot be told apart, or put in order.
NEVER_NULL = ("group_id", "sample_id", "step")


class Range(Struct, frozen=True):
    """What a value of one row may be, in words, and as a test of a number."""

    expected: str
    accepts: Callable[[float], bool]
    whole: bool = False


_FINITE = Range("a number, or NaN or None where it is unknown", lambda value: not math.isinf(value))
RANGES = {
    "temperature": Range(
        "a number above 0, by which logits are divided; of greedy samples it is None",
        lambda value: 0.0 < value < math.inf,
    ),
    "top_p": Range("a number above 0, and 1 at most", lambda value: 0.0 < value <= 1.0),
    "min_p": Range("a number from 0 to 1", lambda value: 0.0 <= value <= 1.0),
    "top_k": Range("a whole number; 0 and -1 mean off", lambda value: value >= -1, whole=True),
    "step": Range("a whole number from 0 on", lambda value: 0 <= value <= INT64.max, whole=True),
    "reward": _FINITE,
    "advantage": _FINITE,
}


def rows_of(arguments: Mapping[str, Any]) -> pa.Table:
    """Return the rows of one batch as a table, with the types that parts of a recorder have.

    Tokens of one response alone are a batch of one row, whose other values are that response's.
    A column whose values are all None is left out. RcdiagError names the argument and the row of
    the batch, from 0, that do not fit.
    """
    given = {
        name: column_on_cpu(value, f"`{name}`")
        for name, value in arguments.items()
        if value is not None
    }
    _check_names(given)
    if _is_one_response(given[IDS]):
        given = {name: [value] if is_rows(value) else value for name, value in given.items()}
    rows = _number_of_rows(given[IDS])
    response, prompt = find_cuts(given, rows)
    ids = token_column(IDS, given[IDS], rows, response)
    lengths = lengths_of(ids)
    columns: dict[str, pa.Array] = {IDS: ids}
    for name, value in given.items():
        if name == IDS or name in CUTTING:
            continue
        if name == PROMPT:
            column = token_column(name, value, rows, prompt)
        elif _is_per_token(name, value):
            column = token_column(name, value, rows, response, lengths)
        elif column_spec(name) is not None:
            column = _row_column(name, value, rows)
        else:
            column = _own_column(name, value, rows, response, lengths)
        if column.null_count < rows or rows == 0:
            columns[name] = column
    _check_entropies(columns, lengths)
    return with_versions_as_numbers(pa.table(columns))


def _check_entropies(columns: Mapping[str, pa.Array], lengths: NDArray[np.int64]) -> None:
    """Refuse entropies below 0; those of tokens that the policy did not sample are not asked."""
    mask = columns.get(MASK)
    tokens = int(lengths.sum())
    counted = np.ones(tokens, np.bool_) if mask is None else as_numpy(mask.flatten()) != 0
    for name, column in columns.items():
        if ENTROPY.fullmatch(name) and not column.null_count:
            _check_entropy(name, as_numpy(column.flatten()), counted, lengths)


def _check_names(given: Mapping[str, Any]) -> None:
    """Refuse a batch without tokens, and names that are slips for those that rcdiag reads."""
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


def _is_one_response(ids: Any) -> bool:
    """Tell whether token ids are those of one response, and not a list of rows."""
    if isinstance(ids, np.ndarray):
        return ids.ndim == 1 and ids.dtype != object and len(ids) > 0
    numbers = (int, np.integer)
    return isinstance(ids, list) and bool(ids) and all(isinstance(one, numbers) for one in ids)


def _number_of_rows(ids: Any) -> int:
    one_row = is_rows(ids) and len(ids) and not hasattr(ids[0], "__len__") and ids[0] is not None
    if not is_rows(ids) or one_row:
        raise RcdiagError(
            f"Recorder.add: `{IDS}` is {kind_of(ids)}, where rows of tokens are needed",
            hint="a batch is a list of rows or a matrix [rows, width]; of one response: [ids]",
        )
    return len(ids)


def _is_per_token(name: str, value: Any) -> bool:
    """Tell whether a column holds a value for each response token."""
    spec = column_spec(name)
    if name == "policy_version":
        first = next((row for row in value if row is not None), None) if is_rows(value) else None
        return hasattr(first, "__len__") and not isinstance(first, str)
    return spec is TOKEN_FLOATS or spec is EXPERTS or name == MASK


def _row_column(name: str, value: Any, rows: int) -> pa.Array:
    """Return a column of rcdiag's with one value for each row; one value counts for all."""
    values = _values(name, value, rows)
    _check_row_values(name, values)
    spec = COLUMNS[name]
    if spec is NUMBER:
        values = [float(value) if isinstance(value, bool) else value for value in values]
    try:
        column = pa.array(values)
        if pt.is_floating(column.type) and name in WHOLE_NUMBERS:
            column = column.cast(pa.int64())  # 12.0 is a step; 12.5 is none
    except ARROW_ERRORS as error:
        row = _first_of_another_kind(values)
        raise wrong(name, row, str(error).splitlines()[0], f"it is {spec.expected}") from error
    if pt.is_null(column.type):
        return column
    is_version_as_text = name == "policy_version" and pt.is_string(column.type)
    if not spec.accepts(column.type) and not is_version_as_text:
        raise wrong(name, None, f"it holds {column.type}", f"it is {spec.expected}")
    return column.cast(pa.float64()) if spec is NUMBER and name != "top_k" else column


def _values(name: str, value: Any, rows: int) -> list[Any]:
    """Return one value for each row, as Python has them."""
    if not is_rows(value):
        return [value.item() if isinstance(value, (np.generic, np.ndarray)) else value] * rows
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[1] == 1:
        value = value[:, 0]
    if len(value) != rows:
        raise wrong(
            name, None, f"{len(value)} values for {rows} rows", "one for each row, or one for all"
        )
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [
        row.item() if isinstance(row, (np.generic, np.ndarray)) and np.ndim(row) == 0 else row
        for row in value
    ]


def _first_of_another_kind(values: Iterable[Any]) -> int | None:
    kinds = [(row, type(value)) for row, value in enumerate(values) if value is not None]
    return next((row for row, kind in kinds if kind is not kinds[0][1]), None)


def _own_column(
    name: str, value: Any, rows: int, response: Cut | None, lengths: NDArray[np.int64]
) -> pa.Array:
    """Return a column that rcdiag does not know: cut like the response where it is as wide."""
    is_matrix = isinstance(value, np.ndarray) and value.ndim == 2
    if is_matrix and response is not None and value.shape[1] == response.width:
        column = response.column(value)
        _check_no_log_probs(name, column, lengths)
        return column
    if isinstance(value, np.ndarray) and value.ndim > 1:
        value = list(value)
    values = _values(name, value, rows)
    try:
        column = pa.array([row.tolist() if hasattr(row, "tolist") else row for row in values])
    except ARROW_ERRORS as error:
        row = _first_of_another_kind(values)
        raise wrong(
            name, row, str(error).splitlines()[0], "rows of one column are of one kind"
        ) from error
    _check_no_log_probs(name, column, lengths)
    return column


def _check_no_log_probs(name: str, column: pa.Array, lengths: NDArray[np.int64]) -> None:
    """Refuse log-probs of response tokens under a name by which rcdiag does not read them."""
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
    """Refuse the first value, one of each row, that a column of rcdiag's cannot hold."""
    if all(value is None for value in values):
        return
    expected = getattr(column_spec(name), "expected", "")
    for row, value in enumerate(values):
        if value is None:
            if name in NEVER_NULL:
                raise wrong(name, row, "it is None", "give it for every row, or for none")
            continue
        if name in RANGES:
            _check_range(name, row, value, RANGES[name])
        elif isinstance(value, int) and not INT64.min <= value <= INT64.max:
            raise wrong(name, row, f"it is {value}, beyond int64", f"it is {expected}")
        elif name in ("group_id", "sample_id", "engine") and not isinstance(
            value, (str, int, np.integer)
        ):
            raise wrong(name, row, f"it is {value!r}", f"it is {expected}")


def _check_range(name: str, row: int, value: Any, known: Range) -> None:
    """Refuse what is no number, and a number that has no meaning here."""
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if isinstance(value, (bool, np.bool_)):
        is_number = name == "reward"  # right or wrong is a reward of 1 or 0
    if not is_number or (known.whole and not float(value).is_integer()) or not known.accepts(value):
        raise wrong(name, row, f"it is {value!r}", f"it is {known.expected}")


def _check_entropy(
    name: str, flat: NDArray[Any], counted: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> None:
    """Refuse an entropy below 0 at a token that the policy sampled, which no distribution has."""
    bad = (flat < BELOW_ZERO) & counted
    if bad.any():
        at = int(np.argmax(bad))
        row = int(np.searchsorted(np.cumsum(lengths), at, side="right"))
        raise wrong(name, row, f"it holds {flat[at]}", "an entropy is 0 or more; is it a log-prob?")
