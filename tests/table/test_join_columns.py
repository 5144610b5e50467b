"""Columns of a joined table: policies of all tables, everything else from the first."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.table.join import join_tables
from rcdiag.table.opening import open_table
from rcdiag.usecases.compare.run import compare
from tests.builders import write_table
from tests.table.joining import IDS, LOG_PROBS, TOKENS, joined, log_probs, rows, table
from tests.usecases.compare.tables import about, write_policies


def test_policies_of_equal_names_get_the_later_tables_name(tmp_path):
    one, other = table(tmp_path / "a.parquet"), table(tmp_path / "b.parquet")
    lower = [[value - 1.0 for value in row] for row in LOG_PROBS]
    write_policies(other, {"rollout": lower}, response_ids=TOKENS, sample_id=IDS)
    dump, _ = joined(tmp_path, one, other)
    assert dump.policies == ["rollout", "rollout_b"]
    assert log_probs(dump, "rollout") == LOG_PROBS
    assert log_probs(dump, "rollout_b") == lower


def test_three_tables_keep_their_common_rows(tmp_path):
    one = table(tmp_path / "a.parquet", order=[0, 1, 2])
    two = table(tmp_path / "b.parquet", order=[1, 2, 3])
    three = table(tmp_path / "c.parquet", order=[3, 2])
    dump, report = joined(tmp_path, one, two, three)
    assert [row["sample_id"] for row in rows(dump)] == ["s2"]
    assert dump.policies == ["rollout", "rollout_b", "rollout_c"]
    assert report.common_samples == 1
    assert report.table_rows == [3, 3, 2]
    # Of s0, s1, s2 and s3: a lacks s3, b lacks s0, c lacks s0 and s1.
    assert report.missing_rows == {"a": 1, "b": 1, "c": 2}
    assert sorted(report.left_out) == sorted(
        ["s3 (not in a)", "s0 (not in b)", "s0 (not in c)", "s1 (not in c)"]
    )


def test_a_missing_and_a_differing_row_are_counted_once_each(tmp_path):
    one = table(tmp_path / "a.parquet")
    two = table(tmp_path / "b.parquet", order=[0, 1, 2])
    three = write_policies(
        tmp_path / "c.parquet",
        {"rollout": LOG_PROBS},
        response_ids=[[9, 9], *TOKENS[1:]],
        sample_id=IDS,
    )
    dump, report = joined(tmp_path, one, two, three)
    assert [row["sample_id"] for row in rows(dump)] == ["s1", "s2"]
    assert (report.common_samples, report.tokens_differ) == (2, 1)
    assert report.missing_rows == {"a": 0, "b": 1, "c": 0}


def test_a_name_in_use_is_not_given_again(tmp_path):
    one = write_policies(
        tmp_path / "a.parquet",
        {"old": LOG_PROBS, "old_b": LOG_PROBS},
        response_ids=TOKENS,
        sample_id=IDS,
    )
    dump, _ = joined(tmp_path, one, table(tmp_path / "b.parquet", "old"))
    assert dump.policies == ["old", "old_b", "old_b_b"]


def test_metadata_of_policies_are_kept_under_their_new_names(tmp_path):
    for name, dtype in (("a", "bfloat16"), ("b", "float32")):
        write_policies(
            tmp_path / f"{name}.parquet",
            {"old": LOG_PROBS, f"only_{name}": LOG_PROBS},
            [about("old", "hf", dtype), about(f"only_{name}", "vllm")],
            response_ids=TOKENS,
            sample_id=IDS,
        )
    dump, _ = joined(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet")
    result = dump.metadata["policies"]
    assert {name: item["dtype"] for name, item in result.items()} == {
        "old": "bfloat16",
        "only_a": "float32",
        "old_b": "float32",
        "only_b": "float32",
    }
    assert all(item["name"] == name for name, item in result.items())
    assert dump.metadata["format_version"] == 1


def test_a_repeat_belongs_to_the_policy_of_its_own_table(tmp_path):
    """Both tables have `vllm`; the repeat in the second does not repeat the first's."""
    lower = [[value - 1.0 for value in row] for row in LOG_PROBS]
    one = write_policies(
        tmp_path / "a.parquet",
        {"vllm": LOG_PROBS},
        [about("vllm", "vllm")],
        response_ids=TOKENS,
        sample_id=IDS,
    )
    other = write_policies(
        tmp_path / "b.parquet",
        {"vllm": lower, "vllm_again": lower},
        [about("vllm", "vllm"), about("vllm_again", "vllm", repeat_of="vllm")],
        response_ids=TOKENS,
        sample_id=IDS,
    )
    floor = compare(joined(tmp_path, one, other)[0]).noise_floor
    assert floor is not None
    assert (floor.policy, floor.repeat, floor.k2.value) == ("vllm_b", "vllm_again", 0.0)


