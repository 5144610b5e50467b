"""Values of `--given`, which for parquet are filled in when rows are read."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.drawn_rows import draw_rows
from rcdiag.table.given import GIVEN, read_given
from rcdiag.table.join import join_tables
from rcdiag.table.opening import open_table
from rcdiag.table.stream import read_trajectories
from tests.builders import write_table
from tests.table.readers.rows_of import column

IDS = [[number] for number in range(12)]


@pytest.fixture
def path(tmp_path):
    return write_table(tmp_path / "a.parquet", response_ids=IDS, rollout_log_probs=[[-1.0]] * 12)


def test_given_values_are_columns_of_the_table(path):
    table = open_table(path, given={"temperature": "0.7", "engine": "replica-3", "step": 4})
    assert table.columns == ["response_ids", "rollout_log_probs", "temperature", "engine", "step"]
    assert column(table, "temperature") == [0.7] * 12
    assert column(table, "engine") == ["replica-3"] * 12
    (rows,) = read_trajectories(table, ["rollout"], origin=True)
    assert set(rows.temperature.tolist()) == {0.7}
    assert set(rows.step.tolist()) == {4}
    assert table.metadata["given"] == {"temperature": 0.7, "engine": "replica-3", "step": 4}
    assert pq.read_schema(path).names == ["response_ids", "rollout_log_probs"]


def test_all_columns_are_read_with_the_given_ones_in_place(path):
    table = open_table(path, given={"top_k": 20, "finish_reason": "stop", "policy_version": 9})
    (batch,) = table.batches()
    assert batch.table.column_names == table.columns
    assert batch.table.schema.types == table.schema.types


def test_groups_of_a_given_size_are_consecutive_rows_of_the_whole_table(
    tmp_path, path, monkeypatch
):
    monkeypatch.setattr("rcdiag.table.readers.parquet.TOKENS_PER_BATCH", 5)
    write_table(tmp_path / "b.parquet", response_ids=IDS[:4], rollout_log_probs=[[-1.0]] * 4)
    table = open_table(tmp_path, given={"group_size": 8})
    assert column(table, "group_id") == [0] * 8 + [1] * 8
    with pytest.raises(RcdiagError, match="16 rows are not a whole number of groups") as caught:
        open_table(tmp_path, given={"group_size": 5})
    assert "1 are left over" in caught.value.message


def test_rows_that_are_drawn_keep_their_groups(tmp_path):
    rows = [[number] for number in range(400)]
    path = write_table(tmp_path / "a.parquet", rows_per_group=10, response_ids=rows)
    drawn = draw_rows(open_table(path, given={"group_size": 4, "top_p": 0.9}), 100, seed=0)
    ids, groups = column(drawn, "response_ids"), column(drawn, "group_id")
    assert 80 <= drawn.num_rows <= 120
    assert groups == [number // 4 for (number,) in ids]
    assert set(column(drawn, "top_p")) == {0.9}
    assert drawn.metadata["given"] == {"group_size": 4, "top_p": 0.9}


@pytest.mark.parametrize(
    "values",
    [
        [0.7] * 12,
        [0.7] * 6 + [None] * 6,
        [float("nan")] + [0.7] * 11,
        pa.array([0.7] * 12, "float"),
    ],
)
def test_given_values_may_repeat_the_dump_and_fill_gaps(tmp_path, values):
    path = write_table(tmp_path / "a.parquet", response_ids=IDS, temperature=values)
    table = open_table(path, given={"temperature": 0.7})
    assert column(table, "temperature") == pytest.approx([0.7] * 12)


@pytest.mark.parametrize(
    ("name", "values", "given", "output"),
    [
        ("temperature", [0.7] * 11 + [1.0], 0.7, "row 11: `temperature` is 1.0"),
        ("step", [3] * 12, 4, "row 0: `step` is 3"),
        ("engine", ["a"] * 5 + ["b"] * 7, "a", "row 5: `engine` is b"),
        ("engine", [1] * 12, 2, "row 0: `engine` is 1"),
        ("policy_version", [[3]] * 11 + [[4]], 3, "row 11: `policy_version` is [4]"),
        ("group_id", [1, 1, 2] * 4, 6, "2 of 2 prompt groups do not have the size"),
    ],
)
def test_values_that_the_dump_contradicts_are_refused(tmp_path, name, values, given, output):
    path = write_table(tmp_path / "a.parquet", response_ids=IDS, **{name: values})
    option = "group_size" if name == "group_id" else name
    with pytest.raises(RcdiagError) as caught:
        open_table(path, given={option: given})
    assert output in caught.value.message
    assert f"--given {option}={given}" in caught.value.message


def test_groups_of_the_dump_may_have_the_given_size(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=IDS, group_id=[1, 2, 3, 4] * 3)
    assert column(open_table(path, given={"group_size": 3}), "group_id") == [1, 2, 3, 4] * 3


@pytest.mark.parametrize(
    ("given", "output", "way"),
    [
        ({"temperatur": 1}, "`given={'temperatur': 1}` (--given temperatur=1)", "temperature?"),
        ({"response_ids": 1}, "this cannot be given", "one of temperature"),
        ({"temperature": 0}, "not a number above 0", ""),
        ({"temperature": "warm"}, "not a number above 0", ""),
        ({"temperature": True}, "not a number above 0", ""),
        ({"top_p": 1.5}, "not a number from 0 to 1", ""),
        ({"step": 1.5}, "not a whole number", ""),
        ({"group_size": 0}, "not a whole number, 1 or more", ""),
    ],
)
def test_other_names_cannot_be_given(path, given, output, way):
    with pytest.raises(RcdiagError) as caught:
        open_table(path, given=given)
    assert output in caught.value.message
    assert way in caught.value.hint


def test_text_is_read_as_the_type_of_its_column():
    texts = {name: "1" for name in GIVEN} | {"engine": "-2", "finish_reason": "stop"}
    read = read_given(texts)
    assert read["temperature"] == 1.0
    assert isinstance(read["temperature"], float)
    assert read["step"] == 1
    assert isinstance(read["step"], int)
    assert read["engine"] == -2
    assert read["finish_reason"] == "stop"
    assert read_given(None) == {}


def test_joined_tables_have_the_given_values(tmp_path, path):
    write_table(tmp_path / "b.parquet", response_ids=IDS, old_log_probs=[[-1.5]] * 12)
    given = {"temperature": 0.7, "group_size": 4}
    tables = [open_table(path, given=given), open_table(tmp_path / "b.parquet")]
    joined = join_tables(tables)
    assert column(joined, "temperature") == [0.7] * 12
    assert column(joined, "group_id") == [0] * 4 + [1] * 4 + [2] * 4
    assert joined.metadata["given"] == given


def test_a_reward_is_chosen_only_if_a_dump_has_several(path):
    with pytest.raises(RcdiagError, match="has no dictionaries of rewards"):
        open_table(path, given={"reward_key": "right"})
