"""Read what a program wrote for a part, and refuse anything that cannot be its scores."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.statistics.extremes import SMALLEST_LOG_PROB
from rcdiag.table.arrow import as_numpy
from rcdiag.table.readers.parquet import read_whole
from rcdiag.table.token_columns import MOST_TOKEN_IDS
from rcdiag.table.trajectories import Scores, Trajectories

# The largest log-prob above 0 that rounding explains: logit minus logsumexp in float32, for logits
# of several hundred.
ROUNDING = 1e-4
# An entropy in bfloat16 exceeds its limit, ln(vocabulary), by at most this factor.
BFLOAT16 = 1 + 2.0**-8


def read_answer(
    path: Path,
    rows: Trajectories,
    who: str,
    *,
    wants_entropy: bool,
    vocabulary: int = MOST_TOKEN_IDS,
) -> Scores:
    """Return the scores that a program wrote, whose rows may be in any order.

    `vocabulary` is the model's number of token ids; by default the largest that a table may have.

    Raises:
        RcdiagError: missing or additional rows, token ids other than those of `rows`, lists of
            another length than the response, values that are not log-probs or entropies; `who`
            begins the message.
    """
    try:
        table = read_whole(path)
    except RcdiagError as error:
        raise RcdiagError(
            f"{who} wrote no parquet file that can be read: {error.message}",
            hint="write it completely, for example with pyarrow.parquet.write_table",
        ) from error
    order = _order(table, rows, who)
    _check_ids(table, order, rows, who)
    # The limits are compared before the conversion to float32, which turns -1e39 into -inf.
    log_probs = _values(table, "log_probs", order, rows, who)
    impossible = (log_probs > ROUNDING) | (log_probs < SMALLEST_LOG_PROB)
    hint = f"log-probs are natural logarithms of probabilities: {SMALLEST_LOG_PROB:g} to 0"
    _refuse(impossible, log_probs, "log_probs", rows, who, hint)
    scores = Scores(log_probs.clip(max=0.0).astype(np.float32))
    if "entropy" in table.column_names:
        entropy = _values(table, "entropy", order, rows, who)
        most = math.log(vocabulary)
        impossible = (entropy < -ROUNDING) | (entropy > most * BFLOAT16 + ROUNDING)
        hint = f"entropies are in nats, 0 to {most:.4g} for {vocabulary:,} token ids"
        _refuse(impossible, entropy, "entropy", rows, who, hint)
        return Scores(scores.log_probs, entropy.clip(min=0.0).astype(np.float32))
    if wants_entropy:
        raise RcdiagError(
            f"{who} wrote no column `entropy`, which entropy=true asks for",
            hint="write it as a list for each row, or leave entropy=true out",
        )
    return scores


def _order(table: pa.Table, rows: Trajectories, who: str) -> NDArray[np.int64]:
    """Return for each requested row its index in the answer."""
    if lacking := {"row", "log_probs"} - set(table.column_names):
        raise RcdiagError(
            f"{who} wrote no column `{min(lacking)}`; there are {', '.join(table.column_names)}",
            hint="write `row`, copied from the input, and `log_probs`, a list for each row",
        )
    column = table["row"]
    if not pt.is_integer(column.type) or column.null_count:
        raise RcdiagError(
            f"{who} did not write a whole number in each row of column `row`",
            hint="copy the numbers from the input",
        )
    answered, asked = as_numpy(column).astype(np.int64), rows.row
    hint = f"the input has {len(asked):,} rows, the output {len(answered):,}; write each one once"
    names, count = np.unique(answered, return_counts=True)
    if (count > 1).any():
        raise RcdiagError(f"{who} wrote row {names[count > 1][0]} several times", hint=hint)
    for which, says in (
        (np.setdiff1d(asked, answered), "left out row"),
        (np.setdiff1d(answered, asked), "wrote a row that the input does not have,"),
    ):
        if len(which):
            raise RcdiagError(f"{who} {says} {which[0]}", hint=hint)
    places = np.argsort(answered)
    return places[np.searchsorted(answered[places], asked)]


def _check_ids(table: pa.Table, order: NDArray[np.int64], rows: Trajectories, who: str) -> None:
    """Refuse scores of other tokens, where the program wrote the ids that it scored."""
    for name, asked in (("prompt_ids", rows.prompt_ids), ("response_ids", rows.response_ids)):
        if name not in table.column_names or asked is None:
            continue
        answered = table[name].take(pa.array(order)).to_pylist()
        for row, ids in enumerate(answered):
            if ids != asked.row(row).tolist():
                raise RcdiagError(
                    f"{who} wrote other `{name}` for row {rows.row[row]} than the input has",
                    hint="score the ids as they are, without adding, cutting off or encoding "
                    f"tokens again; the output needs no `{name}`",
                )


def _values(
    table: pa.Table, name: str, order: NDArray[np.int64], rows: Trajectories, who: str
) -> NDArray[np.float64]:
    """Return a column of lists as flat values in the order of `rows`, [response tokens]."""
    column = table[name].combine_chunks()
    is_list = pt.is_list(column.type) or pt.is_large_list(column.type)
    if not is_list or not pt.is_floating(column.type.value_type):
        raise RcdiagError(
            f"{who} wrote column `{name}` as {column.type}", hint="write a list of floats"
        )
    lists = column.take(pa.array(order))
    values = lists.flatten()
    if lists.null_count or values.null_count:
        raise RcdiagError(
            f"{who} wrote a null in column `{name}`",
            hint="write a number for each response token, masked ones too",
        )
    lengths, wanted = np.diff(as_numpy(lists.offsets)), rows.response_ids.lengths
    if (wrong := lengths != wanted).any():
        assert rows.prompt_ids is not None
        row = int(np.argmax(wrong))
        found, response = int(lengths[row]), int(wanted[row])
        prompt = int(rows.prompt_ids.lengths[row])
        why = "masked ones too, and no padding"
        if found in (prompt + response, prompt + response - 1):
            why = "and none for the prompt"
        elif found == response - 1:
            why = "the first one from the logits at the prompt's last token"
        raise RcdiagError(
            f"{who} wrote {found} values of `{name}` for row {rows.row[row]}, whose response has "
            f"{response} tokens",
            hint=f"write a value for each response token, {why}",
        )
    numbers = as_numpy(values).astype(np.float64)
    hint = "write a finite number for each response token, masked ones included"
    _refuse(~np.isfinite(numbers), numbers, name, rows, who, hint)
    return numbers


def _refuse(
    bad: NDArray[np.bool_],
    values: NDArray[np.float64],
    name: str,
    rows: Trajectories,
    who: str,
    hint: str,
) -> None:
    """Refuse the scores if any value is bad; the error shows the first."""
    if not bad.any():
        return
    at = int(np.argmax(bad))
    row = rows.response_ids.row_with(at)
    token = at - rows.response_ids.offsets[row]
    raise RcdiagError(
        f"{who} wrote {values[at]:g} in `{name}` at response token {token} of row "
        f"{rows.row[row]} ({int(bad.sum())} of {len(bad)} values in this part)",
        hint=hint,
    )
