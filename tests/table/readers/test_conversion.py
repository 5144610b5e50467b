"""Conversion common to all formats: checks, types, placeholders, groups, one schema."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from rcdiag.errors import RcdiagError
from rcdiag.progress import Progress
from rcdiag.table import writer
from rcdiag.table.opening import open_table
from rcdiag.table.readers import READERS
from rcdiag.table.readers.reader import Dump, Reader, Rows
from rcdiag.table.stream import read_trajectories
from rcdiag.table.table import Table
from tests.table.readers.rows_of import column
from tests.table.toy_reader import TOY, write_toy


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with READERS.with_added(TOY):
        yield


def row(*ids: int, **columns: Any) -> dict[str, Any]:
    numbers = [-0.5 - 0.25 * place for place in range(len(ids))]
    return {"response_ids": list(ids), "rollout_log_probs": numbers, **columns}


def opened(folder: Path, rows: Sequence[Mapping[str, Any]], **keywords: Any) -> Table:
    return open_table(write_toy(folder / "a.toyjsonl", rows), **keywords)


def changes(table: Table) -> dict[str, int]:
    return table.metadata["conversion"]["changes"]


def refused(folder: Path, rows: Sequence[Mapping[str, Any]], **keywords: Any) -> RcdiagError:
    with pytest.raises(RcdiagError) as caught:
        opened(folder, rows, **keywords)
    assert caught.value.hint
    return caught.value


def test_rows_have_the_types_of_the_table_and_columns_of_others_are_kept(tmp_path):
    rows = [
        row(1, 2, step=4, temperature=1, reward=1, top_k=20, tool={"name": "bash"}, uid="a"),
        row(3, step=4, temperature=0.7, reward=0.5, top_k=-1, tool={"name": "sh"}, uid="b"),
    ]
    table = opened(tmp_path, rows)
    assert column(table, "tool") == [{"name": "bash"}, {"name": "sh"}]
    kinds = {name: str(table.schema.field(name).type) for name in table.columns}
    assert kinds == {
        "response_ids": "list<element: int32>",
        "rollout_log_probs": "list<element: double>",
        "reward": "double",
        "step": "int64",
        "temperature": "double",
        "tool": "struct<name: string>",
        "top_k": "int64",
        "uid": "string",
    }


@pytest.mark.parametrize(
    ("change", "output"),
    [
        ({"rollout_log_probs": [-1.0]}, "column `rollout_log_probs`: 1 values for 3 tokens"),
        ({"response_mask": [1, 1]}, "column `response_mask`: 2 values for 3 tokens"),
        ({"advantages": [0.5] * 4}, "column `advantages`: 4 values for 3 tokens"),
        ({"policy_version": [1]}, "column `policy_version`: 1 values for 3 tokens"),
        ({"response_mask": [1, 2, 0]}, "column `response_mask`: it holds 2"),
        ({"response_ids": [1, -5, 2]}, "column `response_ids`: it holds token id -5"),
        ({"prompt_ids": [3, -1]}, "column `prompt_ids`: it holds token id -1"),
        ({"prompt_ids": [3, 1 << 20]}, "column `prompt_ids`: it holds token id 1048576"),
        ({"response_ids": None}, "no response tokens (null)"),
    ],
)
def test_a_bad_row_is_named_by_file_and_record(tmp_path, change, output):
    good = {"response_mask": [1, 1, 1], "advantages": [0.0, 0.0, 0.0], "policy_version": [1, 1, 1]}
    rows = [row(1, 2, 3, prompt_ids=[1], **good)] * 9
    rows[8] = {**rows[8], **change}
    error = refused(tmp_path, rows)
    assert error.message.startswith(f"{tmp_path / 'a.toyjsonl'}, row 8: ")
    assert output in error.message


@pytest.mark.parametrize("name", ["step", "group_id", "sample_id", "prompt_ids"])
@pytest.mark.parametrize("is_null", [True, False])
def test_identifying_columns_are_in_all_rows_or_in_none(tmp_path, name, is_null):
    value = {"prompt_ids": [7], "sample_id": "a"}.get(name, 7)
    write_toy(tmp_path / "1.toyjsonl", [row(1, **{name: value}), row(2, **{name: value})])
    lacking = [row(3, **{name: None})] if is_null else [row(3)]
    write_toy(tmp_path / "2.toyjsonl", [row(3, **{name: value}), *lacking] if is_null else lacking)
    with pytest.raises(RcdiagError) as caught:
        open_table(tmp_path)
    place = f"{tmp_path / '2.toyjsonl'}, row {int(is_null)}: no `{name}`"
    assert caught.value.message.startswith(place)
    assert "convert them separately" in caught.value.hint
    assert open_table(tmp_path / "1.toyjsonl").num_rows == 2


def test_a_given_step_fills_rows_without_one(tmp_path):
    write_toy(tmp_path / "1.toyjsonl", [row(1, step=7), row(2)])
    assert column(open_table(tmp_path, given={"step": 7}), "step") == [7, 7]


def test_columns_that_some_files_lack_are_null_there(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "ROWS_PER_COPY", 2)
    write_toy(tmp_path / "1.toyjsonl", [row(1, reward=1.0), row(2, 3, reward=0.0)])
    write_toy(tmp_path / "2.toyjsonl", [row(4, 5, engine=7, response_mask=[1, 0])] * 3)
    write_toy(tmp_path / "3.toyjsonl", [row(6, engine="b", note=[[1]])])
    table = open_table(tmp_path)
    assert column(table, "reward") == [1.0, 0.0, None, None, None, None]
    assert column(table, "engine") == [None, None, "7", "7", "7", "b"]
    assert column(table, "note") == [None] * 5 + [[[1]]]
    assert column(table, "response_mask") == [[1], [1, 1], [1, 0], [1, 0], [1, 0], [1]]
    assert changes(table) == {
        "reward: is null in rows of files without it": 4,
        "engine: is null in rows of files without it": 2,
        "response_mask: counts every token in rows of files without it": 3,
        "note: is null in rows of files without it": 5,
    }
    assert [table.where(row) for row in (0, 4, 5)] == [
        f"{tmp_path / '1.toyjsonl'}, row 0",
        f"{tmp_path / '2.toyjsonl'}, row 2",
        f"{tmp_path / '3.toyjsonl'}, row 0",
    ]
    assert list(table.files[0].parquet.parent.iterdir()) == [table.files[0].parquet]


def test_columns_without_a_common_type_are_dropped_or_refused(tmp_path):
    write_toy(tmp_path / "1.toyjsonl", [row(1, note="text")])
    write_toy(tmp_path / "2.toyjsonl", [row(2, note={"a": 1})])
    write_toy(tmp_path / "3.toyjsonl", [row(3, note={"a": 1})])
    table = open_table(tmp_path)
    assert "note" not in table.columns
    assert (
        table.metadata["conversion"]["dropped"]["note"]
        == "files hold types that cannot be combined"
    )
    assert column(table, "response_ids") == [[1], [2], [3]]
    write_toy(tmp_path / "1.toyjsonl", [row(1, policy_version=3)])
    write_toy(tmp_path / "2.toyjsonl", [row(2, policy_version=[3])])
    with pytest.raises(RcdiagError, match="column `policy_version`: files hold types"):
        open_table(tmp_path)


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, -9999.0])
def test_a_column_of_placeholders_is_dropped_and_reported(tmp_path, value):
    mask = [1, 1, 0]
    filled = {"old_log_probs": [value, value, -3.0], "response_mask": mask}
    about = {"policies": {"old": {"backend": "trainer"}, "rollout": {"backend": "vllm"}}}
    path = write_toy(tmp_path / "a.toyjsonl", [row(1, 2, 3, **filled)] * 20, about)
    table = open_table(path)
    assert table.policies == ["rollout"]
    assert "old_log_probs" not in pq.read_schema(table.files[0].parquet).names
    reason = f"every sampled token has {value:g}, a placeholder"
    assert changes(table) == {f"old_log_probs: dropped, {reason}": 0}
    assert table.metadata["conversion"]["dropped"] == {"old_log_probs": reason}
    assert table.metadata["policies"] == {"rollout": {"backend": "vllm"}}


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0])
def test_placeholders_in_one_file_of_several_are_refused_with_the_file(tmp_path, value):
    """A step without log-probs from the engine has zeros as placeholders."""
    for number in range(3):
        constant = {"rollout_log_probs": [value] * 2} if number == 1 else {}
        rows = [row(1, 2, **constant) for _ in range(50)]
        write_toy(tmp_path / f"{number}.toyjsonl", rows)
    match = rf"1\.toyjsonl: every sampled token has {value:g} in `rollout_log_probs`, a placeholder"
    with pytest.raises(RcdiagError, match=match) as caught:
        open_table(tmp_path)
    assert "leave this file out" in caught.value.hint
    write_toy(tmp_path / "1.toyjsonl", [row(1, 2, rollout_log_probs=[value] * 2)] * 49)
    assert open_table(tmp_path).num_rows == 149  # few tokens may be certain


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_column_with_one_other_value_is_kept(tmp_path, value):
    rows = [row(1, 2, old_log_probs=[value, value]) for _ in range(20)]
    rows[19]["old_log_probs"][1] = -0.25
    table = opened(tmp_path, rows)
    assert table.policies == ["rollout", "old"]
    assert column(table, "old_log_probs") == [line["old_log_probs"] for line in rows]


def test_a_floor_becomes_nan_with_its_count(tmp_path):
    rows = [row(1, 2, 3, response_mask=[1, 1, 0]) for _ in range(12)]
    rows[3]["rollout_log_probs"] = [-9999, -1.0, -9999]
    rows[9]["rollout_log_probs"] = [-9999, -9999, -9998.5]
    table = opened(tmp_path, rows)
    result = column(table, "rollout_log_probs")
    assert [math.isnan(value) for value in result[3]] == [True, False, True]
    assert result[9][2] == -9998.5
    ((text, count),) = changes(table).items()
    assert text.startswith("rollout_log_probs: NaN in place of -9999 at 3 sampled tokens")
    assert count == 2


def test_null_log_probs_are_nan(tmp_path):
    table = opened(tmp_path, [row(1, 2), {**row(3, 4), "rollout_log_probs": [None, -1.0]}])
    result = column(table, "rollout_log_probs")
    assert result[0] == [-0.5, -0.75]
    assert math.isnan(result[1][0])
    assert result[1][1] == -1.0


def test_trainer_log_probs_equal_to_the_samplers_are_reported(tmp_path):
    rows = [row(1, 2), row(3)]
    same = [{**line, "old_log_probs": line["rollout_log_probs"]} for line in rows]
    output = (
        "old_log_probs equals rollout_log_probs bit for bit on every token: the mismatch is not "
        "observable"
    )
    assert output in changes(opened(tmp_path, same))
    same[1]["old_log_probs"] = [-0.5 + 1e-16]
    assert output not in changes(opened(tmp_path, same))


def prompts(*of_rows: list[int], **columns: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        row(number, prompt_ids=prompt, **{name: values[number] for name, values in columns.items()})
        for number, prompt in enumerate(of_rows)
    ]


def test_groups_are_the_dumps_own_ids(tmp_path):
    table = opened(tmp_path, prompts([1], [1], [2], group_id=[7, 8, 8]))
    assert column(table, "group_id") == [7, 8, 8]
    assert changes(table) == {}


def test_groups_are_rows_with_equal_prompts_in_a_step(tmp_path):
    rows = prompts([1, 2], [3], [1, 2], [1, 2], [], [1, 2, 3])
    table = opened(tmp_path, rows)
    assert column(table, "group_id") == [0, 1, 0, 0, 2, 3]
    assert changes(table) == {"group_id: rows with equal prompts are a prompt group": 0}
    steps = [{**line, "step": step} for line, step in zip(rows, [1, 1, 1, 2, 2, 2], strict=True)]
    table = opened(tmp_path, steps)
    assert column(table, "group_id") == [0, 1, 0, 2, 3, 4]
    output = "group_id: rows of one step with equal prompts are a prompt group"
    assert changes(table) == {output: 0}


def test_groups_of_many_rows_are_found_over_all_files(tmp_path):
    generator = np.random.default_rng(0)
    expected = generator.integers(0, 40, 300)
    rows = prompts(*([int(n)] * (1 + int(n) % 3) for n in expected))
    for part in range(3):
        write_toy(tmp_path / f"{part}.toyjsonl", rows[part * 100 : part * 100 + 100])
    result = np.array(column(open_table(tmp_path), "group_id"))
    _, first = np.unique(expected, return_index=True)
    assert len(np.unique(result)) == len(first)
    assert len({(a, b) for a, b in zip(expected.tolist(), result.tolist(), strict=True)}) == len(
        first
    )


def test_groups_of_a_given_size_are_consecutive_where_the_format_orders_them(tmp_path):
    rows = prompts([1], [1], [1], [1], [2], [2])
    table = opened(tmp_path, rows, given={"group_size": 2})
    assert column(table, "group_id") == [0, 0, 1, 1, 2, 2]
    assert changes(table) == {"group_id: 2 consecutive rows are a prompt group, as given": 0}
    assert table.metadata["given"] == {"group_size": 2}
    error = refused(tmp_path, rows, given={"group_size": 4})
    assert "6 rows are not a whole number of groups" in error.message


def test_groups_of_a_given_size_are_checked_where_the_format_does_not_order_them(tmp_path):
    READERS.remove("toyjsonl")
    READERS.add(replace(TOY, grouped_by_order=False))
    rows = prompts([1], [2], [1], [2])
    table = opened(tmp_path, rows, given={"group_size": 2})
    assert column(table, "group_id") == [0, 1, 0, 1]
    error = refused(tmp_path, rows, given={"group_size": 3})
    assert "2 of 2 prompt groups do not have the size" in error.message
    own = prompts([1], [2], [1], [2], group_id=["a", "a", "b", "b"])
    assert column(opened(tmp_path, own, given={"group_size": 2}), "group_id") == list("aabb")


@pytest.mark.parametrize("first", [True, False])
def test_groups_of_ids_and_of_prompts_are_never_mixed(tmp_path, first):
    """Numbers of groups by prompt could equal ids of other groups."""
    own, without = prompts([1], [2], group_id=[1, 2]), prompts([3], [4])
    write_toy(tmp_path / "1.toyjsonl", own if first else without)
    write_toy(tmp_path / "2.toyjsonl", without if first else own)
    says = "no `group_id`, which other rows have" if first else "has a group id, but rows before"
    with pytest.raises(RcdiagError, match=rf"2\.toyjsonl, row 0: {says}") as caught:
        open_table(tmp_path)
    assert "separately" in caught.value.hint


def test_a_dump_without_rows_is_refused(tmp_path):
    assert "zero rows" in refused(tmp_path, []).message


def test_mapped_columns_are_checked_like_others(tmp_path):
    rows = [{"ids": [1, 2], "logp": [-1.0, -2.0]}, {"ids": [3], "logp": [-9999.0]}]
    columns = {"response_ids": "ids", "rollout_log_probs": "logp"}
    table = opened(tmp_path, rows, columns=columns)
    assert table.policies == ["rollout"]
    assert math.isnan(column(table, "rollout_log_probs")[1][0])
    error = refused(tmp_path, rows, columns={**columns, "old_log_probs": "logs"})
    assert "no column `logs`, the right side of old_log_probs=logs" in error.message
    error = refused(tmp_path, [row(1)], columns={"response_ids": "rollout_log_probs"})
    assert "the dump has `response_ids` as well" in error.message


def test_formats_of_text_are_refused_with_the_trainers_own_option(tmp_path):
    READERS.remove("toyjsonl")
    READERS.add(replace(TOY, text_only="set trainer.dump_tokens=true"))
    error = refused(tmp_path, [row(1)])
    assert "toyjsonl dumps hold text, no token ids" in error.message
    assert error.hint.startswith("set trainer.dump_tokens=true; or ")
    assert "--tokenizer PATH" in error.hint


def test_an_error_leaves_no_file_behind(tmp_path, monkeypatch):
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    rows = [row(1, 2)] * 200
    refused(tmp_path, [*rows, {**row(1, 2), "rollout_log_probs": [-1.0]}])
    assert list(folder.iterdir()) == []


def big(columns: Mapping[str, Any], blocks: int) -> Reader:
    """Return a reader that generates blocks of rows."""

    def read(dump: Dump) -> Iterator[Rows]:
        batch = pa.record_batch(columns)
        for block in range(blocks):
            numbers = block * batch.num_rows + np.arange(batch.num_rows)
            yield Rows(batch, dump.files[0], numbers, "line")

    return replace(TOY, read=read)


def test_a_large_dump_is_converted_in_bounded_memory(tmp_path):
    rows, length, blocks = 500, 400, 100  # 20 million tokens
    lists = pa.array(np.arange(rows * length) % 1000, pa.int32())
    offsets = pa.array(np.arange(rows + 1) * length, pa.int32())
    ids = pa.ListArray.from_arrays(offsets, lists)
    log_probs = pa.ListArray.from_arrays(
        offsets, pa.array(-np.random.default_rng(0).random(rows * length), pa.float32())
    )
    READERS.remove("toyjsonl")
    READERS.add(big({"response_ids": ids, "rollout_log_probs": log_probs}, blocks))
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    largest = 0

    class Heard(Progress):
        def converted(self, *numbers: object) -> None:
            nonlocal largest
            largest = max(largest, pool.bytes_allocated() - before)

    path = write_toy(tmp_path / "a.toyjsonl", [])
    table = open_table(path, progress=Heard())
    assert table.num_rows == rows * blocks
    assert table.where(rows * blocks - 1) == f"{path}, line {rows * blocks - 1}"
    assert largest < 120e6  # the whole has 160 MB, a row group 16
    assert sum(len(part) for part in read_trajectories(table, ["rollout"])) == rows * blocks


def test_rows_without_log_probs_beside_others_are_counted(tmp_path):
    rows = [row(1, 2), {"response_ids": [3]}, {"response_ids": [4]}, row(5)]
    table = opened(tmp_path, rows)
    assert column(table, "rollout_log_probs")[1:3] == [None, None]
    assert changes(table)["rollout_log_probs: is null in rows whose records have none"] == 2
    assert "null" not in " ".join(changes(opened(tmp_path, rows[:1])))
