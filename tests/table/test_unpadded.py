"""Parquet files of a trainer's padded tensors are cut to the tokens, cell by cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from tests.table.readers.rollouts import assert_rows, only, rollouts
from tests.table.readers.verl_batches import tensors_of

OF_TOKENS = ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs")
# verl's names, and TRL's, of the tensors of a batch.
OF_TRL = {
    "prompts": "prompt_ids",
    "responses": "completion_ids",
    "response_mask": "tool_mask",
    "rollout_log_probs": "sampling_per_token_logps",
}


def lists(tensors: dict[str, Any], *, fixed: bool = False) -> pa.Table:
    """Return a batch's tensors as list columns, optionally of one fixed size."""
    columns = {}
    for name, tensor in tensors.items():
        array = pa.array(list(tensor.numpy()))
        kind = pa.list_(array.type.value_type, tensor.shape[1])
        columns[name] = array.cast(kind) if fixed else array
    return pa.table(columns)


def of_verl(batch: Any) -> dict[str, Any]:
    names = ("prompts", "responses", "attention_mask", "response_mask", "rollout_log_probs")
    tensors = tensors_of(batch)
    return {name: tensors[name] for name in names}


def of_trl(batch: Any) -> dict[str, Any]:
    tensors = of_verl(batch)
    attention, width = tensors.pop("attention_mask"), tensors["prompts"].shape[1]
    masks = {"prompt_mask": attention[:, :width], "completion_mask": attention[:, width:]}
    return {OF_TRL[name]: tensor for name, tensor in tensors.items()} | masks


def converted(source: Path, tmp_path: Path, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    result = rcdiag.convert(source, tmp_path / "out.parquet", **options)
    return pq.read_table(tmp_path / "out.parquet").to_pylist(), result


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("tensors", [of_verl, of_trl])
def test_every_cell_of_padded_tensors_is_read(tensors, fixed, tmp_path):
    batch = rollouts(12)
    pq.write_table(lists(tensors(batch), fixed=fixed), tmp_path / "batch.parquet", row_group_size=5)
    rows, result = converted(tmp_path / "batch.parquet", tmp_path)
    assert_rows(rows, only(batch.rows, *OF_TOKENS))
    assert any("padding of prompts and responses is left out" in text for text in result.changes)
    table = rcdiag.open_table(tmp_path / "batch.parquet")
    assert table.policies == ["rollout"]
    assert rcdiag.score(table).provenance["rows"] == 12


def test_files_of_one_run_keep_their_names_and_other_columns(tmp_path):
    folder = tmp_path / "dump"
    folder.mkdir()
    batches = {step: rollouts(4, seed=step) for step in (9, 10)}
    for step, batch in batches.items():
        table = lists(of_verl(batch)).append_column("step", pa.array([step] * 4))
        pq.write_table(table.append_column("note", pa.array(["x"] * 4)), folder / f"{step}.parquet")
    rows, _ = converted(folder, tmp_path)
    assert_rows(rows, only(batches[9].rows + batches[10].rows, *OF_TOKENS))
    assert [(row["step"], row["note"]) for row in rows] == [(9, "x")] * 4 + [(10, "x")] * 4
    assert rcdiag.open_table(folder).name == str(folder / "9.parquet")


@pytest.mark.parametrize("hole", [0, 1])
def test_a_mask_with_a_hole_is_refused_by_its_row(hole, tmp_path):
    tensors = of_verl(rollouts(4))
    tensors["attention_mask"][1, hole - tensors["responses"].shape[1]] = 0
    pq.write_table(lists(tensors), tmp_path / "batch.parquet")
    with pytest.raises(RcdiagError, match=r"batch.parquet, row 1: `attention_mask` is not one"):
        rcdiag.open_table(tmp_path / "batch.parquet")
    with pytest.raises(RcdiagError, match=r"row 1: `attention_mask` is not one"):
        rcdiag.open_table({name: tensor.numpy() for name, tensor in tensors.items()})


def test_unpadded_rows_after_padded_ones_are_refused(tmp_path):
    batch = rollouts(300)
    table = lists(of_verl(batch))
    rows = table.to_pylist()
    rows[250]["responses"] = rows[250]["responses"][:-1]
    table = pa.Table.from_pylist(rows, schema=table.schema)
    pq.write_table(table, tmp_path / "batch.parquet", row_group_size=200)
    with pytest.raises(RcdiagError, match=r"batch.parquet, rows 0 to 299: lists differ"):
        rcdiag.open_table(tmp_path / "batch.parquet")


def test_a_mask_mapped_by_the_user_is_used(tmp_path):
    tensors = of_trl(rollouts(8))
    del tensors["tool_mask"]
    pq.write_table(lists(tensors), tmp_path / "batch.parquet")
    named = {"response_mask": "completion_mask"}
    table = rcdiag.open_table(tmp_path / "batch.parquet", columns=named)
    widths = {len(row) for batch in table.batches() for row in batch.table["response_ids"]}
    assert widths == {tensors["completion_ids"].shape[1]}


def test_columns_with_other_names_are_reported(tmp_path):
    columns = {"responses": [[1, 2]], "rollout_logprobs": [[-0.5, -0.25]]}
    pq.write_table(pa.table(columns), tmp_path / "batch.parquet")
    _, result = converted(tmp_path / "batch.parquet", tmp_path)
    assert any("`response_ids` from `responses` (verl)" in text for text in result.changes)
