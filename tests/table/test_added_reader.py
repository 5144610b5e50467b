"""A dump format of a plugin is one definition, used by every command that reads a table."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.join import join_tables
from rcdiag.table.opening import open_table
from rcdiag.table.readers import READERS
from rcdiag.table.readers.reader import Reader
from rcdiag.table.stream import read_chunks
from tests.builders import arrow_table, write_table
from tests.cli.conftest import rcdiag as rcdiag_fixture
from tests.engines.toy_engine import PROBABILITIES, make_checkpoint
from tests.plugins import install, rcdiag_with
from tests.table.toy_reader import TOY, TYPES
from tests.table.toy_reader import write_toy as write

rcdiag = rcdiag_fixture


@pytest.fixture
def toy() -> Iterator[Reader]:
    with READERS.with_added(TOY):
        yield TOY


def rows_of(count: int = 60, seed: int = 0) -> list[dict]:
    random = np.random.default_rng(seed)
    rows = []
    for row in range(count):
        size = int(random.integers(1, 9))
        rollout = -random.exponential(1.0, size) - 0.5
        rows.append(
            {
                "sample_id": f"s{row}",
                "group_id": row // 4,
                "prompt_ids": [1, 2],
                "response_ids": random.integers(0, 50, size).tolist(),
                "rollout_log_probs": rollout.tolist(),
                "old_log_probs": (rollout + random.normal(0, 0.1, size)).tolist(),
                "advantage": float(random.normal()),
            }
        )
    return rows


def as_parquet(path: Path, rows: Sequence[Mapping]) -> Path:
    table = pa.Table.from_pylist(list(rows), pa.schema(list(TYPES.items())))
    pq.write_table(table, path)
    return path


def test_a_format_is_detected_and_can_be_named(tmp_path, toy):
    rows = rows_of(20)
    path = write(tmp_path / "a.toyjsonl", rows, {"policies": {"old": {"backend": "trainer"}}})
    for table in (
        open_table(path),
        open_table(tmp_path),
        open_table(f"{tmp_path}/*.toyjsonl"),
        open_table(path, format="toyjsonl"),
    ):
        assert table.num_rows == 20
        assert table.policies == ["rollout", "old"]
        assert table.metadata["policies"]["old"]["backend"] == "trainer"
        result = [ids for batch in table.batches(["response_ids"]) for ids in batch.table[0]]
        assert [ids.as_py() for ids in result] == [row["response_ids"] for row in rows]
        assert [file.source.path for file in table.files] == [path]


def test_several_files_are_one_table_and_errors_name_the_file_as_it_was_given(tmp_path, toy):
    rows = rows_of(30)
    first = write(tmp_path / "a.toyjsonl", rows[:20])
    second = write(tmp_path / "b.toyjsonl", rows[20:])
    write(tmp_path / "c.toyjsonl", [])
    table = open_table(tmp_path)
    assert table.where(19) == f"{first}, row 19"
    assert table.where(25) == f"{second}, row 5"
    assert [file.path.name for file in table.sources] == ["a.toyjsonl", "b.toyjsonl", "c.toyjsonl"]
    assert [len(chunk.table) for chunk in read_chunks(table, [(0, 3), (20, 30)])] == [3, 10]
    rows[25]["response_ids"][0] = -7
    write(second, rows[20:])
    with pytest.raises(RcdiagError, match="token id -7") as caught:
        open_table(tmp_path)
    assert f"{second}, row 5" in caught.value.message


def test_columns_may_be_renamed_and_the_fingerprint_depends_on_the_rows(tmp_path, toy):
    path = write(tmp_path / "a.toyjsonl", rows_of(5))
    table_names = {"sampler_log_probs": "rollout_log_probs"}
    table = open_table(path, columns=table_names)
    assert table.policies == ["sampler", "old"]
    assert table.fingerprint == open_table(path, columns=table_names).fingerprint
    write(path, rows_of(5, seed=1))
    assert open_table(path, columns=table_names).fingerprint != table.fingerprint


def test_the_converted_files_are_deleted_with_the_table(tmp_path, toy):
    table = open_table(write(tmp_path / "a.toyjsonl", rows_of(5)))
    converted = table.files[0].parquet
    assert converted.exists()
    del table
    gc.collect()
    assert not converted.parent.exists()


def test_a_table_of_another_format_is_joined_with_one_of_parquet(tmp_path, toy):
    rows = rows_of(40)
    one = write(tmp_path / "a.toyjsonl", rows)
    other = as_parquet(tmp_path / "b.parquet", rows[10:])
    tables = [open_table(one), open_table(other)]
    joined = join_tables(tables)
    assert joined.joined is not None
    assert (joined.num_rows, joined.joined.missing_rows["b"]) == (30, 10)
    assert joined.joined.tables == [str(one), str(other)]
    assert joined.policies == ["rollout", "old", "rollout_b", "old_b"]


@pytest.mark.parametrize("command", ["score", "compare", "sweep", "replay"])
def test_every_command_gives_the_same_as_for_parquet(command, rcdiag, tmp_path, toy):
    rows = rows_of()
    ours = rcdiag(command, write(tmp_path / "a.toyjsonl", rows), "--json").document
    theirs = rcdiag(command, as_parquet(tmp_path / "a.parquet", rows), "--json").document
    assert ours["provenance"]["dump"] == [str(tmp_path / "a.toyjsonl")]
    for document in (ours, theirs):
        del document["provenance"]
    text = json.dumps(ours).replace("a.toyjsonl", "a.parquet")
    assert json.loads(text) == theirs


@pytest.mark.parametrize("mixed", [False, True])
def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path, toy, mixed):
    path = tmp_path / "a.weird"
    path.write_text("?")
    good = write(tmp_path / "a.toyjsonl", rows_of(2))
    with pytest.raises(RcdiagError, match=r"a\.weird: not a format") as caught:
        open_table([good, path] if mixed else path)
    assert {"parquet", "toyjsonl"} <= set(re.findall(r"[\w-]+", caught.value.hint))


def test_a_folder_of_two_formats_is_refused(tmp_path, toy):
    rows = rows_of(2)
    write(tmp_path / "a.toyjsonl", rows)
    as_parquet(tmp_path / "a.parquet", rows)
    with pytest.raises(RcdiagError, match="files of several formats: ") as caught:
        open_table(tmp_path)
    assert "parquet (a.parquet), toyjsonl (a.toyjsonl)" in caught.value.message
    assert "--from" in caught.value.hint
    for name in ("parquet", "toyjsonl"):
        assert open_table(tmp_path, format=name).num_rows == 2


def test_a_wrong_format_name_is_refused(tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=[[1]])
    with pytest.raises(RcdiagError, match="format parkuet: no such format") as caught:
        open_table(path, format="parkuet")
    assert "parquet" in caught.value.hint


def test_a_file_without_the_suffix_is_detected_by_its_first_bytes(tmp_path):
    path = write_table(tmp_path / "rows", response_ids=[[1]])
    assert open_table(path).num_rows == 1


PLUGIN = """
    from rcdiag.table.readers import READERS

    def register():
        from tests.table.toy_reader import TOY

        READERS.add(TOY)
