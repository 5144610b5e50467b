"""Read a table as a stream of checked trajectories: all rows, or given ranges of rows.

Arrow batches become numpy arrays here; every error names file, row and column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import as_numpy, lengths_of, values_of
from rcdiag.table.hashing import hashed_texts, mixed
from rcdiag.table.kept_ids import check_kept_ids
from rcdiag.table.schema import KEPT_IDS, has_token_lists, is_list
from rcdiag.table.table import RowBatch, RowRange, Table
from rcdiag.table.token_columns import check_ids, check_lengths, check_mask, in_file
from rcdiag.table.trajectories import UNKNOWN_VERSION, Ragged, Trajectories, segment_sum

V = TypeVar("V")
ROW_COLUMNS = ("response_mask", "temperature", "group_id", "step")
# A row is processed as a whole, with about 250 bytes per token; no engine has such a context.
MOST_TOKENS_OF_ROW = 1 << 22
LARGEST = np.iinfo(np.int64).max
# Further columns for profiles and examples.
DETAIL_COLUMNS = ("reward", "sample_id", "advantage", "advantages")
# How a row was sampled, for the diagnosis.
SAMPLING = ("top_p", "top_k", "min_p")
ORIGIN_COLUMNS = (*SAMPLING, "engine", "finish_reason", "policy_version")


def read_trajectories(
    dump: Table,
    policies: Sequence[str],
    *,
    prompts: bool = False,
    origin: bool = False,
    between: RowRange | None = None,
    lists: Sequence[str] = (),
) -> Iterator[Trajectories]:
    """Yield the rows that have log-probs of all `policies`, with these log-probs.

    Rows in which one of them is null are skipped; `unobserved` counts them. `prompts` adds the
    prompts, `origin` how each row was sampled. `between` = (first, end) selects rows first to
    end - 1. `lists` names columns with a list per token.
    """
    dump.require(*(f"{policy}_log_probs" for policy in policies))
    names = columns_needed(
        dump.schema.names, policies, prompts=prompts, details=True, origin=origin
    )
    rows = None if between is None else np.arange(*between)
    for batch in dump.batches([*names, *lists], rows):
        known = batch.with_log_probs(policies)
        if known.table.num_rows:
            yield decode(known, policies)


def read_chunks(
    dump: Table, ranges: Sequence[RowRange], names: Sequence[str] | None = None
) -> Iterator[RowBatch]:
    """Yield the rows of each of the ascending, disjoint `ranges` as one batch.

    Every row group is read once, although a range may end within it.
    """
    waiting = iter(ranges)
    current = next(waiting, None)
    parts: list[RowBatch] = []
    for batch in dump.batches(names):
        end = batch.first_row + batch.table.num_rows
        while current is not None and current[0] < end:
            start = max(current[0], batch.first_row)
            stop = min(current[1], end)
            parts.append(batch.slice(start - batch.first_row, stop - batch.first_row))
            if current[1] > end:
                break
            table = pa.concat_tables([part.table for part in parts]).combine_chunks()
            yield RowBatch(table, np.concatenate([part.numbers for part in parts]), dump)
            parts, current = [], next(waiting, None)
        if current is None:
            return


# Columns of a batch as arrays


def columns_needed(
    names: Sequence[str],
    policies: Sequence[str],
    *,
    prompts: bool = False,
    details: bool = False,
    origin: bool = False,
) -> list[str]:
    """Return those of the table's columns `names` that have to be read.

    `prompts` adds the prompts; `details` adds rewards, advantages, ids and the entropies of
    `policies`; `origin` adds how each row was sampled, and the kept ids of `policies`.
    """
    columns = ["response_ids", *ROW_COLUMNS, *(f"{policy}_log_probs" for policy in policies)]
    if prompts:
        columns.append("prompt_ids")
    if details:
        columns += [*DETAIL_COLUMNS, *(f"{policy}_entropy" for policy in policies)]
    if origin:
        columns += [*ORIGIN_COLUMNS, *(f"{policy}_kept_ids" for policy in policies)]
    return [name for name in columns if name in names]


def decode(batch: RowBatch, policies: Sequence[str] = ()) -> Trajectories:
    """Return the rows of a batch as arrays, with the log-probs of `policies` in float64.

    All other fields of `Trajectories` are filled if the batch has their columns.
    """
    names = batch.table.column_names
    response_ids = token_ids(batch, "response_ids")
    long = response_ids.lengths > MOST_TOKENS_OF_ROW  # would take gigabytes of memory each
    if long.any():
        row = int(np.argmax(long))
        raise RcdiagError(
            f"{batch.where(row)}: a response of {int(response_ids.lengths[row]):,} tokens; the "
            f"limit is {MOST_TOKENS_OF_ROW:,}",
            hint="is each list the tokens of one response, or are several joined in one row? "
            "Write one row per response",
        )
    mask = np.ones(len(response_ids.values), dtype=np.bool_)
    if "response_mask" in names:
        column = _by_response(batch, "response_mask", response_ids)
        check_mask("response_mask", column.values, column.lengths, in_file(batch.where))
        mask = column.values.astype(np.bool_, copy=False)
    lists = {
        name: _lists_of_tokens(batch, name, response_ids) for name in names if has_token_lists(name)
    }
    for name in filter(KEPT_IDS.fullmatch, lists):
        check_kept_ids(name, lists[name], response_ids, mask, batch.where)

    def of_rows(name: str, read: Callable[[RowBatch, str], V]) -> V | None:
        return read(batch, name) if name in names else None

    def of_tokens(name: str) -> NDArray[np.float64] | None:
        return _by_token(batch, name, response_ids, mask) if name in names else None

    entropies = {policy: of_tokens(f"{policy}_entropy") for policy in policies}
    return Trajectories(
        first_row=batch.first_row,
        rows=batch.numbers,
        response_ids=response_ids,
        mask=mask,
        prompt_ids=of_rows("prompt_ids", token_ids),
        log_probs={
            policy: _by_token(batch, f"{policy}_log_probs", response_ids, mask)
            for policy in policies
        },
        temperature=of_rows("temperature", floats),
        group=of_rows("group_id", hashed),
        step=of_rows("step", _steps),
        reward=of_rows("reward", floats),
        advantage=_advantage(batch, response_ids, mask),
        advantages=of_tokens("advantages"),
        entropy={policy: values for policy, values in entropies.items() if values is not None},
        sample_id=of_rows("sample_id", lambda batch, name: _known(batch, name).to_pylist()),
        sampling={name: floats(batch, name) for name in SAMPLING if name in names},
        engine=of_rows("engine", _texts),
        finish_reason=of_rows("finish_reason", _texts),
        policy_version=_versions(batch, response_ids),
        token_lists=lists,
    )


def _steps(batch: RowBatch, name: str) -> NDArray[np.int64]:
    return as_numpy(_as_int64(batch, name, _known(batch, name)))


def _texts(batch: RowBatch, name: str) -> list[str]:
    """Return a column of keys as text; null becomes an empty string."""
    return [str(value) if value is not None else "" for value in _column(batch, name).to_pylist()]


def _versions(batch: RowBatch, response_ids: Ragged) -> NDArray[np.int64] | None:
    """Return the weights version per row or per token; -1 if unknown."""
    if "policy_version" not in batch.table.column_names:
        return None
    array = _column(batch, "policy_version")
    if is_list(array.type):
        if array.null_count or array.flatten().null_count:
            return None
        return _by_response(batch, "policy_version", response_ids).values.astype(np.int64)
    versions = _as_int64(batch, "policy_version", array)
    return as_numpy(versions.fill_null(UNKNOWN_VERSION) if versions.null_count else versions)


def _column(batch: RowBatch, name: str) -> pa.Array:
    column = batch.table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _known(batch: RowBatch, name: str) -> pa.Array:
    """Return a column; raise an error if a row is null."""
    array = _column(batch, name)
    if array.null_count:
        row = int(np.argmax(as_numpy(array.is_null())))
        hint = "drop the row, or write a value"
        if is_list(array.type):
            hint = "drop the row, or write an empty list if there are no tokens"
        elif name == "group_id":
            hint = "give every row the id of its prompt, or leave the column out"
        raise RcdiagError(f"{batch.where(row)}: column `{name}` is null", hint=hint)
    return array


def ragged(batch: RowBatch, name: str, mask: NDArray[np.bool_] | None = None) -> Ragged:
    """Return a list column as flat values and offsets, without copying if Arrow allows it.

    A null inside a list becomes NaN if `mask` is False there; otherwise it is an error.
    """
    array = _known(batch, name)
    values = values_of(array)
    lists = Ragged.of(as_numpy(values), lengths_of(array))
    null = as_numpy(values.is_null()) if values.null_count else None
    if null is not None and mask is not None and len(mask) == len(null):
        null &= mask
    if null is not None and null.any():
        row = lists.row_with(int(np.argmax(null)))
        raise RcdiagError(
            f"{batch.where(row)}: column `{name}` holds a null in its list",
            hint="masked positions may hold any number (NaN too), but not null",
        )
    return lists


def token_ids(batch: RowBatch, name: str) -> Ragged:
    """Return token ids as int32; refuse negative ids and ids beyond any vocabulary."""
    column = ragged(batch, name)
    check_ids(name, column.values, column.lengths, in_file(batch.where))
    return Ragged(column.values.astype(np.int32, copy=False), column.offsets)


def _by_response(
    batch: RowBatch, name: str, response_ids: Ragged, mask: NDArray[np.bool_] | None = None
) -> Ragged:
    """Return a list column; its lists must be as long as the responses. Nulls as in `ragged`."""
    column = ragged(batch, name, mask)
    prompts = batch.table["prompt_ids"] if "prompt_ids" in batch.table.column_names else None
    refuse = in_file(batch.where)
    check_lengths(name, column.lengths, response_ids.lengths, refuse, prompts=prompts)
    return column


def _lists_of_tokens(batch: RowBatch, name: str, response_ids: Ragged) -> Ragged:
    """Return a column with one list per response token; a null list becomes empty.

    In a row that is null, every token gets an empty list.
    """
    array = _column(batch, name).cast(pa.large_list(pa.large_list(pa.int32())))
    known = as_numpy(array.is_valid())
    lengths = np.where(known, lengths_of(array), response_ids.lengths)
    check_lengths(name, lengths, response_ids.lengths, in_file(batch.where))
    of_tokens = values_of(array)
    sizes = np.zeros(len(response_ids.values), np.int64)
    sizes[np.repeat(known, lengths)] = lengths_of(of_tokens)
    values = values_of(of_tokens)
    lists = Ragged.of(as_numpy(values), sizes)
    if values.null_count:
        token = lists.row_with(int(np.argmax(as_numpy(values.is_null()))))
        raise RcdiagError(
            f"{batch.where(response_ids.row_with(token))}: column `{name}` holds a null in the "
            "list of a token",
            hint="write an empty list where nothing was recorded for a token",
        )
    return lists


def _by_token(
    batch: RowBatch, name: str, response_ids: Ragged, mask: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return one number per response token; values at masked tokens are not checked."""
    column = _by_response(batch, name, response_ids, mask)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return column.values.astype(np.float64)


