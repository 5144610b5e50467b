"""Rows of a batch as checked arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.readers.parquet import MAX_ROWS_PER_BATCH, row_groups_of, rows_per_batch
from rcdiag.table.sources import SourceFile
from rcdiag.table.stream import columns_needed, decode
from rcdiag.table.survey import read_groups_and_rewards
from rcdiag.table.table import RowBatch, Table, TableFile
from rcdiag.table.token_batch import sampled_tokens
from tests.builders import arrow_table, first_batch, write_table

IDS = [[1, 2], [], [3, 4, 5]]
LOG_PROBS = [[-1.0, -2.0], [], [-3.0, -0.5, 0.0]]


def batch_of(tmp_path, **columns) -> RowBatch:
    """Make a batch in memory, which keeps Arrow's own layouts."""
    return in_memory(arrow_table(**columns), tmp_path / "a.parquet")


def in_memory(table: pa.Table, path: Path) -> RowBatch:
    dump = Table((TableFile(SourceFile(path), table.num_rows, 0),), table.schema, {})
    return RowBatch(table, np.arange(table.num_rows), dump)


def test_columns_become_flat_arrays(tmp_path):
    path = write_table(
        tmp_path / "a.parquet",
        response_ids=IDS,
        prompt_ids=[[7], [8, 9], [7]],
        response_mask=[[1, 0], [], [0, 1, 1]],
        old_log_probs=LOG_PROBS,
        temperature=[0.7, None, 1.0],
        group_id=["x", "y", "x"],
        step=[3, 3, 4],
    )
    rows = decode(first_batch(path), ["old"])
    assert len(rows) == 3
    assert rows.response_ids.values.tolist() == [1, 2, 3, 4, 5]
    assert rows.response_ids.values.dtype == np.int32
    assert rows.response_ids.offsets.tolist() == [0, 2, 2, 5]
    assert rows.prompt_ids.row(1).tolist() == [8, 9]
    assert rows.mask.tolist() == [True, False, False, True, True]
    assert rows.log_probs["old"].tolist() == [-1.0, -2.0, -3.0, -0.5, 0.0]
    assert rows.sampled_lengths.tolist() == [1, 0, 2]
    assert rows.scoring_temperature.tolist() == [0.7, 1.0, 1.0]
    assert rows.group[0] == rows.group[2] != rows.group[1]
    assert rows.step.tolist() == [3, 3, 4]


def test_without_a_mask_every_token_is_sampled(tmp_path):
    assert decode(batch_of(tmp_path, response_ids=IDS)).mask.tolist() == [True] * 5


@pytest.mark.parametrize("kind", [pa.bool_(), pa.uint8(), pa.int8(), pa.int32(), pa.int64()])
def test_masks_may_be_bools_or_integers(tmp_path, kind):
    mask = pa.array([[1, 0], [], [0, 1, 1]], pa.list_(pa.int64())).cast(pa.list_(kind))
    rows = decode(batch_of(tmp_path, response_ids=IDS, response_mask=mask))
    assert rows.mask.dtype == np.bool_
    assert rows.mask.tolist() == [True, False, False, True, True]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_log_probs_are_float64_inside(tmp_path, kind):
    values = pa.array(LOG_PROBS, pa.list_(pa.float64())).cast(pa.list_(kind))
    result = decode(batch_of(tmp_path, response_ids=IDS, old_log_probs=values), ["old"])
    assert result.log_probs["old"].dtype == np.float64
    assert result.log_probs["old"].tolist() == [-1.0, -2.0, -3.0, -0.5, 0.0]


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint32(), pa.int64()])
def test_token_ids_may_be_any_integers(tmp_path, kind):
    ids = pa.array(IDS, pa.list_(kind))
    result = decode(batch_of(tmp_path, response_ids=ids)).response_ids
    assert (result.values.dtype, result.values.tolist()) == (np.int32, [1, 2, 3, 4, 5])