"""


def test_a_reader_of_an_installed_package_is_found_by_the_command_line(tmp_path, rcdiag):
    plugin = install(tmp_path / "site", "toy_reader", PLUGIN)
    path = write(tmp_path / "a.toyjsonl", rows_of())
    ran = rcdiag_with(plugin, "score", path, "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["num_sequences"] == 60
    without = rcdiag("score", path)
    assert without.code == 2
    assert "sets one of parquet" in " ".join(without.err.split())


def test_an_added_reader_is_in_the_help_and_explained(rcdiag, monkeypatch):
    """tests/test_contributing.py tests an installed reader."""
    monkeypatch.setenv("COLUMNS", "300")
    with READERS.with_added(TOY):
        assert "toyjsonl" in rcdiag("score", "--help").out
        assert "Toy: JSON lines" in rcdiag("explain", "toyjsonl").out


@pytest.mark.slow
@pytest.mark.engine
def test_a_table_of_another_format_is_scored_and_resumed_after_a_kill(tmp_path):
    plugin = install(tmp_path / "site", "toy_reader", PLUGIN)
    install(plugin, "toy_plugin", "from tests.engines.toy_engine import register")
    rows = [{**row, "response_ids": [id % 16 for id in row["response_ids"]]} for row in rows_of()]
    path, out = write(tmp_path / "a.toyjsonl", rows), tmp_path / "scored.parquet"
    command = ("score", path, "--model", make_checkpoint(tmp_path / "m"), "--policy", "new=toy")
    for _ in range(2):
        ran = rcdiag_with(plugin, *command, "--target", "new", "-o", out, "--json")
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["provenance"]["dump"] == [str(path)]
        # The files of a run killed after its last rename are recognised as its own.
        out.with_name(out.name + ".parts").mkdir()
    scored = pq.read_table(out)
    assert scored.column_names == [*TYPES, "new_log_probs"]
    expected = [np.log(PROBABILITIES)[row["response_ids"]].tolist() for row in rows]
    result = scored["new_log_probs"].to_pylist()
    np.testing.assert_allclose(np.concatenate(result), np.concatenate(expected), rtol=1e-6)


def test_versions_of_weights_given_as_text_are_numbers_or_left_out(tmp_path):
    texts = ["12", " -3", "v7", None, "1.5", "+4"]
    ids = [[1]] * len(texts)
    path = write_table(
        tmp_path / "a.parquet", response_ids=ids, policy_version=texts, rollout_log_probs=ids
    )
    table = open_table(path)
    assert table.schema.field("policy_version").type == pa.int64()
    (batch,) = table.batches(["policy_version"])
    expected = [12, -3, None, None, None, 4]
    assert batch.table["policy_version"].to_pylist() == expected
    joined = join_tables([table, table])
    (batch,) = joined.batches(["policy_version"])
    assert batch.table["policy_version"].to_pylist() == expected


def test_columns_of_the_contract_pass_through(tmp_path):
    experts = pa.array([[[0, 3], [1, 2]], []], pa.list_(pa.list_(pa.uint16())))
    columns = {
        "engine": ["replica-0", "replica-1"],
        "finish_reason": ["stop", None],
        "min_p": [0.0, 0.05],
        "old_routed_experts": experts,
    }
    path = write_table(tmp_path / "a.parquet", response_ids=[[1, 2], []], **columns)
    (batch,) = open_table(path).batches()
    expected = arrow_table(response_ids=[[1, 2], []], **columns).to_pydict()
    assert batch.table.to_pydict() == expected
