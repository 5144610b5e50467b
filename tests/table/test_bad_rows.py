"""Invalid rows: the error names file, row and column, and says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.stream import decode
from rcdiag.table.survey import survey
from tests.builders import write_table

GOOD = {
    "response_ids": [[1, 2], [3], [4, 5]],
    "prompt_ids": [[1], [1], [1]],
    "response_mask": [[1, 1], [1], [0, 1]],
    "old_log_probs": [[-1.0, -2.0], [-1.0], [-1.0, -2.0]],
    "step": [1, 1, 1],
    "group_id": ["a", "a", "b"],
    "temperature": [1.0, 1.0, 1.0],
}


def decode_all(source: Path) -> None:
    for batch in open_table(source).batches():
        decode(batch, ["old"])
    survey(open_table(source), [])


def refused(tmp_path: Path, **columns: object) -> RcdiagError:
    """Return the error about the second of two files, whose row 2 is invalid."""
    first, second = (tmp_path / name for name in ("first.parquet", "second.parquet"))
    bad = {**GOOD, **columns}
    kinds = {name: values.type for name, values in bad.items() if isinstance(values, pa.Array)}
    good = {
        name: pa.array(values, kinds[name]) if name in kinds else values
        for name, values in GOOD.items()
    }
    write_table(first, **good)
    write_table(second, rows_per_group=2, **bad)
    with pytest.raises(RcdiagError) as caught:
        decode_all(tmp_path)
    assert f"{second}, row 2" in caught.value.message
    assert caught.value.hint
    (name,) = columns
    assert f"`{name}`" in caught.value.message
    return caught.value


def test_good_rows_pass(tmp_path):
    decode_all(write_table(tmp_path / "a.parquet", **GOOD))


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("column", ["response_mask", "old_log_probs"])
def test_lengths_that_disagree(tmp_path, column, length):
    rows = [*GOOD[column][:2], [1 if column == "response_mask" else -1.0] * length]
    error = refused(tmp_path, **{column: rows})
    assert "for 2 tokens" in error.message
    assert f"{length} values" in error.message


def test_lengths_that_disagree_in_two_rows_but_not_in_sum(tmp_path):
    rows = {**GOOD, "old_log_probs": [[-1.0], [-1.0, -1.0], [-1.0, -1.0]]}
    path = write_table(tmp_path / "a.parquet", **rows)
    with pytest.raises(RcdiagError, match="row 0"):
        decode_all(path)


@pytest.mark.parametrize("column", ["response_ids", "prompt_ids"])
@pytest.mark.parametrize("value", [-1, -100, 2**31, 2**40])
def test_impossible_token_ids(tmp_path, column, value):
    rows = [*GOOD[column][:2], [4, value][-len(GOOD[column][2]) :]]
    error = refused(tmp_path, **{column: pa.array(rows, pa.list_(pa.int64()))})
    assert str(value) in error.message


@pytest.mark.parametrize("value", [2, 255])
def test_mask_values_that_are_neither_zero_nor_one(tmp_path, value):
    error = refused(tmp_path, response_mask=[*GOOD["response_mask"][:2], [0, value]])
    assert str(value) in error.message


@pytest.mark.parametrize(
    "column",
    ["response_ids", "prompt_ids", "response_mask", "old_log_probs", "step", "group_id"],
)
def test_null_rows(tmp_path, column):
    assert "null" in refused(tmp_path, **{column: [*GOOD[column][:2], None]}).message


@pytest.mark.parametrize("column", ["response_ids", "response_mask", "old_log_probs"])
def test_nulls_inside_a_list_at_an_unmasked_token(tmp_path, column):
    rows = [*GOOD[column][:2], [GOOD[column][2][0], None]]
    assert "null" in refused(tmp_path, **{column: rows}).message


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf])
def test_impossible_temperatures(tmp_path, value):
    """No model can score at them, but recorded log-probs are still compared."""
    refused(tmp_path, temperature=[1.0, 1.0, value])


def test_nulls_at_masked_tokens_are_ignored(tmp_path):
    rows = [*GOOD["old_log_probs"][:2], [None, -2.0]]
    decode_all(write_table(tmp_path / "a.parquet", **{**GOOD, "old_log_probs": rows}))


@pytest.mark.parametrize("first_too", [True, False])
def test_log_probs_that_include_the_prompt(tmp_path, first_too):
    """An engine may return none for the first token of a prompt."""
    prompts = [[1, 2, 3, 4]] * 3
    values = [[-1.0] * ((4 if first_too else 3) + len(row)) for row in GOOD["old_log_probs"]]
    rows = {**GOOD, "prompt_ids": prompts, "old_log_probs": values}
    with pytest.raises(RcdiagError) as caught:
        decode_all(write_table(tmp_path / "a.parquet", **rows))
    assert "covers the prompt too" in caught.value.hint
    assert "keep the last 2 of this row" in caught.value.hint