def _advantage(
    batch: RowBatch, response_ids: Ragged, mask: NDArray[np.bool_]
) -> NDArray[np.float64] | None:
    """Return each row's advantage: `advantage`, else the mean of `advantages` over its tokens.

    The mean is over unmasked tokens; NaN if there are none.
    """
    if "advantage" in batch.table.column_names:
        return floats(batch, "advantage")
    if "advantages" not in batch.table.column_names:
        return None
    values = _by_token(batch, "advantages", response_ids, mask)
    lengths = response_ids.lengths
    sums = segment_sum(np.where(mask, values, 0.0), lengths)
    with np.errstate(invalid="ignore"):  # 0 / 0 in a row without unmasked tokens
        mean: NDArray[np.float64] = sums / segment_sum(mask.astype(np.int64), lengths)
    return mean


def floats(batch: RowBatch, name: str) -> NDArray[np.float64]:
    """Return a column with one number per row; null, which means unknown, becomes NaN."""
    array = _column(batch, name)
    if not (pt.is_floating(array.type) or pt.is_integer(array.type)):
        array = array.cast(pa.float64(), safe=False)
    numbers = as_numpy(array)  # null becomes NaN
    return numbers.astype(np.float64, copy=False)


def _as_int64(batch: RowBatch, name: str, array: pa.Array) -> pa.Array:
    """Return integers as int64; raise an error at a uint64 beyond int64."""
    if pt.is_int64(array.type):
        return array
    if pt.is_uint64(array.type):
        beyond = as_numpy(array.fill_null(0)) > LARGEST
        if beyond.any():
            row = int(np.argmax(beyond))
            raise RcdiagError(
                f"{batch.where(row)}: column `{name}` holds {array[row]}, beyond int64",
                hint="if another column is meant, name it by --column",
            )
    return array.cast(pa.int64())


def hashed(batch: RowBatch, name: str) -> NDArray[np.uint64]:
    """Return a column of keys (text or integers) as 64-bit hashes, which take less memory."""
    array = _known(batch, name)
    if pt.is_integer(array.type):
        return mixed(as_numpy(array).astype(np.uint64))
    if not (pt.is_string(array.type) or pt.is_large_string(array.type)):
        array = array.cast(pa.large_string())
    return hashed_texts(array)