LAYOUTS = {
    "list": lambda rows, kind: pa.array(rows, pa.list_(kind)),
    "large list": lambda rows, kind: pa.array(rows, pa.large_list(kind)),
    "slice": lambda rows, kind: pa.array([rows[2], *rows, rows[0]], pa.list_(kind)).slice(1, 3),
    "slice of large list": lambda rows, kind: pa.array(
        [rows[2], *rows, rows[0]], pa.large_list(kind)
    ).slice(1, 3),
    "chunks": lambda rows, kind: pa.chunked_array(
        [pa.array(rows[:1], pa.list_(kind)), pa.array(rows[1:], pa.list_(kind))]
    ),
    "sliced chunks": lambda rows, kind: pa.chunked_array(
        [pa.array([rows[2], *rows[:2]], pa.list_(kind)), pa.array(rows[2:], pa.list_(kind))]
    ).slice(1, 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_arrow_lists_gives_the_same_rows(tmp_path, layout):
    make = LAYOUTS[layout]
    columns = {
        "response_ids": make(IDS, pa.int32()),
        "response_mask": make([[True, False], [], [False, True, True]], pa.bool_()),
        "old_log_probs": make(LOG_PROBS, pa.float32()),
    }
    rows = decode(batch_of(tmp_path, **columns), ["old"])
    assert rows.response_ids.offsets.tolist() == [0, 2, 2, 5]
    assert rows.response_ids.values.tolist() == [1, 2, 3, 4, 5]
    assert rows.mask.tolist() == [True, False, False, True, True]
    assert rows.log_probs["old"].tolist() == [-1.0, -2.0, -3.0, -0.5, 0.0]


def test_lists_of_fixed_size_are_lists(tmp_path):
    ids = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2))
    batch = batch_of(tmp_path, response_ids=ids)
    assert decode(batch).response_ids.offsets.tolist() == [0, 2, 4, 6]
    assert decode(batch.slice(1, 3)).response_ids.values.tolist() == [3, 4, 5, 6]


def test_a_slice_of_a_batch_keeps_its_row_numbers(tmp_path):
    batch = batch_of(tmp_path, response_ids=IDS, old_log_probs=LOG_PROBS).slice(1, 3)
    rows = decode(batch, ["old"])
    assert rows.first_row == 1
    assert rows.response_ids.row(1).tolist() == [3, 4, 5]
    assert batch.where(1).endswith("row 2")


@pytest.mark.parametrize("every", [2, 1000])
def test_selected_rows_keep_their_numbers(tmp_path, every):
    """A few runs of adjacent rows are sliced, many runs are gathered row by row."""
    rows = np.arange(3000)
    batch = batch_of(tmp_path, response_ids=[[row] for row in rows.tolist()]).slice(5, 3000)
    some = batch.take(batch.numbers % every == 0)
    assert some.numbers.tolist() == rows[(rows >= 5) & (rows % every == 0)].tolist()
    assert decode(some).response_ids.values.tolist() == some.numbers.tolist()
    assert some.where(1).endswith(f"row {some.numbers[1]}")


def test_masked_values_are_ignored(tmp_path):
    garbage = [[-1.0, np.nan], [], [np.inf, 1e30, -2.0]]
    mask = [[1, 0], [], [0, 0, 1]]
    batch = batch_of(tmp_path, response_ids=IDS, response_mask=mask, rollout_log_probs=garbage,
                     old_log_probs=garbage)  # fmt: skip
    tokens = sampled_tokens(decode(batch, ["rollout", "old"]), ["rollout", "old"])
    assert tokens.log_probs["rollout"].tolist() == [-1.0, -2.0]


def test_non_finite_values_at_unmasked_tokens_are_accepted_and_counted(tmp_path):
    values = [[np.nan, -np.inf], [], [np.inf, -1.0, -1.0]]
    result = decode(batch_of(tmp_path, response_ids=IDS, old_log_probs=values), ["old"])
    assert np.isnan(result.log_probs["old"][0])
    assert result.log_probs["old"][1:3].tolist() == [-np.inf, np.inf]


def test_rounding_above_zero_is_a_legal_log_prob(tmp_path):
    values = [[0.0, 2e-7], [], [0.0, 0.0, 0.0]]
    result = decode(batch_of(tmp_path, response_ids=IDS, old_log_probs=values), ["old"])
    assert result.log_probs["old"][1] == 2e-7


def test_keys_are_the_same_in_every_batch_and_width(tmp_path):
    one = decode(batch_of(tmp_path, response_ids=IDS, group_id=["a", "b", "c"])).group
    kind = pa.large_string()
    ids = [[1], [2]]
    other = decode(batch_of(tmp_path, response_ids=ids, group_id=pa.array(["c", "a"], kind))).group
    assert other.tolist() == [one[2], one[0]]


def test_an_advantage_belongs_to_its_row(tmp_path):
    batch = batch_of(tmp_path, response_ids=IDS, advantage=[1.5, None, -2.0])
    result = decode(batch).advantage
    assert result[[0, 2]].tolist() == [1.5, -2.0]
    assert np.isnan(result[1])