def test_other_columns_come_from_the_first_table(tmp_path):
    one = table(tmp_path / "a.parquet", group_id=["g"] * 4, note=list("wxyz"))
    other = table(tmp_path / "b.parquet", "old", group_id=["h"] * 4, response_mask=[[0]] * 4)
    dump, _ = joined(tmp_path, one, other)
    assert [(row["group_id"], row["note"]) for row in rows(dump)] == [("g", n) for n in "wxyz"]
    assert "response_mask" not in dump.schema.names


def test_renamed_columns_are_read_under_their_meaning(tmp_path):
    for name in ("a", "b"):
        columns = {"uid": IDS, "ids": pa.array(TOKENS), "lp": pa.array(LOG_PROBS)}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    renames = {"sample_id": "uid", "response_ids": "ids", "rollout_log_probs": "lp"}
    dumps = [open_table(tmp_path / f"{name}.parquet", columns=renames) for name in ("a", "b")]
    dump = join_tables(dumps)
    assert dump.joined is not None
    assert dump.joined.common_samples == 4
    assert dump.policies == ["rollout", "rollout_b"]
    assert log_probs(dump, "rollout_b") == LOG_PROBS


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda each: pa.list_(each, 2)])
@pytest.mark.parametrize("token", [pa.int32(), pa.int64(), pa.uint16()])
def test_tokens_are_compared_across_list_types(tmp_path, kind, token):
    ids, values = [[1, 2], [3, 4]], [[-1.0, -2.0], [-3.0, -4.0]]
    write_policies(tmp_path / "a.parquet", {"rollout": values}, response_ids=ids)
    columns = {
        "response_ids": pa.array(ids, kind(token)),
        "old_log_probs": pa.array(values, kind(pa.float32())),
    }
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    for order in (("a", "b"), ("b", "a")):
        dump, report = joined(tmp_path, *(tmp_path / f"{name}.parquet" for name in order))
        assert report.common_samples == 2
        assert compare(dump).num_tokens == 4


def test_a_folder_of_files_is_one_table(tmp_path):
    (tmp_path / "many").mkdir()
    table(tmp_path / "many" / "0.parquet", "old", [3, 1])
    table(tmp_path / "many" / "1.parquet", "old", [0, 2])
    one = table(tmp_path / "a.parquet")
    dump, report = joined(tmp_path, one, tmp_path / "many")
    assert report.table_rows == [4, 4]
    assert log_probs(dump, "old") == LOG_PROBS


def test_a_file_name_with_glob_characters_is_that_file(tmp_path):
    one, other = table(tmp_path / "a[0].parquet"), table(tmp_path / "b*.parquet", "old")
    assert joined(tmp_path, one, other)[1].common_samples == 4


def test_empty_responses_are_joined(tmp_path):
    for name in ("a", "b"):
        write_policies(
            tmp_path / f"{name}.parquet",
            {name: [[], [-1.0]]},
            response_ids=[[], [5]],
            sample_id=[0, 1],
        )
    dump, report = joined(tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert (report.common_samples, report.tokens_differ) == (2, 0)
    assert json.dumps(log_probs(dump, "b")) == "[[], [-1.0]]"


def test_a_table_without_log_probs_only_selects_samples(tmp_path):
    one = table(tmp_path / "a.parquet")
    columns = {"response_ids": [[3], [1, 2]], "sample_id": ["s1", "s0"]}
    other = write_table(tmp_path / "b.parquet", **columns)
    dump, report = joined(tmp_path, one, other)
    assert [row["sample_id"] for row in rows(dump)] == ["s0", "s1"]
    assert (dump.policies, report.common_samples) == (["rollout"], 2)


def test_equal_log_probs_of_several_dumps_are_kept_once(tmp_path):
    paths = [table(tmp_path / f"{name}.parquet") for name in "abc"]
    lower = [[value - 1.0 for value in row] for row in LOG_PROBS]
    write_policies(paths[2], {"rollout": lower}, response_ids=TOKENS, sample_id=IDS)
    dumps = [open_table(path) for path in paths]
    dump = join_tables(dumps, of_one_run=True)
    assert dump.policies == ["rollout", "rollout_c"]
    assert log_probs(dump, "rollout_c") == lower