def test_advantages_of_tokens_are_averaged_where_the_policy_sampled(tmp_path):
    values = pa.array([[1.0, np.nan], [], [9.0, 2.0, 4.0]], pa.list_(pa.float32()))
    batch = batch_of(tmp_path, response_ids=IDS, advantages=values,
                     response_mask=[[1, 0], [], [0, 1, 1]])  # fmt: skip
    result = decode(batch).advantage
    assert result[[0, 2]].tolist() == [1.0, 3.0]
    assert np.isnan(result[1])


def test_the_advantage_of_the_row_takes_precedence(tmp_path):
    values = pa.array([[1.0, 2.0], [], [9.0, 2.0, 4.0]], pa.list_(pa.float32()))
    batch = batch_of(tmp_path, response_ids=IDS, advantages=values, advantage=[7.0, 8.0, 9.0])
    assert decode(batch).advantage.tolist() == [7.0, 8.0, 9.0]


def test_the_number_of_advantages_must_equal_the_tokens(tmp_path):
    values = pa.array([[1.0], [], [9.0, 2.0, 4.0]], pa.list_(pa.float32()))
    with pytest.raises(RcdiagError, match="column `advantages`"):
        decode(batch_of(tmp_path, response_ids=IDS, advantages=values))


@pytest.mark.parametrize("details", [True, False])
def test_advantages_are_read_with_the_details_only(details):
    names = ["response_ids", "advantage", "advantages", "reward"]
    result = columns_needed(names, [], details=details)
    assert ("advantage" in result, "advantages" in result) == (details, details)


def test_rewards_and_groups_are_read_before_the_tokens(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=IDS, group_id=["x", "y", "x"],
                       reward=[1.0, None, 0.5])  # fmt: skip
    group, reward = read_groups_and_rewards(open_table(path))
    assert group[0] == group[2] != group[1]
    assert reward[[0, 2]].tolist() == [1.0, 0.5]
    assert np.isnan(reward[1])


@pytest.mark.filterwarnings("error")
def test_a_signalling_nan_is_read_without_a_warning(tmp_path):
    signalling = np.array([0x7FA00000], np.uint32).view(np.float32)
    values = pa.ListArray.from_arrays([0, 1], pa.array(signalling))
    table = pa.table(
        {
            "response_ids": pa.array([[1]], pa.list_(pa.int32())),
            "rollout_log_probs": values,
            "old_log_probs": values,
        }
    )
    batch = in_memory(table, tmp_path / "a.parquet")
    assert np.isnan(decode(batch, ("rollout", "old")).log_probs["old"]).all()


def test_lists_of_tokens_have_one_list_for_each_response_token(tmp_path):
    experts = pa.array([[[1, 2], [3, 4]], [], [[5, 6]]], pa.list_(pa.list_(pa.uint16())))
    kept = pa.array([[[7, 8, 9], []], [], [None]], pa.list_(pa.list_(pa.int32())))
    table = pa.table(
        {
            "response_ids": pa.array([[7, 1], [], [2]], pa.list_(pa.int32())),
            "rollout_routed_experts": experts,
            "rollout_kept_ids": kept,
        }
    )
    pq.write_table(table, path := tmp_path / "lists.parquet")
    (batch,) = open_table(path).batches(table.column_names)
    lists = decode(batch).token_lists
    routed = lists["rollout_routed_experts"]
    assert [routed.row(token).tolist() for token in range(3)] == [[1, 2], [3, 4], [5, 6]]
    assert lists["rollout_kept_ids"].lengths.tolist() == [3, 0, 0]


def test_a_null_in_a_list_of_a_token_is_refused(tmp_path):
    kept = pa.array([[[1]], [[2], [3, None]]], pa.list_(pa.list_(pa.int32())))
    table = pa.table(
        {"response_ids": pa.array([[1], [2, 3]], pa.list_(pa.int32())), "old_kept_ids": kept}
    )
    pq.write_table(table, path := tmp_path / "null.parquet")
    (batch,) = open_table(path).batches(table.column_names)
    with pytest.raises(RcdiagError, match=r"row 1: column `old_kept_ids` holds a null in the list"):
        decode(batch)


def test_batches_have_fewer_rows_if_kept_sets_are_large(tmp_path):
    """2,000 rows of 10 tokens with 400 kept ids each hold 8 million ids."""
    lists = pa.list_(pa.list_(pa.int32()))
    ids = pa.array([[7] * 10] * 3, pa.list_(pa.int32()))
    for count, rows in ((2, MAX_ROWS_PER_BATCH), (400, 2000)):
        kept = pa.array([[[7] * count] * 10] * 3, lists)
        path = tmp_path / f"{count}.parquet"
        pq.write_table(pa.table({"response_ids": ids, "rollout_kept_ids": kept}), path)
        assert rows_per_batch(row_groups_of(path), "response_ids") == rows
